"""Evidential regression: a Normal-Inverse-Gamma distribution over the energy of a structure, from four readouts.

    s² ~ Γ⁻¹(α, β),      μ ~ N(γ, s²/v),      E ~ N(μ, s²)

Four linear maps read each atom's embedding; their sums over the atoms of a structure are γ and, after a softplus, v,
α − 1 and β. So γ is additive and local as any energy. The softplus comes after the sum, and σ is a quotient of its
values: that of n far copies grows neither as n nor as √n.

| symbol | here |
|---|---|
| γ | ``mean``, in atoms ``node_mean`` |
| v | ``evidence`` |
| α − 1 | ``excess`` |
| β | ``scale`` |
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.ops import scatter_sum
from sigmaff.heads.base import EnergyDistribution, Head, HeadSettings

Kind = Literal["epistemic", "aleatoric", "total"]
FLOOR = 1e-6
"""Least v, α − 1 and β: a softplus underflows to zero, where neither σ nor the likelihood exist."""


class EvidentialConfig(HeadSettings):
    """Hyper-parameters of evidential regression."""

    name: Literal["evidential"] = "evidential"
    regularization: float = Field(
        default=0.2, ge=0, description="λ of the penalty λ|E − γ|(2v + α) on evidence where the energy is wrong"
    )
    std: Kind = Field(
        default="epistemic",
        description="the σ that is reported: of μ (epistemic), of energies about μ (aleatoric), or of both (total)",
    )


@dataclass(frozen=True, kw_only=True)
class NormalInverseGamma(EnergyDistribution):
    """A distribution over the mean μ and the variance s² of energies; (n_structures,) each."""

    evidence: Tensor  # v: how many observations of μ it is worth
    excess: Tensor  # α − 1: beside the 1, its digits would be lost
    scale: Tensor  # β

    def negative_log_likelihood(self, target: Tensor) -> Tensor:
        """−log of the marginal density of energies, a Student-t of 2α degrees of freedom; float64, (n_structures,).

        ½ log(πω) + log Γ(α) − log Γ(α + ½) + (α + ½) log(1 + (E − γ)²/ω),      ω = 2β(1 + 1/v)
        """
        shape = 1.0 + self.excess.double()
        width = 2.0 * self.scale.double() * (1.0 + 1.0 / self.evidence.double())
        misfit = (target.double() - self.mean.double()).square() / width
        normalisation = 0.5 * torch.log(math.pi * width) + torch.lgamma(shape) - torch.lgamma(shape + 0.5)
        return normalisation + (shape + 0.5) * torch.log1p(misfit)


class Evidential(Head):
    """Mean γ = Σ_i γ_i; variance β/(v(α − 1)) epistemic, β/(α − 1) aleatoric."""

    Config = EvidentialConfig
    method = "evidential"
    kind: Kind = "epistemic"
    distribution = NormalInverseGamma
    forces_weight = 0.9
    has_likelihood_loss = True

    def __init__(self, config: EvidentialConfig, embedding: Embedding, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        self.kind = config.std
        self.activation = embedding.activation
        self.linear = embedding.readout(4)  # γ, v, α − 1, β

    def forward(self, node_features: Tensor, graph: AtomicGraph) -> NormalInverseGamma:
        by_atom = self.linear(self.activation(node_features))
        summed = scatter_sum(by_atom, graph.structure_index, graph.n_structures)
        evidence, excess, scale = (functional.softplus(summed[:, 1:]) + FLOOR).unbind(-1)
        return NormalInverseGamma(
            mean=summed[:, 0],
            node_mean=by_atom[:, 0],
            variance=self._variance(evidence, excess, scale),
            evidence=evidence,
            excess=excess,
            scale=scale,
        )

    def _variance(self, evidence: Tensor, excess: Tensor, scale: Tensor) -> Tensor:
        """Var[μ], E[s²], or their sum, the variance of energies."""
        aleatoric = scale / excess
        epistemic = aleatoric / evidence
        return {"epistemic": epistemic, "aleatoric": aleatoric, "total": epistemic + aleatoric}[self.config.std]

    def take_readout(self, readout: nn.Linear) -> None:
        """γ of the trained readout; v, α and β stay as they are."""
        with torch.no_grad():
            self.linear.weight[0] = readout.weight[0]
            if self.linear.bias is not None:
                self.linear.bias[0] = readout.bias[0]

    def energy_losses(self, distribution: EnergyDistribution, target: Tensor, n_train: int) -> Tensor:
        """Negative log-likelihood + λ|E − γ|(2v + α)."""
        assert isinstance(distribution, NormalInverseGamma)
        return distribution.negative_log_likelihood(target) + self._penalties(distribution, target)

    def energy_penalties(self, distribution: EnergyDistribution, target: Tensor) -> Tensor:
        """λ|E − γ|(2v + α)."""
        assert isinstance(distribution, NormalInverseGamma)
        return self._penalties(distribution, target)

    def _penalties(self, distribution: NormalInverseGamma, target: Tensor) -> Tensor:
        evidence = 2.0 * distribution.evidence.double() + distribution.excess.double() + 1.0
        return self.config.regularization * ((target.double() - distribution.mean.double()).abs() * evidence)
