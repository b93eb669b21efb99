"""Weights of groups of structures in the loss."""

from difflib import get_close_matches

import torch
from torch import Tensor

from sigmaff.data import GraphDataset, LabelledStructures
from sigmaff.data.structures import NO_GROUP
from sigmaff.errors import ConfigError
from sigmaff.training.config import TrainingConfig


def batch_weights(dataset: GraphDataset, indices: Tensor, config: TrainingConfig) -> Tensor | None:
    """Weights of the structures at these indices, (n_structures,); ``None`` if all count alike."""
    if not config.group_weights:
        return None
    groups = _groups(dataset)
    weights = [config.group_weights.get(groups[index], 1.0) for index in indices.tolist()]
    return torch.tensor(weights, dtype=torch.float64)


def with_mean_one(config: TrainingConfig, train_set: GraphDataset, validation_set: GraphDataset) -> TrainingConfig:
    """Weights of all groups, divided by their mean over training structures: the size of the loss stays as it is."""
    if not config.group_weights:
        return config
    mean = sum(config.group_weights.get(group, 1.0) for group in _groups(train_set)) / len(train_set)
    if mean == 0.0:
        raise ConfigError("training.group_weights: every training structure has a weight of 0; raise one of them")
    groups = {*_groups(train_set), *_groups(validation_set)}
    return config.model_copy(
        update={"group_weights": {group: config.group_weights.get(group, 1.0) / mean for group in sorted(groups)}}
    )


def check_groups(config: TrainingConfig, structures: LabelledStructures, section: str = "training") -> None:
    """Raise an error if the weights name a group that no structure belongs to."""
    if not config.group_weights:
        return
    known = sorted(set(structures.groups or ()))
    if not known:
        raise ConfigError(
            f"{section}.group_weights: the structures of {structures.source} name no groups. Give them a config_type, "
            "or name the key of their groups with group_key of the source"
        )
    for name in config.group_weights:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"{section}.group_weights: no structure of {structures.source} belongs to the group {name!r}; "
                f"nearest: {near}; known: {', '.join(known)}"
            )


def _groups(dataset: GraphDataset) -> tuple[str, ...]:
    return dataset.structures.groups or (NO_GROUP,) * len(dataset)
