"""Heads: readouts that turn the embeddings of atoms into a distribution over the energy."""

from typing import Annotated

from pydantic import Field

from sigmaff.heads.base import EnergyDistribution, ForcesWay, Head, HeadSettings
from sigmaff.heads.deterministic import Deterministic, DeterministicConfig
from sigmaff.heads.evidential import Evidential, EvidentialConfig
from sigmaff.heads.gmdn import GMDN, GMDNConfig
from sigmaff.heads.lnk.head import LNK, LNKConfig
from sigmaff.readout import Embedding

HeadConfig = Annotated[DeterministicConfig | EvidentialConfig | GMDNConfig | LNKConfig, Field(discriminator="name")]
HEADS: dict[str, type[Head]] = {"deterministic": Deterministic, "evidential": Evidential, "gmdn": GMDN, "lnk": LNK}


def build_head(config: HeadConfig, embedding: Embedding, elements: tuple[int, ...]) -> Head:
    return HEADS[config.name](config, embedding, elements)


__all__ = [
    "GMDN",
    "HEADS",
    "LNK",
    "Deterministic",
    "DeterministicConfig",
    "EnergyDistribution",
    "Evidential",
    "EvidentialConfig",
    "ForcesWay",
    "GMDNConfig",
    "Head",
    "HeadConfig",
    "HeadSettings",
    "LNKConfig",
    "build_head",
]
