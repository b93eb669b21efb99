"""Checkpoints: all that a training needs to resume exactly, in one safetensors file.

Numbers are JSON in the file's metadata, so reading one never executes code. Writes are atomic.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer

from sigmaff.config import with_unnamed
from sigmaff.data import DatasetStatistics, GraphDataset
from sigmaff.errors import ModelFileError
from sigmaff.files import digest, flatten
from sigmaff.heads.base import FORMER_DEFAULTS, UNTRAINED
from sigmaff.models import Potential
from sigmaff.models.tensors import write_tensors
from sigmaff.training.config import TrainingConfig
from sigmaff.training.state import TrainingState

CHECKPOINT = "checkpoint.safetensors"
VERSION = 2
"""Format 1 is read too. It formed pair vectors in float32: weights that start from data differ in the last digit."""
UNIT, RATE = "training.likelihood_unit", "training.head_learning_rate"

Tensors = Mapping[str, Mapping[str, Tensor]]
"""Tensors by group ("weights", "average", "best", "moments") and name."""


def write_checkpoint(path: Path, tensors: Tensors, state: TrainingState, identity: Mapping[str, Any]) -> None:
    described = {"version": VERSION, "library_version": version("sigmaff")}
    numbers = described | {"state": state.model_dump(mode="json"), "identity": identity}
    write_tensors(path, _flat(tensors), {"sigmaff_checkpoint": json.dumps(numbers)}, force=True)


def read_checkpoint(path: Path) -> tuple[dict[str, dict[str, Tensor]], TrainingState, dict[str, Any]]:
    """Tensors, state and identity of a run; its starting weights are unknown if it wrote format 1."""
    try:
        with safe_open(path, framework="pt") as file:
            numbers = json.loads(file.metadata()["sigmaff_checkpoint"])
            tensors = _nested({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 - not a mapping
        if numbers["version"] == 1:
            numbers["identity"].pop("starting weights")
        numbers["identity"].setdefault(UNIT, FORMER_DEFAULTS[UNIT])
        if numbers["version"] in (1, VERSION):
            return tensors, TrainingState.model_validate(numbers["state"]), _trained(numbers["identity"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path} is damaged or no checkpoint ({error}); start this training anew with --force"
        ) from error
    raise ModelFileError(
        f"{path}: written in checkpoint format {numbers['version']} by sigmaff {numbers.get('library_version')}; "
        f"this is sigmaff {version('sigmaff')}, which reads formats up to {VERSION}: install that version or a newer "
        "one, or use another directory"
    )


def as_begun(config: TrainingConfig, path: Path) -> TrainingConfig:
    """With the unit of likelihoods and the head's rate of the run of a checkpoint, if the settings do not name them."""
    try:
        _, _, identity = read_checkpoint(path)
    except (FileNotFoundError, ModelFileError):  # nothing to resume, or nothing that can be read: told on resuming
        return config
    return with_unnamed(config, {"likelihood_unit": identity[UNIT], "head_learning_rate": identity[RATE]})


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Step counts and moments by "parameter/quantity"."""
    return _flat(optimizer.state_dict()["state"])


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state = {int(index): moments for index, moments in _nested(tensors).items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _flat(groups: Mapping[Any, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}


def _nested(flat: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    nested: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        group, name = key.split("/", 1)
        nested.setdefault(group, {})[name] = tensor
    return nested


def identify(
    potential: Potential, train_set: GraphDataset, validation_set: GraphDataset, config: TrainingConfig, seed: int
) -> dict[str, Any]:
    """The identity of a run: settings by name, data and starting weights by digest."""
    settings = {"seed": seed, "training": config.trajectory(), "model": potential.config.model_dump(mode="json")}
    return {
        **_trained(flatten(settings)),
        "reference energies and scale": digest([json.dumps(_constants(potential.statistics)).encode()]),
        "starting weights": weights_digest(potential.state_dict()),
        "training set": digest(_data_bytes(train_set)),
        "validation set": digest(_data_bytes(validation_set)),
    }


def _trained(identity: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name not in UNTRAINED}


def _constants(statistics: DatasetStatistics) -> dict[str, Any]:
    """Without what follows from training set and reference energies, and was added after version 0.1.0."""
    added = ("open_compositions", "reference_std", "reference_source", "electrons", "shortest_distances")
    return {name: value for name, value in asdict(statistics).items() if name not in added}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    return digest(part for name in sorted(weights) for part in (name.encode(), _bytes(weights[name])))


def _data_bytes(dataset: GraphDataset, batch_size: int = 1000) -> Iterator[bytes]:
    """Structures and labels; not the pairs, which follow from them and the cutoff."""
    for indices in torch.arange(len(dataset)).split(batch_size):
        graph, labels = dataset.batch(indices)
        positions = graph.positions.to(graph.dtype)
        for tensor in (positions, graph.atomic_numbers, graph.structure_index, labels.energy, labels.forces):
            yield b"none" if tensor is None else _bytes(tensor)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
