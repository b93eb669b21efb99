"""Backbones: networks that turn a graph into one invariant embedding per atom."""

from typing import Annotated

from pydantic import Field

from sigmaff.backbones.base import Backbone
from sigmaff.backbones.dimenet import DimeNetPP, DimeNetPPConfig
from sigmaff.backbones.nequip import NequIP, NequIPConfig
from sigmaff.backbones.schnet import SchNet, SchNetConfig

BackboneConfig = Annotated[SchNetConfig | DimeNetPPConfig | NequIPConfig, Field(discriminator="name")]
BACKBONES: dict[str, type[Backbone]] = {"schnet": SchNet, "dimenet++": DimeNetPP, "nequip": NequIP}


def build_backbone(config: BackboneConfig, elements: tuple[int, ...], mean_neighbors: float) -> Backbone:
    """``elements`` and ``mean_neighbors`` are those of the training data."""
    return BACKBONES[config.name](config, elements, mean_neighbors)


__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneConfig",
    "DimeNetPP",
    "DimeNetPPConfig",
    "NequIP",
    "NequIPConfig",
    "SchNet",
    "SchNetConfig",
    "build_backbone",
]
