"""Predictions for whole files of structures."""

from collections.abc import Callable
from pathlib import Path

from ase import Atoms
from ase.io import write

from sigmaff.data import GraphDataset
from sigmaff.errors import SigmaffError
from sigmaff.files import written_whole
from sigmaff.prediction import ForcesStd, Predictor, split_prediction
from sigmaff.simulation.results import finite_results, with_results

FORMATS = {".extxyz": "extxyz", ".xyz": "extxyz", ".traj": "traj"}


def predict_structures(
    predictor: Predictor,
    dataset: GraphDataset,
    batch_size: int,
    forces_std: ForcesStd,
    progress: Callable[[int, int], None],
) -> list[Atoms]:
    """Copies of the structures with energy, forces and σ, as ``snapshot`` makes them."""
    frames: list[Atoms] = []
    for start in range(0, len(dataset), batch_size):
        indices = range(start, min(start + batch_size, len(dataset)))
        graph, _ = dataset.batch(indices)
        predictions = split_prediction(predictor.predict(graph, forces_std=forces_std), graph)
        for index, prediction in zip(indices, predictions, strict=True):
            atoms = dataset.structures.structures[index]
            frames.append(with_results(atoms, finite_results(prediction, atoms)))
        progress(len(frames), len(dataset))
    return frames


def write_structures(path: Path, frames: list[Atoms], *, force: bool = False) -> None:
    """An extxyz or traj file with σ beside energy and forces, whole or not at all."""
    if path.suffix not in FORMATS:
        raise SigmaffError(f"{path}: predictions are written as {', '.join(FORMATS)}; choose one of these endings")
    with written_whole(path, force=force) as temporary:
        write(temporary, frames, format=FORMATS[path.suffix])
