"""Backbones: networks that turn a graph into one invariant embedding per atom."""

from sigmaff.backbones.base import Backbone
from sigmaff.backbones.schnet import SchNet, SchNetConfig

BackboneConfig = SchNetConfig
BACKBONES = {"schnet": SchNet}


def build_backbone(config: BackboneConfig, elements: tuple[int, ...], mean_neighbors: float) -> Backbone:
    """``elements`` and ``mean_neighbors`` are those of the training data."""
    return BACKBONES[config.name](config, elements, mean_neighbors)


__all__ = ["BACKBONES", "Backbone", "BackboneConfig", "SchNet", "SchNetConfig", "build_backbone"]
