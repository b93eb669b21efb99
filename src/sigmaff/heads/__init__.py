"""Heads: readouts that turn the embeddings of atoms into a distribution over the energy."""

from typing import Annotated

from pydantic import Field
from torch import nn

from sigmaff.heads.base import EnergyDistribution, Head
from sigmaff.heads.deterministic import Deterministic, DeterministicConfig
from sigmaff.heads.lnk.head import LNK, LNKConfig

HeadConfig = Annotated[DeterministicConfig | LNKConfig, Field(discriminator="name")]
HEADS: dict[str, type[Head]] = {"deterministic": Deterministic, "lnk": LNK}


def build_head(config: HeadConfig, n_features: int, activation: nn.Module, elements: tuple[int, ...]) -> Head:
    return HEADS[config.name](config, n_features, activation, elements)


__all__ = [
    "HEADS",
    "LNK",
    "Deterministic",
    "DeterministicConfig",
    "EnergyDistribution",
    "Head",
    "HeadConfig",
    "LNKConfig",
    "build_head",
]
