"""Backbones: networks that map a graph to one invariant embedding per atom."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from sigmaff.backbones.base import Backbone
from sigmaff.backbones.coordinates import Coordinates, CoordinatesConfig
from sigmaff.backbones.descriptor import Descriptor, DescriptorConfig
from sigmaff.backbones.dimenet import DimeNetPP, DimeNetPPConfig
from sigmaff.backbones.nequip import NequIP, NequIPConfig
from sigmaff.backbones.schnet import SchNet, SchNetConfig

BackboneConfig = Annotated[
    SchNetConfig | DimeNetPPConfig | NequIPConfig | CoordinatesConfig | DescriptorConfig, Field(discriminator="name")
]
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "schnet": SchNet,
    "dimenet++": DimeNetPP,
    "nequip": NequIP,
    "coordinates": Coordinates,
    "descriptor": Descriptor,
}


def build_backbone(config: BackboneConfig, elements: tuple[int, ...], mean_neighbors: float) -> Backbone:
    """Build a backbone with new weights.

    Arguments:
        config: its hyper-parameters.
        elements: atomic numbers in the training data, sorted.
        mean_neighbors: mean number of neighbours of an atom in the training data.
    """
    return BACKBONES[config.name](config, elements, mean_neighbors)
