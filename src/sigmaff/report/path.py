"""Energies along a path of structures, such as a bond scan or a reaction path: model, σ and truth in one picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from ase import Atoms
from ase.geometry import find_mic
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.spatial.transform import Rotation

from sigmaff.data import LabelledStructures
from sigmaff.errors import DataError
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.evaluation.detection import largest_of_atoms
from sigmaff.evaluation.evaluate import OPEN, evaluate
from sigmaff.models import Model
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.progress import Listener
from sigmaff.report.figures import BLUE, INK, ORANGE, STYLE, Array, plain_ticks
from sigmaff.report.sections import Section, card

OVERSHOOT = 0.5
"""Of the range of energies: how far the axis follows a band beyond them."""
MILLI = 0.3
"""eV; a shorter axis of energies is in meV."""
COLORS = (BLUE, ORANGE)
DECADES = 1e-4
"""Of the largest value: the least one on the axis of errors and σ."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One model along a path. eV, Å; ``None``: not estimated, or no label."""

    name: str
    energy: Array  # (n,)
    energy_std: Array | None  # (n,)
    forces_std: Array | None  # (n,) largest of an atom, norm of its components
    forces_error: Array | None  # (n,) largest of an atom
    has_own_zero: bool  # the training set does not determine the energy of this composition


@dataclass(frozen=True, kw_only=True)
class EnergyPath:
    """Structures in order, and what models and labels say of them."""

    name: str
    label: str  # of the axis
    place: Array  # (n,) on the axis
    energy: Array | None  # (n,) true, eV
    curves: tuple[Curve, ...]  # the first is that of the model; others are for comparison

    @property
    def reference(self) -> int:
        """The structure of least energy, true if it is known."""
        return int(np.argmin(self.curves[0].energy if self.energy is None else self.energy))

    def relative(self, curve: Curve) -> Array:
        """Energies of a model above the least energy of the path, eV. Errors stay in: they are not aligned.

        Only where the composition leaves the zero of energy open, both agree at the least energy.
        """
        at = self.reference
        return curve.energy - (curve.energy if self.energy is None or curve.has_own_zero else self.energy)[at]

    @property
    def truth(self) -> Array | None:
        """True energies above the least of them, eV."""
        return None if self.energy is None else self.energy - self.energy[self.reference]


def follow_path(
    structures: LabelledStructures,
    models: Sequence[tuple[str, Model]],
    *,
    forces_std: ForceStdMethod = "auto",
    batch_size: int = 32,
    listener: Listener | None = None,
) -> EnergyPath:
    """Predict a path.

    Arguments:
        structures: in the order of the path; labels are optional.
        models: with their names; the first is the one that the report is about.
        forces_std: how to compute force σ.
        batch_size: largest number of structures in one prediction.
        listener: callbacks for progress; the default is silent.
    """
    if len(structures) < 2:
        raise DataError(f"{structures.source}: a path has at least 2 structures, and this has {len(structures)}")
    listener, name = listener or Listener(), Path(structures.source).stem
    label, place = path_axis(structures.structures)
    curves = []
    for title, model in models:
        listener.stage(f"following {name}: {title}")
        dataset = dataset_for(model, structures)
        found = evaluate(model, dataset, name=name, batch_size=batch_size, forces_std=forces_std, listener=listener)
        is_open = found.composition_std is not None and bool((found.composition_std > OPEN).any())
        raw, scale = found.energy_std_raw, found.energy_calibration.scale
        std, error = (
            None if vectors is None else largest_of_atoms(found, np.linalg.norm(vectors, axis=1))
            for vectors in (found.forces_std, found.forces_error)
        )
        curves.append(
            Curve(
                name=title,
                energy=found.energy_predicted,
                energy_std=None if raw is None else raw * scale,
                forces_std=std,
                forces_error=error,
                has_own_zero=is_open,
            )
        )
    return EnergyPath(name=name, label=label, place=place, energy=structures.energy, curves=tuple(curves))


# --- the axis


def path_axis(structures: Sequence[Atoms]) -> tuple[str, Array]:
    """Name and value of each structure along the path.

    The one number in ``info`` that rises or falls from each structure to the next, if there is exactly one; else the
    length of the path in Å, where all structures have the same atoms; else the number of the structure.
    """
    ordered = {key: values for key in structures[0].info if (values := _numbers(structures, key)) is not None}
    if len(ordered) == 1:
        [(key, values)] = ordered.items()
        return key.replace("_", " "), values
    if all(np.array_equal(atoms.numbers, structures[0].numbers) for atoms in structures):
        steps = [_distance(*pair) for pair in pairwise(structures)]
        if min(steps) > 0:
            return "path length (Å)", np.concatenate([[0.0], np.cumsum(steps)])
    return "structure", np.arange(len(structures), dtype=np.float64)


def _numbers(structures: Sequence[Atoms], key: str) -> Array | None:
    """A number that every structure has, if it is strictly monotone and no energy."""
    found = [atoms.info.get(key) for atoms in structures]
    if "energy" in key.lower() or not all(isinstance(value, int | float | np.number) for value in found):
        return None
    values = np.array(found, dtype=np.float64)
    steps = np.diff(values)
    return values if (steps > 0).all() or (steps < 0).all() else None


def _distance(first: Atoms, second: Atoms) -> float:
    """√Σ|Δr|² over atoms, Å; of molecules after the best rotation and shift."""
    if first.pbc.any():
        moved, _ = find_mic(second.positions - first.positions, first.cell, first.pbc)
        return float(np.linalg.norm(moved))
    one, other = (atoms.positions - atoms.positions.mean(axis=0) for atoms in (first, second))
    if len(first) < 2:
        return 0.0
    _, distance = Rotation.align_vectors(one, other)
    return float(distance)


# --- figures


def draw_energy(axes: Axes, path: EnergyPath, curve: Curve, color: str) -> None:
    """Energies of one model with bands of 1 and 2 σ, and the true energies."""
    unit, size = ("meV", 1e-3) if np.ptp(energy_limits(path)) < MILLI else ("eV", 1.0)
    energy = path.relative(curve) / size
    if curve.energy_std is not None:
        std = curve.energy_std / size
        for factor, alpha, label in ((2.0, 0.16, "± 2 σ"), (1.0, 0.3, "± σ")):
            band = (energy - factor * std, energy + factor * std)
            axes.fill_between(path.place, *band, color=color, alpha=alpha, linewidth=0, label=label)
    axes.plot(path.place, energy, color=color, linewidth=1.8, label=curve.name)
    if path.truth is not None:
        axes.plot(path.place, path.truth / size, "o--", color=INK, linewidth=0.9, markersize=3.2, label="truth")
    low, high = energy_limits(path)
    axes.set(xlabel=path.label, ylabel=f"energy above the minimum ({unit})", ylim=(low / size, high / size))
    axes.set_xlim(_ends(path.place))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="best", frameon=True, framealpha=0.85, edgecolor="none")


def _ends(place: Array) -> tuple[float, float]:
    """Of the horizontal axis."""
    margin = 0.02 * float(np.ptp(place))
    return float(place.min()) - margin, float(place.max()) + margin


def energy_limits(path: EnergyPath) -> tuple[float, float]:
    """Of the axis: all energies, and bands as far as they do not flatten them."""
    energies = [path.relative(curve) for curve in path.curves] + ([] if path.truth is None else [path.truth])
    low, high = min(values.min() for values in energies), max(values.max() for values in energies)
    reach, margin = OVERSHOOT * (high - low), 0.04 * (high - low) or 1e-3
    bands = [
        (energy - 2 * curve.energy_std, energy + 2 * curve.energy_std)
        for curve, energy in zip(path.curves, energies, strict=False)
        if curve.energy_std is not None
    ]
    lowest = min((float(lower.min()) for lower, _ in bands), default=low)
    highest = max((float(upper.max()) for _, upper in bands), default=high)
    return max(min(lowest, low), low - reach) - margin, min(max(highest, high), high + reach) + margin


def draw_spread(axes: Axes, path: EnergyPath, pairs: Sequence["Spread"], label: str) -> None:
    """σ of models and their errors, on a logarithmic axis."""
    for pair, color in zip(pairs, COLORS, strict=False):
        if pair.std is not None:
            axes.plot(path.place, pair.std, color=color, linewidth=1.8, label=f"{pair.name}, σ")
        if pair.error is not None:
            [points] = axes.plot(path.place, pair.error, "o--", color=color, label=f"{pair.name}, error")
            points.set(markersize=3.2, linewidth=0.9, markerfacecolor="white")
    values = np.concatenate([v for pair in pairs for v in (pair.std, pair.error) if v is not None])
    top = float(values.max()) or 1.0
    low = max(float(values[values > 0].min(initial=top)), DECADES * top)
    axes.set(yscale="log", ylim=(low / 1.5, top * 1.5), xlabel=path.label, ylabel=label)
    axes.set_xlim(_ends(path.place))
    plain_ticks(axes.yaxis, low, top)
    axes.legend(loc="best")


class Spread(NamedTuple):
    """σ and error of one model along a path, (n,) each."""

    name: str
    std: Array | None
    error: Array | None


def path_figure(titles: Sequence[str], paths: Sequence[EnergyPath]) -> Figure:
    """Energies along several paths on white: a column for each path, a row for each model.

    The models have the same names along all paths: they stand in the first column alone.
    """
    n_rows = max(len(path.curves) for path in paths)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0 * len(paths), 3.1 * n_rows), layout="constrained", facecolor="white")
        grid = figure.subplots(n_rows, len(paths), squeeze=False, sharex="col")
        for column, title, path in zip(grid.T, titles, paths, strict=True):
            for axes, curve, color in zip(column, path.curves, COLORS, strict=False):
                draw_energy(axes, path, curve, color)
            for axes in column[:-1]:
                axes.set_xlabel("")
            for axes in column if path is not paths[0] else ():
                axes.get_legend().remove()
            column[0].set_title(title)
    return figure


def path_section(path: EnergyPath) -> Section:
    """The section of a report."""
    energies = [
        Spread(c.name, c.energy_std, None if path.truth is None else np.abs(path.relative(c) - path.truth))
        for c in path.curves
    ]
    forces = [Spread(c.name, c.forces_std, c.forces_error) for c in path.curves]
    cards = [
        card(f"path-energy-{index}", partial(draw_energy, path=path, curve=curve, color=color), caption(path, curve))
        for index, (curve, color) in enumerate(zip(path.curves, COLORS, strict=False))
    ]
    for name, pairs, label, words in (
        ("energy", energies, "energy σ and |error| (eV)", "Energy σ and the error itself."),
        (
            "force",
            forces,
            "force σ and error of an atom (eV/Å)",
            "Largest force σ of an atom and largest force error of an atom, norms of three components.",
        ),
    ):
        if any(pair.std is not None for pair in pairs):
            panel = partial(draw_spread, path=path, pairs=pairs, label=label)
            cards.append(card(f"path-{name}-std", panel, f"{words} Where σ is right, errors are seldom above 2 σ."))
    remarks = [] if path.energy is not None else ["The structures have no energies: the truth is not shown."]
    lead = f"{len(path.place)} structures of {path.name}, in the order of the file."
    return Section("Along a path", lead, cards, remarks)


def caption(path: EnergyPath, curve: Curve) -> str:
    """What the axis hides is said here."""
    words = [f"{curve.name}: energies above the minimum of the path."]
    low, high = energy_limits(path)
    energy, std = path.relative(curve), curve.energy_std
    if std is not None and path.truth is not None:
        inside = int(np.count_nonzero(np.abs(energy - path.truth) <= 2 * std))
        words.append(f"The truth is within 2 σ for {inside} of {energy.size} structures.")
    if std is not None and ((energy - 2 * std < low) | (energy + 2 * std > high)).any():
        words.append(f"The band goes beyond the axis: σ is up to {std.max():.2g} eV.")
    if curve.has_own_zero and path.energy is not None:
        words.append(
            "The training set leaves the energy of this composition open: the curve is shifted to agree with the truth "
            "at the minimum."
        )
    return " ".join(words)
