"""The settings of the Localized Neural Kernel."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sigmaff.heads.base import SampledHeadSettings, Stage
from sigmaff.heads.comparison import Compared
from sigmaff.heads.lnk.inducing import Placement, PointSettings
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener

MOST_ELEMENTS = 25
"""With a kernel of their own each: the weights of a linear one are as many as (features + 1) · elements."""


class LNKConfig(SampledHeadSettings):
    """Hyper-parameters of the Localized Neural Kernel."""

    name: Literal["lnk"] = "lnk"
    kernel: Literal["rbf", "linear", "rbf+linear", "matern52"] = Field(
        default="linear",
        description="covariance of the embeddings of two atoms of one element: that of a last layer of random weights "
        "(linear), one that falls off with distance (rbf; the paper's; matern52), or the sum of both",
    )
    features: Literal["last", "all_layers"] = Field(
        default="last",
        description="closed form with kernel linear only: what σ compares, the embedding (last), or also the features "
        "of an atom after each message-passing step (all_layers; for DimeNet++, whose embeddings are those, the same)",
    )
    by_element: bool = Field(
        default=True,
        description="whether atoms of different elements are independent, or compared as if of one; a closed form with "
        f"a linear kernel of more than {MOST_ELEMENTS} elements compares them as if of one",
    )
    covariance: Literal["full", "diagonal"] = Field(
        default="full",
        description="variance of an energy: over all pairs of atoms (full: σ of n far copies grows as n), or over each "
        "atom by itself (diagonal: as √n; the paper's)",
    )
    mean: Literal["constant", "backbone", "residual"] = Field(
        default="residual",
        description="predicted energy: a constant plus the Gaussian process (constant; the paper's), the backbone's "
        "own readout unchanged (backbone), or the readout plus the Gaussian process of its error (residual)",
    )
    fit: Literal["closed_form", "variational"] = Field(
        default="closed_form",
        description="closed_form: train the backbone, freeze it, solve for the posterior; variational: gradient "
        "descent on the predictive log-likelihood (the paper's)",
    )
    freeze_backbone: bool = Field(
        default=True,
        description="variational fit only: train the backbone first and keep it (the paper's fixed-LNK), or "
        "continue to train it together with the process (the paper's LNK)",
    )
    from_scratch: bool = Field(
        default=False,
        description="variational fit with freeze_backbone false: after a warm-up of a tenth of the epochs with the "
        "readout, network and process are trained together (as in the paper), not after a whole training",
    )
    start: Literal["solve", "prior"] = Field(
        default="solve",
        description="variational fit only: begin with the posterior that the closed form gives, or with the prior",
    )
    objective: Literal["predictive", "elbo"] = Field(
        default="predictive",
        description="variational fit only: log-likelihood of energies under the predictive distribution (the paper's), "
        "or its expectation, which bounds the evidence (elbo); both less the divergence from the prior",
    )
    variance_labels: Literal["energy", "energy+forces"] = Field(
        default="energy",
        description="closed form only: labels that reduce the variance of forces; force rows enter with a weight "
        "chosen on held-out data, which may be zero. The variance of energies always comes from energies",
    )
    selection: Literal["held_out", "marginal_likelihood"] = Field(
        default="held_out",
        description="closed form only: criterion for lengthscale, scales, noise and the weight of force rows: the "
        "likelihood of held-out energies and forces, or that of the training set, which makes σ too narrow",
    )
    embedding: Compared = Field(
        default="activated",
        description="what a kernel that falls off with distance compares: the activated embedding, features weighed as "
        "the readout does (activated), or the embedding before its activation (pre_activation; the authors' code)",
    )
    n_inducing: int = Field(
        default=100,
        ge=1,
        le=20_000,
        description="inducing points of a kernel that falls off with distance, shared out over the elements",
    )
    inducing: Placement = Field(
        default="farthest",
        description="where inducing points are: far apart, centres of clusters (kmeans), at random, or on the first "
        "atoms of the training set (first_k; the paper's)",
    )
    readout_pairs: bool = Field(
        default=True,
        description="whether two of the inducing points of each element, if it has three, lie along the readout on "
        "both sides of the mean; a long lengthscale makes them a slope, which is the readout itself",
    )
    lengthscale_factor: float = Field(
        default=10.0,
        gt=0,
        le=1e4,
        description="variational fit only: lengthscale at the start, in units of the mean distance between inducing "
        "points of an element; the closed form tries several",
    )
    distance_aware: bool = Field(
        default=True,
        description="closed form only: add what is unknown about surroundings unlike all of the training set, such as "
        "a broken bond: a σ of up to distance_prior for each atom, by distance in a descriptor that is not learned",
    )
    distance_prior: float = Field(
        default=4.0,
        gt=0,
        le=1000,
        description="eV; σ of the energy of an atom of which nothing is known: what it is worth in a molecule or solid",
    )
    n_directions: int = Field(
        default=20_000,
        ge=1,
        le=20_000,
        description="all_layers only: directions of the weights that energies determine, at most; the fit sets it to "
        "the number of training energies, if that is smaller",
    )
    n_samples: int = Field(default=16, ge=1, le=1024, description="posterior functions drawn for sampled force σ")
    n_frequencies: int = Field(
        default=512, ge=1, le=8192, description="random Fourier features of each of these functions"
    )

    unwritten: ClassVar[Mapping[str, Any]] = {
        **SampledHeadSettings.unwritten,
        "features": "last",
        "n_directions": 20_000,
    }

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.from_scratch and (self.freeze_backbone or self.fit != "variational"):
            raise ValueError("from_scratch goes with fit 'variational' and freeze_backbone false")
        needed = {"fit": "closed_form", "kernel": "linear", "variance_labels": "energy", "selection": "held_out"}
        if self.features == "all_layers" and any(getattr(self, name) != value for name, value in needed.items()):
            choices = ", ".join(f"{name} '{value}'" for name, value in needed.items())
            raise ValueError(f"features 'all_layers' go with {choices}; choose these, or features 'last'")
        return self

    @property
    def wants_layers(self) -> bool:
        return self.features == "all_layers"

    @property
    def idle(self) -> tuple[str, ...]:
        """Of the closed form, of a variational fit, of stationary kernels, and of sampled forces."""
        is_solved = self.fit == "closed_form"
        names = [] if not is_solved else ["lengthscale_factor", "start", "objective", "from_scratch"]
        names += ["distance_aware", "distance_prior"] if not is_solved else []
        names += ["embedding", "inducing", "readout_pairs", "lengthscale_factor"] if self.kernel == "linear" else []
        return (*names, "draws") if self.covariance == "diagonal" else tuple(names)

    @property
    def has_atom_std(self) -> bool:
        return self.by_element

    @property
    def begins_solved(self) -> bool:
        return self.fit == "variational" and self.start == "solve" and self.mean != "backbone"

    @property
    def learning_rate(self) -> float:
        """Of a process that begins with a solution 0.001: 0.01 leads away from it, and hundreds of steps back."""
        return 1e-3 if self.begins_solved else 1e-2

    @property
    def points(self) -> PointSettings:
        return PointSettings(
            placement=self.inducing, readout_pairs=self.readout_pairs, lengthscale_factor=self.lengthscale_factor
        )

    @property
    def wants_surroundings(self) -> bool:
        return self.distance_aware and self.fit == "closed_form"

    @property
    def unsolvable(self) -> str | None:
        """Why these settings do not go with the fit closed_form, if they do not."""
        if self.mean == "constant":
            return "mean 'constant' needs fit 'variational'; closed_form takes backbone or residual"
        if self.covariance == "diagonal":
            return (
                "covariance 'diagonal' needs fit 'variational': it adds up variances of shares of atoms, and labels "
                "determine only the sum of shares; closed_form takes full"
            )
        return None

    def sized_for(self, train: Observations, seed: int, listener: Listener) -> Self:
        changes: dict[str, Any] = {}
        if self.by_element and "linear" in self.kernel and len(train.elements) > MOST_ELEMENTS:
            found = f"{len(train.elements)} elements, more than {MOST_ELEMENTS}"
            listener.tell(f"{found}: the kernel compares atoms of all elements as if of one (by_element: false)")
            changes["by_element"] = False
        if self.features == "all_layers":
            changes["n_directions"] = min(self.n_directions, len(train))
        return self.model_copy(update=changes)

    @property
    def stages(self) -> tuple[Stage, ...]:
        if self.fit == "closed_form":
            return ("backbone", "solve")
        if self.freeze_backbone:
            return ("backbone", "head")
        return ("warmup", "joint") if self.from_scratch else ("backbone", "joint")
