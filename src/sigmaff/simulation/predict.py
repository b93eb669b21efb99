"""Predictions for whole files of structures."""

from pathlib import Path

import torch
from ase import Atoms

from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.data.statistics import undetermined_energies
from sigmaff.errors import DataError, SigmaffError
from sigmaff.files import atomic_write
from sigmaff.models.prediction import ForceStdMethod, Predictor, split_prediction
from sigmaff.progress import Listener
from sigmaff.simulation.results import UNDETERMINED, PerAtom, beside_labels, finite_results

FORMATS: dict[str, tuple[str, PerAtom]] = {  # ending: ASE's name, where it keeps σ of atoms
    ".extxyz": ("extxyz", "arrays"),
    ".xyz": ("extxyz", "arrays"),
    ".traj": ("traj", "info"),
}


def predict_structures(
    predictor: Predictor,
    dataset: GraphDataset,
    batch_size: int,
    forces_std: ForceStdMethod,
    listener: Listener | None = None,
    *,
    stress_std: bool = True,
    per_atom: PerAtom = "arrays",
    labels: LabelledStructures | None = None,
) -> list[Atoms]:
    """Copies of the structures with energy, forces and σ under names of their own, beside their labels.

    Arguments:
        labels: the same structures with the labels that the copies keep; ``None``: there are none. A structure without
            a label has the predictions under ASE's names, too (``beside_labels``).
    """
    listener = listener or Listener()
    frames: list[Atoms] = []
    for indices in torch.arange(len(dataset)).split(dataset.batch_size(batch_size)):
        graph, _ = dataset.batch(indices)
        together = predictor.predict(graph, forces_std=forces_std, stress_std=stress_std)
        for index, prediction in zip(indices.tolist(), split_prediction(together, graph), strict=True):
            atoms = dataset.structures.structures[index]
            try:
                own = {} if labels is None else labels.labels_of(index)
                frames.append(beside_labels(atoms, finite_results(prediction, atoms), own, per_atom=per_atom))
            except DataError as error:
                raise DataError(f"{dataset.structures.frame_name(index)}: {error}") from None
        listener.advance(len(frames), len(dataset))
    if undetermined := [frame.get_chemical_formula() for frame in frames if UNDETERMINED in frame.info]:
        text = f"{UNDETERMINED} marks {len(undetermined)} of {len(frames)} structures"
        listener.warn(f"{undetermined_energies(undetermined)}; {text}")
    return frames


def output_format(path: Path) -> tuple[str, PerAtom]:
    """ASE's name of the format that a path's ending asks for, and where that format keeps σ of atoms."""
    if path.suffix not in FORMATS:
        raise SigmaffError(f"{path}: predictions are written as {', '.join(FORMATS)}; choose one of these endings")
    return FORMATS[path.suffix]


def write_structures(path: Path, frames: list[Atoms], *, force: bool = False) -> None:
    """An extxyz or traj file with σ beside energy and forces, whole or not at all."""
    from ase.io import write

    format_name, _ = output_format(path)
    with atomic_write(path, force=force) as temporary:
        write(temporary, frames, format=format_name)
