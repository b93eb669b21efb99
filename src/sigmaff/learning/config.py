"""The settings of a campaign."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sigmaff.data import DataSource, ReferenceEnergies
from sigmaff.data.labelling import EngineConfig
from sigmaff.evaluation import CalibrationMethod
from sigmaff.models import MonteCarloDropoutConfig, PotentialConfig
from sigmaff.runs.config import DataConfig, EnsembleConfig, RunConfig
from sigmaff.simulation.md import MDConfig
from sigmaff.tasks import ClusterConfig
from sigmaff.training import TrainingConfig

SelectionMethod = Literal["variance_reduction", "sigma", "random"]
FREE: dict[str, Any] = {"output": True, "cluster": True, "stop": True, "engine": {"time_limit"}}
"""Settings that decide how far a campaign goes and where it runs, not what it does: they may change as it goes."""


class StartConfig(BaseModel):
    """The structures that are labelled before there is a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: DataSource | None = Field(default=None, description="a file of structures")
    molecules: tuple[str, ...] = Field(
        default=(), description="names of molecules that ASE knows (its G2 set), instead of a file: CH3CH2OH, ..."
    )
    n_labels: int = Field(
        default=20,
        ge=2,
        description="structures to begin with: drawn from those that there are; if they are fewer, displaced copies "
        "of them make up the number",
    )
    displacement: float = Field(default=0.05, gt=0, description="Å, standard deviation of each coordinate of a copy")
    use_labels: bool = Field(
        default=False,
        description="take the energies and forces of the file, which must be those of the engine; else they are "
        "computed",
    )

    @model_validator(mode="after")
    def _structures_from_one_place(self) -> Self:
        if (self.source is None) == (not self.molecules):
            raise ValueError("start needs structures: give a source, or molecules, and not both")
        if self.use_labels and self.source is None:
            raise ValueError("start.use_labels: molecules have no labels; give a source with energies and forces")
        return self


class ExploreConfig(MDConfig):
    """Where candidates come from: guarded molecular dynamics with the model at hand, or a file.

    Up to the limit on σ (``stop_above``) the model is trusted. Replicas go on beyond it, to where candidates are no
    more of use (``select.upper``): what lies between is what there is to learn. A limit that is "auto" falls back to
    the largest force σ of a held-out structure for as long as nothing can be promised.
    """

    pool: DataSource | None = Field(
        default=None, description="a file of candidates; then nothing moves, and of all below only the limit counts"
    )
    starts: int = Field(default=4, ge=1, description="labelled structures that are set in motion in a round")
    temperature: tuple[float, ...] = Field(default=(300.0,), min_length=1, description="K; each start runs at each")
    steps: int = Field(default=2000, ge=1, description="of each replica")
    stop_above: float | Literal["auto"] | None = Field(
        default="auto", description="eV/Å, largest force σ of an atom that is trusted; auto: by error_above and risk"
    )
    error_above: float | None = Field(
        default=0.5, gt=0, description="eV/Å; the largest force error of an atom that is tolerated"
    )
    risk: float = Field(default=0.1, gt=0, lt=1, description="chance of a larger error where σ is below the limit")

    def moves(self, temperature: float, stop_above: float | None, seed: int) -> MDConfig:
        """The settings of all replicas at one temperature."""
        fields = self.model_dump(include=set(MDConfig.model_fields))
        return MDConfig.model_validate(fields | {"temperature": (temperature,), "stop_above": stop_above, "seed": seed})


class SelectConfig(BaseModel):
    """Which candidates are worth a label."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(default=10, ge=1, description="labels of a round")
    method: SelectionMethod = Field(
        default="variance_reduction",
        description="variance_reduction: one after the other, each time the candidate whose label takes away the "
        "largest share of the variance of forces, on average over all candidates by σ (heads other than LNK and LLPR: "
        "as sigma); sigma: those of the largest force σ; random: of all candidates, whatever their σ",
    )
    lower: float = Field(
        default=0.5,
        ge=0,
        description="candidates of smaller σ are known well enough; in units of the limit on σ, "
        "once that promises something",
    )
    upper: float = Field(
        default=1.5,
        gt=0,
        description="candidates of larger σ are lost, and perhaps no chemistry: a replica that comes to it is stopped; "
        "in units of the limit on σ",
    )
    max_candidates: int = Field(
        default=1000, ge=1, description="candidates that variance_reduction compares, drawn from all that qualify"
    )

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if self.lower >= self.upper:
            raise ValueError(f"select: nothing lies between lower = {self.lower:g} and upper = {self.upper:g}")
        return self


class RetrainConfig(BaseModel):
    """When the backbone learns from new labels. In all other rounds it is kept, and the head is fitted anew, fast."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int | None = Field(default=None, ge=1, description="rounds from one training to the next; null: by growth")
    growth: float | None = Field(
        default=1.5, gt=1, description="train once the training set is this many times that of the last; null never"
    )
    weights: Literal["scratch", "continue"] = Field(
        default="scratch", description="where a training starts: at random weights, or at those of the last backbone"
    )

    def due(self, n_rounds: int, n_train: int, n_train_before: int) -> bool:
        """Whether to train, so many rounds and with such a training set after the last training."""
        late = self.every is not None and n_rounds >= self.every
        return late or (self.growth is not None and n_train >= self.growth * n_train_before)


class StopConfig(BaseModel):
    """When a campaign is over: at a budget, or when all the aims that are given hold in one round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rounds: int = Field(default=20, ge=1, description="rounds of exploration")
    max_labels: int | None = Field(default=None, ge=2, description="labelled structures; null is no limit")
    share_above: float | None = Field(
        default=0.02,
        ge=0,
        le=1,
        description="aim: of the frames to explore, those beyond the limit on σ, or not reached because of it, are at "
        "most this share; counts with a limit that promises something; null no aim",
    )
    forces_mae: float | None = Field(default=None, gt=0, description="aim: eV/Å, of the test structures; null no aim")
    calibration: float | None = Field(
        default=None, gt=0, description="aim: calibration score of the force σ of the test structures; null no aim"
    )


class CampaignConfig(BaseModel):
    """A whole campaign."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: StartConfig = Field(description="the structures that are labelled first")
    engine: EngineConfig = Field(default=EngineConfig(), description="what computes labels")
    model: PotentialConfig = Field(default=PotentialConfig(), description="what is trained")
    ensemble: EnsembleConfig | None = Field(default=None, description="train several and predict with all; null one")
    mc_dropout: MonteCarloDropoutConfig | None = Field(
        default=None, description="predict with dropout on, several times; null once"
    )
    training: TrainingConfig = Field(default=TrainingConfig(), description="how the backbone is trained")
    retrain: RetrainConfig = Field(default=RetrainConfig(), description="when the backbone is trained")
    reference_energies: ReferenceEnergies = Field(
        default="least_squares", description="energy of each element: least_squares, or values in eV by symbol"
    )
    calibration: CalibrationMethod = Field(
        default="auto", description="how σ is calibrated on held-out structures, in every round"
    )
    hold_out_every: int = Field(
        default=5, ge=2, description="every so many labels one is held out of training, to stop and calibrate by"
    )
    explore: ExploreConfig = Field(default=ExploreConfig(), description="where candidates come from")
    select: SelectConfig = Field(default=SelectConfig(), description="which of them are labelled")
    stop: StopConfig = Field(default=StopConfig(), description="when it is over")
    test: DataSource | None = Field(
        default=None, description="labelled structures that are never trained on, to follow the error by; null none"
    )
    cluster: ClusterConfig = Field(
        default=ClusterConfig(), description="where labels, exploration and members of an ensemble are computed"
    )
    output: Path = Field(default=Path("campaign"), description="directory of the campaign")
    seed: int = Field(default=0, ge=0, description="of everything that is drawn")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Contradictions are said before the first label is paid for."""
        run = self.run(Path("dataset.extxyz"), Path("fit"), None)
        if not run.has_std and not (self.select.method == "random" and self.explore.stop_above is None):
            raise ValueError(
                f"the {self.model.head.name} head has no σ to select or stop by: choose another, or set select.method "
                "to random and explore.stop_above to null"
            )
        one_by_one = self.ensemble is not None or not self.model.head.takes_backbone
        if one_by_one and (self.retrain.every != 1 or self.retrain.weights != "scratch"):
            what = "an ensemble" if self.ensemble is not None else f"the {self.model.head.name} head"
            raise ValueError(f"retrain: {what} is trained as a whole; set every to 1 and weights to scratch")
        if self.training.n_nodes > 1:
            raise ValueError(
                "training: a campaign trains on one node, on as many devices as that has; set n_nodes to 1"
            )
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
        return RunConfig(
            data=DataConfig(source=DataSource(path=dataset), reference_energies=self.reference_energies),
            model=self.model,
            training=self.training,
            ensemble=self.ensemble,
            mc_dropout=self.mc_dropout,
            backbone_from=backbone_from,
            calibration=self.calibration,
            output=output,
            seed=self.seed,
        )
