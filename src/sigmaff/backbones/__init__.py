"""Backbones: networks that turn a graph into one invariant embedding per atom."""

from sigmaff.backbones.base import Backbone
from sigmaff.backbones.schnet import SchNet, SchNetConfig

BackboneConfig = SchNetConfig
BACKBONES = {"schnet": SchNet}


def build_backbone(config: BackboneConfig) -> Backbone:
    return BACKBONES[config.name](config)


__all__ = ["BACKBONES", "Backbone", "BackboneConfig", "SchNet", "SchNetConfig", "build_backbone"]
