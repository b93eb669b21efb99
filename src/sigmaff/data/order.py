"""Order in time: frames of a trajectory, recognised by how similar consecutive frames are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sigmaff.data.overlap import comparable
from sigmaff.data.structures import FloatArray, IndexArray, LabelledStructures

LIMIT = 0.2
"""Frames with a smaller correlation count as independent."""

MIN_FRAMES = 20
"""The order of fewer frames is not measured."""

N_PAIRS = 64
"""Pairs of atoms whose distances are followed."""

CHUNK = 2**22
"""Numbers transformed at once; bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Frames with the same atoms, in their order in time, or in the file if that is not known."""

    indices: IndexArray  # (n,) of structures
    correlation: float  # of consecutive frames: 0 for independent frames, 1 for equal ones
    memory: int  # frames after which the correlation is below LIMIT; 0: the frames have no order in time


def find_series(structures: LabelledStructures) -> list[Series]:
    """Group structures with the same atoms, and measure how long frames resemble those before.

    The correlation is that of interatomic distances, about their means, averaged over pairs of atoms. It needs neither
    labels nor a common orientation of the frames. Independent frames, and those in random order, have none.
    """
    time = np.arange(len(structures)) if structures.time_index is None else structures.time_index
    groups = (indices[np.argsort(time[indices], kind="stable")] for indices in comparable(structures.structures))
    return [_series(structures, indices) for indices in groups]


def describe(series: Sequence[Series]) -> str:
    """Whether consecutive frames are correlated, and for how long, in the largest series."""
    ordered = [one for one in series if one.memory > 0]
    if not ordered:
        return "consecutive frames are not correlated"
    largest = max(ordered, key=lambda one: len(one.indices))
    where = f" in {len(ordered)} of {len(series)} series of frames with the same atoms" if len(series) > 1 else ""
    lasting = f"{largest.correlation:.2f}, below {LIMIT} after {largest.memory} frames"
    return f"consecutive frames are correlated{where} ({lasting})"


def _series(structures: LabelledStructures, indices: IndexArray) -> Series:
    n = len(indices)
    totals, n_pairs = np.zeros(n), 0
    if n >= MIN_FRAMES:
        for distances in _distances(structures, indices):
            varying = distances[:, distances.std(0) > 1e-9]
            totals += _autocorrelation(varying).sum(1)
            n_pairs += varying.shape[1]
    if n_pairs == 0:
        return Series(indices=indices, correlation=0.0, memory=0)
    correlation = totals / n_pairs
    ordered = correlation[1] > max(LIMIT, 2.0 / np.sqrt(n))  # two standard errors of one distance
    memory = int(np.argmax(correlation < LIMIT)) if ordered else 0  # it is negative for some lag: all sum to −½
    return Series(indices=indices, correlation=float(correlation[1]), memory=memory)


def _autocorrelation(values: FloatArray) -> FloatArray:
    """Of each column at all lags, (n, d) -> (n, d); its sum over lags from 1 on is −½."""
    n = len(values)
    spectrum = np.fft.rfft(values - values.mean(0), 2 * n, axis=0)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n, axis=0)[:n]
    return covariance / covariance[0]


def _distances(structures: LabelledStructures, indices: IndexArray) -> Iterator[FloatArray]:
    """Distances between pairs of atoms drawn at random, (n, some of the pairs) Å, to the nearest image."""
    frames = [structures.structures[index] for index in indices]
    first, second = np.triu_indices(len(frames[0]), 1)
    if len(first) > N_PAIRS:
        drawn = np.random.default_rng(0).choice(len(first), N_PAIRS, replace=False)
        first, second = first[drawn], second[drawn]
    positions, pbc = np.array([atoms.positions for atoms in frames]), frames[0].pbc
    cells = np.array([atoms.cell.array for atoms in frames])
    if not np.isfinite(positions).all() or (pbc.any() and not np.isfinite(cells).all()):
        return
    inverse = np.linalg.pinv(cells) if pbc.any() else cells
    at_once = max(1, CHUNK // len(frames))
    for start in range(0, len(first), at_once):
        some = slice(start, start + at_once)
        vectors = positions[:, second[some]] - positions[:, first[some]]
        if pbc.any():
            vectors -= (np.round(vectors @ inverse) * pbc) @ cells
        yield np.linalg.norm(vectors, axis=-1)
