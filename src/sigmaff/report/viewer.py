"""What the viewer of a report shows: a few structures of each data set, atoms coloured by force σ."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from ase.data import chemical_symbols, covalent_radii
from matplotlib.colors import to_hex
from scipy.spatial import cKDTree

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.report.figures import TINY, Array, forces_std_rms

MAX_ATOMS = 1000  # more than this is neither legible nor light
BOND_TOLERANCE = 1.2  # of the sum of covalent radii
COLOUR_STOPS = [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, 9))]
LABELS = {1: ("only",), 2: ("lowest σ", "highest σ"), 3: ("lowest σ", "median σ", "highest σ")}

Frame = dict[str, object]


def viewer_data(evaluation: Evaluation, ood: Evaluation | None) -> dict[str, object] | None:
    """Frames of each data set that has force σ, and one logarithmic colour scale; ``None`` without any."""
    chosen = [(e, choose_frames(e)) for e in (evaluation, ood) if e is not None]
    sets = [_set(e, frames, is_ood=e is ood) for e, frames in chosen if frames]
    if not sets:
        return None
    std = np.concatenate([_atom_rms(e.forces_std)[_atoms(e, k)] for e, frames in chosen for k in frames])
    high = max(float(std.max()), TINY)
    low = min(max(float(std.min()), 1e-3 * high), 0.8 * high)
    return {"stops": COLOUR_STOPS, "low": low, "middle": (low * high) ** 0.5, "high": high, "sets": sets}


def choose_frames(evaluation: Evaluation) -> list[int]:
    """The structures of lowest, median and highest force σ, among those small enough to draw."""
    std = forces_std_rms(evaluation)
    if std is None:
        return []
    small = np.flatnonzero(evaluation.atoms_per_structure <= MAX_ATOMS)
    ranked = small[np.argsort(std[small], kind="stable")]
    places = sorted({0, ranked.size // 2, ranked.size - 1} if ranked.size else ())
    return [int(ranked[place]) for place in places]


def _set(evaluation: Evaluation, frames: Sequence[int], is_ood: bool) -> dict[str, object]:
    labels = LABELS[len(frames)]
    described = [_frame(evaluation, k, label) for k, label in zip(frames, labels, strict=True)]
    return {"name": evaluation.name, "ood": is_ood, "frames": described}


def _frame(evaluation: Evaluation, k: int, label: str) -> Frame:
    atoms = _atoms(evaluation, k)
    numbers, std = evaluation.atomic_numbers[atoms], _atom_rms(evaluation.forces_std)[atoms]
    error = None if evaluation.forces_error is None else _atom_rms(evaluation.forces_error)[atoms]
    return {
        "label": label,
        "index": k,
        "rms": _rounded(np.sqrt(np.mean(std**2))),
        "elements": [chemical_symbols[number] for number in numbers],
        "positions": np.round(face_on(evaluation.positions[atoms]), 3).tolist(),
        "radii": np.round(0.15 + 0.5 * covalent_radii[numbers], 3).tolist(),
        "std": [_rounded(value) for value in np.maximum(std, TINY)],
        "error": None if error is None else [_rounded(value) for value in error],
        "bonds": bonds(evaluation.positions[atoms], covalent_radii[numbers]),
    }


def face_on(positions: Array) -> Array:
    """Positions about their centre, turned (not mirrored): the longest principal axis along x, then y."""
    centred = positions - positions.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred)[1].T[::-1].copy()
    axes[2] *= np.sign(np.linalg.det(axes))
    return np.asarray(centred @ axes.T)


def bonds(positions: Array, radii: Array) -> list[tuple[int, int]]:
    """Pairs closer than 1.2 times the sum of their covalent radii; no periodic images."""
    near = cKDTree(positions).query_pairs(2 * BOND_TOLERANCE * float(radii.max()), output_type="ndarray")
    distance = np.linalg.norm(positions[near[:, 0]] - positions[near[:, 1]], axis=1)
    bonded = near[distance < BOND_TOLERANCE * radii[near].sum(axis=1)]
    return [(int(i), int(j)) for i, j in bonded]


def _atoms(evaluation: Evaluation, k: int) -> slice:
    start, stop = np.searchsorted(evaluation.structure_index, [k, k + 1])
    return slice(int(start), int(stop))


def _atom_rms(vectors: Array | None) -> Array:
    """Root mean square of the three components, (n_atoms, 3) -> (n_atoms,)."""
    assert vectors is not None
    return np.asarray(np.sqrt(np.mean(vectors**2, axis=1)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
