"""Last-layer prediction rigidity (Bigi, Chong, Ceriotti and Grasselli, 2024).

    σ² = α² fᵀ (FᵀF + ς²)⁻¹ f,      f = Σ_i a(h_i)

with f the activated embeddings of a structure, on which the last linear map acts, and one such row in F for every
label. This is the closed-form LNK with a linear kernel that all elements share, beside the backbone's own energy.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from sigmaff.graph import Embedding
from sigmaff.heads.base import Head, HeadSettings, SampledHeadSettings, Stage
from sigmaff.heads.lnk.head import LNK, LNKConfig


class LLPRConfig(SampledHeadSettings):
    """Hyper-parameters of last-layer prediction rigidity."""

    name: Literal["llpr"] = "llpr"
    variance_labels: Literal["energy", "energy+forces"] = Field(
        default="energy",
        description="labels that reduce the variance of forces; force rows enter with a weight chosen on held-out data",
    )
    n_samples: int = Field(default=16, ge=1, le=1024, description="last layers drawn for sampled force σ")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return ("backbone", "solve")

    def as_lnk(self) -> LNKConfig:
        return LNKConfig(
            kernel="linear",
            by_element=False,
            mean="backbone",
            distance_aware=False,
            variance_labels=self.variance_labels,
            n_inducing=1,
            n_samples=self.n_samples,
            draws=self.draws,
            n_frequencies=1,
        )


class LLPR(LNK):
    """The energy of the backbone, with the rigidity of its last layer as σ."""

    Config: ClassVar[type[HeadSettings]] = LLPRConfig
    method = "llpr"
    node_variance = Head.node_variance  # elements share their weights, so that no share has a mean to deviate from

    def __init__(self, config: LLPRConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        n_features = embedding.n_blocks * embedding.n_features
        super().__init__(config.as_lnk(), replace(embedding, n_blocks=1, n_features=n_features), elements)
