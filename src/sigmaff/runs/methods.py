"""All methods by name: what they train, how they predict, and how their σ grows with size."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from sigmaff.backbones import BackboneConfig, CoordinatesConfig, DescriptorConfig
from sigmaff.data import DatasetStatistics
from sigmaff.heads import (
    HEADS,
    DeterministicConfig,
    EvidentialConfig,
    GMDNConfig,
    GPConfig,
    Head,
    HeadConfig,
    LatentDistanceConfig,
    LLPRConfig,
    LNKConfig,
    ShallowEnsembleConfig,
    SVGPConfig,
)
from sigmaff.models import MonteCarloDropoutConfig, Potential, PotentialConfig
from sigmaff.runs.config import EnsembleConfig, RunConfig

Growth = Literal["n", "√n", "not by n"]
"""How energy σ grows with n distant copies of a structure."""

DETERMINISTIC = DeterministicConfig()
ENSEMBLE_SIZE = 5
ELEMENTS = (1, 6, 7, 8)
"""Elements of the models whose parameters are counted."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The changes that a method makes to a run: another head, or several predictions with one potential."""

    title: str  # as in the literature
    head: HeadConfig = DETERMINISTIC
    backbone: BackboneConfig | None = None  # None: that of the run
    dropout: float = 0.0  # of the backbone
    ensemble: EnsembleConfig | None = None
    mc_dropout: MonteCarloDropoutConfig | None = None
    sampled_from: str | None = None  # the method whose trained model this one samples
    seed: int = 0  # added to the seed of the run
    growth: Growth

    @property
    def takes_backbone(self) -> bool:
        """Whether it can use a trained backbone."""
        return self.head.takes_backbone and self.backbone is None

    @property
    def is_scaled(self) -> bool:
        """Whether σ is scaled to errors of validation structures before any calibration: solved on a backbone."""
        return self.takes_backbone and "solve" in self.head.stages

    @property
    def sources(self) -> tuple[str, ...]:
        """Methods whose models it needs."""
        if self.is_joined:
            return tuple(ensemble_members(self.n_members))
        if self.sampled_from is not None:
            return (self.sampled_from,)
        return ("backbone",) if self.takes_backbone else ()

    @property
    def trains(self) -> str | None:
        """What it trains, for people; ``None`` if it is solved on any network."""
        if self.ensemble is not None:
            return "its members are trained from other seeds"
        if self.dropout > 0:
            return "its network is trained with dropout"
        is_solved = "solve" in self.head.stages or self.head == DETERMINISTIC
        return None if is_solved else "it is trained"

    @property
    def is_joined(self) -> bool:
        """Whether it is an ensemble of models that others make; members on draws of the data are its own."""
        return self.ensemble is not None and not self.ensemble.bootstrap

    @property
    def cost(self) -> int:
        """Trainings that it takes beside those of its sources; a member of an ensemble counts as all of them."""
        if self.seed:
            return ENSEMBLE_SIZE
        is_solved = self.sampled_from is not None or "solve" in self.head.stages
        return 0 if self.is_joined or is_solved else self.n_members

    @property
    def n_members(self) -> int:
        return 1 if self.ensemble is None else self.ensemble.size

    @property
    def n_trainings(self) -> int:
        """Number of backbones that it trains if none is trained yet."""
        return 0 if self.backbone is not None and not self.head.trains_on_backbone else self.n_members

    @property
    def n_passes(self) -> int:
        """Passes through a network for energies, forces and energy σ."""
        return self.n_members if self.mc_dropout is None else self.mc_dropout.n_samples

    @property
    def std_of(self) -> list[str]:
        """Quantities that have a σ: energy, forces, atom."""
        head, has_members = HEADS[self.head.name], self.ensemble is not None or self.mc_dropout is not None
        has_std = {
            "energy": head.kind is not None,
            "forces": bool(head.force_std_methods),
            "atom": head.node_variance is not Head.node_variance and self.head.has_atom_std and not has_members,
        }
        return [name for name, has_it in has_std.items() if has_it or (has_members and name != "atom")]

    def n_parameters(self, backbone: BackboneConfig) -> int:
        """Count the parameters of all networks and heads, for four elements.

        Arguments:
            backbone: used if the method has no backbone of its own.
        """
        config = PotentialConfig(backbone=self.backbone or backbone, head=self.head)
        references = dict.fromkeys(ELEMENTS, 0.0)
        statistics = DatasetStatistics(
            elements=ELEMENTS, reference_energies=references, scale=1.0, mean_neighbors=1.0, n_structures=1
        )
        with torch.device("meta"):
            potential = Potential(config, statistics)
        return self.n_members * sum(parameter.numel() for parameter in potential.parameters())

    def settings(self, run: RunConfig) -> RunConfig:
        """Return the run with this method. If the run has the same head, the settings of that head are kept."""
        backbone, head = self.backbone or run.model.backbone, self.head
        if run.model.head.name == head.name and run.model.head.stages == head.stages:
            head = run.model.head
        if self.dropout > 0:
            backbone = backbone.model_copy(update={"dropout": self.dropout})
        changes = {
            "model": run.model.model_copy(update={"backbone": backbone, "head": head}),
            "ensemble": self.ensemble,
            "mc_dropout": self.mc_dropout and (run.mc_dropout or self.mc_dropout),
            "head_training": run.head_training if self.head.trains_on_backbone else None,
            "backbone_from": None,
            "seed": run.seed + self.seed,
            "ood": {} if self.seed else run.ood,
        }
        return run.model_copy(update=changes)


PAPERS_LNK = LNKConfig(
    kernel="rbf",
    by_element=False,
    mean="constant",
    covariance="diagonal",
    fit="variational",
    freeze_backbone=False,
    n_samples=64,
    variance_labels="energy+forces",
)
"""Its forces are never sampled, and it is not solved: the last two settings are those of finished cells."""

LNK_DROPOUT = 0.01
"""Of LNK trained with its network. The paper has 1 and 5 % on QM7-X and names no rate for MD17; 5 % costs accuracy."""

METHODS: dict[str, Method] = {
    "backbone": Method(title="backbone alone", growth="not by n"),
    "ensemble": Method(title="deep ensemble", ensemble=EnsembleConfig(size=ENSEMBLE_SIZE), growth="n"),
    "mc_dropout": Method(
        title="Monte Carlo dropout", dropout=0.2, mc_dropout=MonteCarloDropoutConfig(n_samples=5), growth="not by n"
    ),
    "evidential": Method(title="evidential regression", head=EvidentialConfig(), growth="not by n"),
    "gmdn": Method(title="graph mixture density network", head=GMDNConfig(), growth="not by n"),
    "gp": Method(
        title="exact GP, hand-crafted descriptor", head=GPConfig(), backbone=DescriptorConfig(), growth="not by n"
    ),
    "svgp": Method(
        title="sparse variational GP, raw coordinates",
        head=SVGPConfig(),
        backbone=CoordinatesConfig(n_atoms=32),
        growth="not by n",
    ),
    "svgp_dkl": Method(title="SVGP with a deep kernel", head=SVGPConfig(), growth="not by n"),
    "lnk": Method(title="LNK, end to end with dropout", head=PAPERS_LNK, dropout=LNK_DROPOUT, growth="√n"),
    "mcd_lnk": Method(
        title="LNK with dropout at prediction",
        head=PAPERS_LNK,
        dropout=LNK_DROPOUT,
        mc_dropout=MonteCarloDropoutConfig(n_samples=5),
        sampled_from="lnk",
        growth="not by n",
    ),
    "fixed_lnk_variational": Method(
        title="fixed-LNK, variational", head=PAPERS_LNK.model_copy(update={"freeze_backbone": True}), growth="√n"
    ),
    "fixed_lnk_by_element": Method(
        title="fixed-LNK, variational, elements apart",
        head=PAPERS_LNK.model_copy(update={"freeze_backbone": True, "by_element": True}),
        growth="√n",
    ),
    "fixed_lnk": Method(title="fixed-LNK, closed form", head=LNKConfig(), growth="n"),
    "llpr": Method(title="last-layer prediction rigidity", head=LLPRConfig(), growth="n"),
    "shallow_ensemble": Method(title="last-layer ensemble", head=ShallowEnsembleConfig(), growth="n"),
    "latent_knn": Method(
        title="latent distance, nearest neighbours", head=LatentDistanceConfig(distance="knn"), growth="n"
    ),
    "latent_mahalanobis": Method(
        title="latent distance, Mahalanobis", head=LatentDistanceConfig(distance="mahalanobis"), growth="n"
    ),
    "latent_mixture": Method(
        title="latent distance, Gaussian mixture", head=LatentDistanceConfig(distance="mixture"), growth="n"
    ),
}


def methods_of(run: RunConfig) -> dict[str, Method]:
    """All methods, the ensemble as the run describes one, and its members."""
    ensemble = METHODS["ensemble"] if run.ensemble is None else replace(METHODS["ensemble"], ensemble=run.ensemble)
    members = ensemble_members(ensemble.n_members) if ensemble.is_joined else {}
    return METHODS | members | {"ensemble": ensemble}


def ensemble_members(size: int) -> dict[str, Method]:
    """Return the members of an ensemble by name: the backbone, and backbones from other seeds."""
    backbone = METHODS["backbone"]
    return {"backbone": backbone, **{f"member-{n}": replace(backbone, seed=n) for n in range(1, size)}}
