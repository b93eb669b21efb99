"""The settings of a campaign."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sigmaff.backbones import AdoptConfig, HostConfig
from sigmaff.config import Settings
from sigmaff.data import DataSource, ReferenceEnergies, SplitConfig
from sigmaff.data.free_atoms import FREE_ATOM_METHODS
from sigmaff.data.labelling import EngineConfig
from sigmaff.evaluation import CalibrationMethod
from sigmaff.models import MonteCarloDropoutConfig, PotentialConfig
from sigmaff.runs.config import DataConfig, EnsembleConfig, RunConfig
from sigmaff.simulation.md import DynamicsConfig, Limit, MDConfig
from sigmaff.tasks import ClusterConfig
from sigmaff.training import TrainingConfig

SelectionMethod = Literal["max_det", "k_centre", "variance_reduction", "sigma", "random"]
FREE: dict[str, Any] = {"output": True, "cluster": True, "stop": True, "engine": {"time_limit"}}
"""Settings that may change when a campaign is resumed: they decide when it ends and where it runs."""


class StartConfig(Settings):
    """The structures that are labelled first."""

    source: DataSource | None = Field(default=None, description="a file of structures")
    molecules: tuple[str, ...] = Field(
        default=(), description="names of molecules that ASE knows (its G2 set), instead of a file: CH3CH2OH, ..."
    )
    n_labels: int = Field(
        default=20, ge=2, description="first structures, drawn at random; if too few are given, add displaced copies"
    )
    displacement: float = Field(default=0.05, gt=0, description="Å, standard deviation of each coordinate of a copy")
    use_labels: bool = Field(
        default=False, description="take energies and forces from the file (same engine); false: compute them"
    )

    @model_validator(mode="after")
    def _structures_from_one_place(self) -> Self:
        if (self.source is None) == (not self.molecules):
            raise ValueError("start needs structures: give a source, or molecules, and not both")
        if self.use_labels and self.source is None:
            raise ValueError("start.use_labels: molecules have no labels; give a source with energies and forces")
        return self


class ExploreConfig(DynamicsConfig):
    """Where candidates come from: guarded molecular dynamics with the current model, or a file.

    Below the limit ``trust_below`` the model is trusted. Replicas continue beyond it and stop at ``select.upper`` times
    the limit; candidates lie in between. "auto" is the largest force σ of a held-out structure, or less if the errors
    of frames drawn at random from earlier rounds ask for it. ``stop_above`` is the old name of ``trust_below``.
    """

    pool: DataSource | None = Field(
        default=None, description="file of candidates; then no MD runs, and of the settings below only the limit counts"
    )
    starts: int = Field(default=4, ge=1, description="labelled structures that start MD in each round")
    temperature: tuple[float, ...] = Field(default=(300.0,), min_length=1, description="K; each start runs at each")
    steps: int = Field(default=2000, ge=1, description="steps of each replica")
    trust_below: Limit = Field(
        default="auto",
        description="eV/Å; trust the model where the largest force σ of an atom is below this; replicas stop at "
        "select.upper times it; auto: by error_above and risk; null: no limit",
    )
    error_above: float | None = Field(default=0.5, gt=0, description="eV/Å; largest tolerated force error of an atom")
    risk: float = Field(
        default=0.1, gt=0, lt=1, description="chance that a structure is below the limit and yet has a larger error"
    )

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "stop_above" not in values:
            return values
        if "trust_below" in values:
            raise ValueError("stop_above is the old name of trust_below; give only trust_below")
        return {"trust_below" if key == "stop_above" else key: value for key, value in values.items()}

    @model_validator(mode="after")
    def _possible_limit(self) -> Self:
        self.check_limit("trust_below", self.trust_below)
        return self

    def moves(self, temperature: float, stop_above: float | None, seed: int) -> MDConfig:
        """The settings of all replicas at one temperature. stop_above: eV/Å."""
        fields = self.model_dump(include=set(DynamicsConfig.model_fields))
        return MDConfig.model_validate(fields | {"temperature": (temperature,), "stop_above": stop_above, "seed": seed})


class SelectConfig(Settings):
    """Which candidates are labelled."""

    n: int = Field(default=10, ge=1, description="labels per round, those to hold out included")
    method: SelectionMethod = Field(
        default="max_det",
        description="max_det: one by one the candidate of largest energy variance, given those chosen before; "
        "k_centre: the one farthest from those chosen before; variance_reduction (LNK, LLPR): the one whose label "
        "removes the largest share of the force variance, averaged over all candidates by σ; sigma: largest force σ, "
        "also where a model lacks what a method needs; random: any candidates",
    )
    cost_power: float = Field(
        default=1.0,
        ge=0,
        description="max_det, k_centre, variance_reduction: gain is divided by (number of atoms)**cost_power; 0: all "
        "labels cost the same",
    )
    lower: float = Field(
        default=0.5, ge=0, description="skip candidates of smaller σ; in units of the limit on σ, once it is guaranteed"
    )
    upper: float = Field(
        default=1.5, gt=0, description="skip candidates of larger σ, and stop replicas there; in units of the limit"
    )
    max_candidates: int = Field(
        default=1000, ge=1, description="candidates that variance_reduction compares, drawn from all that qualify"
    )

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if self.lower >= self.upper:
            raise ValueError(f"select: nothing lies between lower = {self.lower:g} and upper = {self.upper:g}")
        return self


class RetrainConfig(Settings):
    """When the backbone is trained on new labels. In other rounds only the head is fitted, which is fast.

    Not for an adopted network: in every round only its head is fitted.
    """

    every: int | None = Field(default=None, ge=1, description="train every n-th round; null: by growth")
    growth: float | None = Field(
        default=1.5, gt=1, description="train once the training set has grown by this factor; null: never"
    )
    weights: Literal["scratch", "continue"] = Field(
        default="scratch", description="start a training from random weights, or continue from the last backbone"
    )

    def due(self, n_rounds: int, n_train: int, n_train_before: int) -> bool:
        """Whether to train, so many rounds and with such a training set after the last training."""
        late = self.every is not None and n_rounds >= self.every
        return late or (self.growth is not None and n_train >= self.growth * n_train_before)


class StopConfig(Settings):
    """When a campaign ends: at a budget, or when all given aims hold in one round."""

    max_rounds: int = Field(default=20, ge=1, description="rounds of exploration")
    max_labels: int | None = Field(default=None, ge=2, description="labelled structures; null: no limit")
    share_above: float | None = Field(
        default=0.02,
        ge=0,
        le=1,
        description="aim: largest share of exploration frames beyond the limit on σ, or not reached because of it; "
        "counts only if the limit is guaranteed; null: no aim",
    )
    forces_mae: float | None = Field(default=None, gt=0, description="aim: eV/Å, of the test structures; null: no aim")
    calibration: float | None = Field(
        default=None, gt=0, description="aim: calibration score of the force σ of the test structures; null: no aim"
    )


class CampaignConfig(Settings):
    """A whole campaign."""

    start: StartConfig = Field(description="structures that are labelled first")
    engine: EngineConfig = Field(default=EngineConfig(), description="engine that computes labels")
    model: PotentialConfig = Field(default=PotentialConfig(), description="model to train")
    ensemble: EnsembleConfig | None = Field(default=None, description="train several, predict with all; null: one")
    mc_dropout: MonteCarloDropoutConfig | None = Field(default=None, description="predict with dropout; null: without")
    training: TrainingConfig = Field(default=TrainingConfig(), description="how the backbone is trained")
    retrain: RetrainConfig = Field(default=RetrainConfig(), description="when the backbone is trained")
    reference_energies: ReferenceEnergies | None = Field(
        default=None,
        description="energy of each element: least_squares, gfn2-xtb, gfn1-xtb, or values in eV by symbol; null: that "
        "of the engine where it is gfn2-xtb or gfn1-xtb, else least_squares",
    )
    calibration: CalibrationMethod = Field(default="auto", description="how σ is calibrated on held-out structures")
    hold_out_every: int = Field(
        default=5,
        ge=2,
        description="hold out one in n labels to stop early and calibrate, in each round frames drawn at random",
    )
    explore: ExploreConfig = Field(default=ExploreConfig(), description="where candidates come from")
    select: SelectConfig = Field(default=SelectConfig(), description="which candidates are labelled")
    stop: StopConfig = Field(default=StopConfig(), description="when the campaign ends")
    test: DataSource | None = Field(default=None, description="labelled structures to monitor the error; null: none")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="where labels, MD and ensemble members run")
    output: Path = Field(default=Path("campaign"), description="directory of the campaign")
    seed: int = Field(default=0, ge=0, description="random seed")

    @property
    def _references(self) -> ReferenceEnergies:
        if self.reference_energies is not None:
            return self.reference_energies
        return next((method for method in FREE_ATOM_METHODS if method == self.engine.calculator), "least_squares")

    @property
    def trains(self) -> bool:
        """Whether a network is trained: an adopted one is not, and each round only solves for its head."""
        return not isinstance(self.model.backbone, AdoptConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Raise an error for contradictions before the first label is computed."""
        if isinstance(self.model.backbone, HostConfig):
            raise ValueError("model.backbone describes a network without its weights; write adopt: its source")
        for name, unset in (("training", TrainingConfig()), ("retrain", RetrainConfig())):
            if not self.trains and getattr(self, name) != unset:
                raise ValueError(f"{name}: an adopted network is not trained, only its head is solved; leave it out")
        run = self.run(Path("dataset.extxyz"), Path("fit"), None)
        if not run.has_std and not (self.select.method == "random" and self.explore.trust_below is None):
            raise ValueError(
                f"the {self.model.head.name} head has no σ to select or stop by: choose another, or set select.method "
                "to random and explore.trust_below to null"
            )
        one_by_one = self.ensemble is not None or not self.model.head.takes_backbone
        if one_by_one and (self.retrain.every != 1 or self.retrain.weights != "scratch"):
            what = "an ensemble" if self.ensemble is not None else f"the {self.model.head.name} head"
            raise ValueError(f"retrain: {what} is trained as a whole; set every to 1 and weights to scratch")
        if self.training.n_nodes > 1:
            raise ValueError("training: a campaign trains on one node, on all of its devices; set n_nodes to 1")
        if self.training.devices > 1 and self.retrain.weights == "continue":
            raise ValueError("retrain: a training on several devices starts at random; set weights to scratch")
        if self.start.n_labels < 2 * self.hold_out_every:
            raise ValueError(
                f"start.n_labels is {self.start.n_labels}; with one of {self.hold_out_every} held out, at least "
                f"{2 * self.hold_out_every} are needed"
            )
        if self.stop.max_labels is not None and self.stop.max_labels < self.start.n_labels:
            raise ValueError(f"stop.max_labels is {self.stop.max_labels}, less than start.n_labels")
        if self.test is None and (self.stop.forces_mae is not None or self.stop.calibration is not None):
            raise ValueError("stop.forces_mae and stop.calibration are aims on test structures: give test")
        return self

    def run(self, dataset: Path, output: Path, backbone_from: Path | None) -> RunConfig:
        """The training of one round, as a run of its own."""
        names = ("model", "training", "ensemble", "mc_dropout", "calibration", "seed")
        shared = {name: getattr(self, name) for name in names}
        split = SplitConfig(kind="random")  # not used: a round holds out labels by their number
        data = DataConfig(source=DataSource(path=dataset), split=split, reference_energies=self._references)
        return RunConfig(**shared, data=data, backbone_from=backbone_from, output=output)
