"""Backbones: networks that map a graph to one invariant embedding per atom."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.backbones.coordinates import Coordinates, CoordinatesConfig
from sigmaff.backbones.descriptor import Descriptor, DescriptorConfig
from sigmaff.backbones.dimenet import DimeNetPP, DimeNetPPConfig
from sigmaff.backbones.hosts import AdoptConfig, Host, HostConfig, build_host
from sigmaff.backbones.nequip import NequIP, NequIPConfig
from sigmaff.backbones.schnet import SchNet, SchNetConfig
from sigmaff.backbones.surroundings import Surroundings as Surroundings
from sigmaff.errors import ConfigError

REGISTERED: tuple[type[Backbone], ...] = (SchNet, DimeNetPP, NequIP, Coordinates, Descriptor)
BACKBONES: dict[str, type[Backbone]] = {kind.Config.model_fields["name"].default: kind for kind in REGISTERED}
"""By the name in their settings."""


def _named(settings: Any) -> Any:
    """``adopt`` alone says which settings these are."""
    return {"name": "adopt", **settings} if isinstance(settings, dict) and "adopt" in settings else settings


if TYPE_CHECKING:
    BackboneConfig = BackboneSettings
else:
    BackboneConfig = Annotated[
        reduce(or_, (*(kind.Config for kind in REGISTERED), HostConfig, AdoptConfig)),
        Field(discriminator="name"),
        BeforeValidator(_named),
    ]


def build_backbone(config: BackboneConfig, elements: tuple[int, ...], mean_neighbors: float) -> Backbone:
    """Build a backbone with new weights.

    Arguments:
        config: its hyper-parameters.
        elements: atomic numbers in the training data, sorted.
        mean_neighbors: mean number of neighbours of an atom in the training data.
    """
    if isinstance(config, HostConfig):
        return build_host(config)
    if isinstance(config, AdoptConfig):
        raise ConfigError(f"{config.adopt} is still to be read: sigmaff adopt, or a run with these settings, reads it")
    build: Any = BACKBONES[config.name]
    return build(config, elements, mean_neighbors)
