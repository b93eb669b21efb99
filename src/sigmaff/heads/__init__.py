"""Heads: readouts that turn the embeddings of atoms into a distribution over the energy."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from sigmaff.graph import Embedding
from sigmaff.heads.base import EnergyDistribution, FitSummary, Head, HeadForceStdMethod, HeadSettings, Stage
from sigmaff.heads.deterministic import Deterministic, DeterministicConfig
from sigmaff.heads.evidential import Evidential, EvidentialConfig
from sigmaff.heads.gmdn import GMDN, GMDNConfig
from sigmaff.heads.gp.head import GP, GPConfig
from sigmaff.heads.latent_distance.head import LatentDistance, LatentDistanceConfig
from sigmaff.heads.llpr import LLPR, LLPRConfig
from sigmaff.heads.lnk.head import LNK, LNKConfig
from sigmaff.heads.observations import Observations
from sigmaff.heads.shallow_ensemble.head import ShallowEnsemble, ShallowEnsembleConfig
from sigmaff.heads.svgp import SVGP, SVGPConfig

REGISTERED: tuple[type[Head], ...] = (
    Deterministic,
    Evidential,
    GMDN,
    GP,
    LatentDistance,
    LLPR,
    LNK,
    ShallowEnsemble,
    SVGP,
)
HEADS: dict[str, type[Head]] = {head.Config.model_fields["name"].default: head for head in REGISTERED}
"""By the name in their settings."""

if TYPE_CHECKING:
    HeadConfig = HeadSettings
else:
    HeadConfig = Annotated[reduce(or_, (head.Config for head in REGISTERED)), Field(discriminator="name")]


def build_head(config: HeadConfig, embedding: Embedding, elements: tuple[int, ...]) -> Head:
    build: Any = HEADS[config.name]
    return build(config, embedding, elements)


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
    "FitSummary",
    "GMDNConfig",
    "GPConfig",
    "Head",
    "HeadConfig",
    "HeadForceStdMethod",
    "HeadSettings",
    "LLPRConfig",
    "LNKConfig",
    "LatentDistance",
    "LatentDistanceConfig",
    "Observations",
    "SVGPConfig",
    "ShallowEnsemble",
    "ShallowEnsembleConfig",
    "Stage",
    "build_head",
]
