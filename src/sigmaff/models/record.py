"""The record of a model: how it was made, for people. No algorithm reads its inputs from it."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

Figures = dict[str, float | int | list[float] | None]
"""Metrics by name, as ``summarize`` computes them."""


class _Record(BaseModel):
    """Values that were not set are not written; those that this version does not know are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @model_serializer(mode="wrap")
    def _only_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class TrainingRecord(_Record):
    best_epoch: int
    best_validation_loss: float
    n_epochs: int
    seconds: float
    stopped_because: str
    compiled_from: int | None = None  # step; None: not compiled


class FitRecord(_Record):
    """What the fit of a head chose; the keys depend on the head."""

    seconds: float = 0.0


class SplitRecord(_Record):
    """Indices of structures in the data file; of several, they are counted through: source, validation, test."""

    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    reason: str = ""


class BackboneRecord(_Record):
    """When a campaign trained its backbone last."""

    round: int
    n_train: int


class AdoptedRecord(_Record):
    """Errors of an adopted network, with the reference energies of the labels, and of the model made of it."""

    structures: str  # test, or held-out: those that the settings of the head were chosen by
    host: Figures
    adopted: Figures


class MemberRecord(_Record):
    """How one potential got its parameters."""

    training: TrainingRecord | None = None
    head_training: TrainingRecord | None = None
    fit: FitRecord | None = None
    failed: str | None = None  # why a member of an ensemble is missing
    file: str | None = None  # where a member of an ensemble comes from

    @classmethod
    def of(cls, record: "MemberRecord") -> Self:
        """The trainings and the fit of another record."""
        kept = {"training", "head_training", "fit"} & record.model_fields_set
        return cls(**{name: getattr(record, name) for name in kept})


class RunRecord(MemberRecord):
    """How a model was made. All fields are optional: models from Python and old files have only some."""

    members: list[MemberRecord] = []
    metrics: Figures | None = None  # of the test structures
    ood: dict[str, Figures] = {}  # by name of the set of other structures
    groups: dict[str, Figures] = {}  # of the test structures of each group
    uncalibrated: dict[str, str] = {}  # quantities that could not be calibrated, and why
    adopted: AdoptedRecord | None = None
    backbone: BackboneRecord | None = None  # of a campaign
    seconds: float | None = None
    config: dict[str, Any] | None = None  # RunConfig as JSON
    data_sha256: str | None = None  # of the data file; of several, of their digests in order
    files_sha256: dict[str, str] = {}  # of every file that decides the model, by the name of its setting
    split: SplitRecord | None = None
    date: str | None = None
    machine: str | None = None
    versions: dict[str, str] = {}

    @property
    def data_digests(self) -> list[str | None]:
        """SHA-256 of each data file, in the order of the settings; a record of an earlier version has one."""
        several = [digest for name, digest in self.files_sha256.items() if name.startswith("data.")]
        return [*several] or [self.data_sha256]

    @classmethod
    def readable(cls, content: dict[str, Any]) -> Self:
        """The record of a file, without the values that do not fit: an old or foreign file."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            unfit = {details["loc"][0] for details in error.errors()}
            return cls.model_validate({name: value for name, value in content.items() if name not in unfit})
