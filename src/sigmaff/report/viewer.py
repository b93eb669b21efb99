"""What the viewer of a page shows: a few structures of each set, atoms coloured by force σ or by their surroundings."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols, covalent_radii
from matplotlib.colors import to_hex
from scipy.spatial import cKDTree

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.report.figures import TINY, Array, forces_std_rms

MAX_ATOMS = 1000  # larger structures are neither legible nor light
BOND_TOLERANCE = 1.2  # of the sum of covalent radii
COLOUR_STOPS = [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, 9))]
LABELS = {1: ("only",), 2: ("lowest σ", "highest σ"), 3: ("lowest σ", "median σ", "highest σ")}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A structure to draw."""

    label: str
    index: int
    atomic_numbers: npt.NDArray[np.int64]  # (n_atoms,)
    positions: Array  # (n_atoms, 3) Å
    forces_std: Array  # (n_atoms, 3) eV/Å
    forces_error: Array | None  # (n_atoms, 3) eV/Å; None: no label
    surroundings: Array | None = None  # (n_atoms,) eV, how unusual they are (``Prediction.node_energy_std``)

    def content(self) -> dict[str, object]:
        """What the script of the page reads."""
        std, radii = _atom_rms(self.forces_std), covalent_radii[self.atomic_numbers]
        return {
            "label": self.label,
            "index": self.index,
            "rms": _rounded(np.sqrt(np.mean(std**2))),
            "elements": [chemical_symbols[number] for number in self.atomic_numbers],
            "positions": np.round(face_on(self.positions), 3).tolist(),
            "radii": np.round(0.15 + 0.5 * radii, 3).tolist(),
            "std": [_rounded(value) for value in np.maximum(std, TINY)],
            "error": None if self.forces_error is None else [_rounded(value) for value in _atom_rms(self.forces_error)],
            "surroundings": None
            if self.surroundings is None
            else [_rounded(value) for value in np.maximum(self.surroundings, TINY)],
            "bonds": bonds(self.positions, radii),
        }


def viewer_content(sets: Sequence[tuple[str, bool, Sequence[Frame]]]) -> dict[str, object] | None:
    """Sets of frames on one logarithmic colour scale; ``None`` without any frame.

    Arguments:
        sets: name, whether it is out of distribution, and frames of each set.
    """
    shown = [(name, is_ood, frames) for name, is_ood, frames in sets if frames]
    if not shown:
        return None
    every = [frame for _, _, frames in shown for frame in frames]
    surroundings = [frame.surroundings for frame in every if frame.surroundings is not None]
    content = [{"name": name, "ood": is_ood, "frames": [f.content() for f in frames]} for name, is_ood, frames in shown]
    return {
        "stops": COLOUR_STOPS,
        **_scale([_atom_rms(frame.forces_std) for frame in every]),
        "surroundings": _scale(surroundings) if len(surroundings) == len(every) else None,
        "sets": content,
    }


def _scale(values: Sequence[Array]) -> dict[str, float]:
    """Ends and middle of a logarithmic scale for all of these."""
    std = np.concatenate(values)
    high = max(float(std.max()), TINY)
    low = min(max(float(std.min()), 1e-3 * high), 0.8 * high)
    return {"low": low, "middle": (low * high) ** 0.5, "high": high}


def viewer_data(evaluation: Evaluation, ood: Evaluation | None) -> dict[str, object] | None:
    """Frames of each data set that has force σ; ``None`` without any."""
    return viewer_content([(e.name, e is ood, _frames(e)) for e in (evaluation, ood) if e is not None])


def choose_frames(evaluation: Evaluation) -> list[int]:
    """The structures of lowest, median and highest force σ, among those small enough to draw."""
    std = forces_std_rms(evaluation)
    if std is None:
        return []
    small = np.flatnonzero(evaluation.atoms_per_structure <= MAX_ATOMS)
    ranked = small[np.argsort(std[small], kind="stable")]
    places = sorted({0, ranked.size // 2, ranked.size - 1} if ranked.size else ())
    return [int(ranked[place]) for place in places]


def _frames(evaluation: Evaluation) -> list[Frame]:
    std, error, chosen = evaluation.forces_std, evaluation.forces_error, choose_frames(evaluation)
    unusual = evaluation.node_energy_std
    if std is None or not chosen:
        return []
    places = [slice(*np.searchsorted(evaluation.structure_index, [index, index + 1]).tolist()) for index in chosen]
    return [
        Frame(
            label=label,
            index=index,
            atomic_numbers=evaluation.atomic_numbers[atoms],
            positions=evaluation.positions[atoms],
            forces_std=std[atoms],
            forces_error=None if error is None else error[atoms],
            surroundings=None if unusual is None else unusual[atoms],
        )
        for label, index, atoms in zip(LABELS[len(chosen)], chosen, places, strict=True)
    ]


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


def _atom_rms(vectors: Array) -> Array:
    """Root mean square of the three components, (n_atoms, 3) -> (n_atoms,)."""
    return np.asarray(np.sqrt(np.mean(vectors**2, axis=1)))


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")
