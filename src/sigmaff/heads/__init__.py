"""Heads: readouts that turn the embeddings of atoms into a distribution over the energy."""

from typing import Annotated

from pydantic import Field

from sigmaff.graph import Embedding
from sigmaff.heads.base import EnergyDistribution, ForcesWay, Head, HeadSettings
from sigmaff.heads.deterministic import Deterministic, DeterministicConfig
from sigmaff.heads.evidential import Evidential, EvidentialConfig
from sigmaff.heads.gmdn import GMDN, GMDNConfig
from sigmaff.heads.gp import GP, GPConfig
from sigmaff.heads.latent_distance import LatentDistance, LatentDistanceConfig
from sigmaff.heads.llpr import LLPR, LLPRConfig
from sigmaff.heads.lnk.head import LNK, LNKConfig
from sigmaff.heads.shallow_ensemble import ShallowEnsemble, ShallowEnsembleConfig
from sigmaff.heads.svgp import SVGP, SVGPConfig

HeadConfig = Annotated[
    DeterministicConfig
    | EvidentialConfig
    | GMDNConfig
    | GPConfig
    | LatentDistanceConfig
    | LLPRConfig
    | LNKConfig
    | ShallowEnsembleConfig
    | SVGPConfig,
    Field(discriminator="name"),
]
HEADS: dict[str, type[Head]] = {
    "deterministic": Deterministic,
    "evidential": Evidential,
    "gmdn": GMDN,
    "gp": GP,
    "latent_distance": LatentDistance,
    "llpr": LLPR,
    "lnk": LNK,
    "shallow_ensemble": ShallowEnsemble,
    "svgp": SVGP,
}


def build_head(config: HeadConfig, embedding: Embedding, elements: tuple[int, ...]) -> Head:
    return HEADS[config.name](config, embedding, elements)


__all__ = [
    "GMDN",
    "GP",
    "HEADS",
    "LLPR",
    "LNK",
    "SVGP",
    "Deterministic",
    "DeterministicConfig",
    "EnergyDistribution",
    "Evidential",
    "EvidentialConfig",
    "ForcesWay",
    "GMDNConfig",
    "GPConfig",
    "Head",
    "HeadConfig",
    "HeadSettings",
    "LLPRConfig",
    "LNKConfig",
    "LatentDistance",
    "LatentDistanceConfig",
    "SVGPConfig",
    "ShallowEnsemble",
    "ShallowEnsembleConfig",
    "build_head",
]
