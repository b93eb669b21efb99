"""The settings of a run."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from sigmaff.backbones import AdoptConfig, HostConfig
from sigmaff.config import Settings
from sigmaff.data import DataFiles, DataSource, ReferenceEnergies, SplitConfig
from sigmaff.evaluation import CalibrationMethod
from sigmaff.heads import HEADS, DeterministicConfig, LNKConfig
from sigmaff.models import MonteCarloDropoutConfig, PotentialConfig
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.training import TrainingConfig


class DataConfig(DataFiles):
    """Which structures to learn from."""

    split: SplitConfig = Field(SplitConfig(), description="which structures of source train, validate and test")
    reference_energies: ReferenceEnergies = Field(
        "least_squares",
        description="energy of each element: least_squares; isolated_atoms of the data; gfn2-xtb or gfn1-xtb, if the "
        "labels are of that method: its free atoms where least squares leave energies open; or values in eV by symbol",
    )

    @model_validator(mode="before")
    @classmethod
    def _settle_split(cls, content: Any) -> Any:
        """With files of their own for validation or test, ``source`` is split into the rest."""
        if not isinstance(content, dict) or not (given := [n for n in ("validation", "test") if content.get(n)]):
            return content
        split = content.get("split") or {}
        split = split.model_dump(exclude_unset=True) if isinstance(split, SplitConfig) else split
        if not isinstance(split, dict):
            return content
        for name in given:
            if split.get(f"n_{name}"):
                text = f"has no effect: all structures of data.{name} are {name} structures; leave it out"
                raise ValueError(f"data.split.n_{name} {text}")
        return content | {"split": {"n_train": None} | {f"n_{name}": 0 for name in given} | split}


class OtherStructures(Settings):
    """Structures unlike the training data, which σ should detect."""

    source: DataSource = Field(description="the structures: a path, or a path and how to read it; labels are optional")
    n_structures: int | None = Field(1000, ge=1, description="number drawn at random; null: all")
    seed: int = Field(0, ge=0, description="of the draw")


class EnsembleConfig(Settings):
    """An ensemble of potentials."""

    size: int = Field(5, ge=2, le=1000, description="members, each from its own seed")
    bootstrap: bool = Field(
        False, description="train each on as many structures drawn with replacement from the training set"
    )


class RunConfig(Settings):
    """A whole training run."""

    data: DataConfig = Field(description="which structures to learn from")
    model: PotentialConfig = Field(PotentialConfig(), description="what to train")
    training: TrainingConfig = Field(TrainingConfig(), description="how to train the backbone")
    head_training: TrainingConfig | None = Field(
        None,
        description="settings for training the head on the trained backbone; null: as training, with the backbone's "
        "learning rate × 0.1 if it is trained further",
    )
    backbone_from: Path | None = Field(
        None,
        description="model file with a deterministic head; take its backbone instead of training one; for heads "
        "that come after the backbone",
    )
    ensemble: EnsembleConfig | None = Field(None, description="train several and predict with all; null one")
    mc_dropout: MonteCarloDropoutConfig | None = Field(
        None, description="predict with dropout on, several times; needs model.backbone.dropout; null once"
    )
    calibration: Literal[CalibrationMethod, "none"] = Field(
        "auto",
        description="how σ is calibrated on the validation structures; auto learns the shape of the errors from 50 "
        "structures and 1000 errors, and one factor from 20 structures; with fewer σ stays raw",
    )
    test_forces_std: bool = Field(
        True,
        description="whether σ of forces is calibrated and tested, if the head has one; a diagonal LNK takes a "
        "derivative for each coordinate",
    )
    ood: dict[str, OtherStructures] = Field({}, description="out-of-distribution sets by name, to test σ on")
    output: Path = Field(Path("run"), description="directory of checkpoints, logs, model and metrics")
    seed: int = Field(0, ge=0, description="of initial weights and of the order of batches")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Raise an error for contradictions before hours of training."""
        head = self.model.head
        if isinstance(head, LNKConfig) and head.fit == "closed_form" and head.unsolvable:
            raise ValueError(f"model.head: {head.unsolvable}")
        is_kept = head.stages == ("backbone", "solve") or isinstance(head, DeterministicConfig)
        if isinstance(self.model.backbone, AdoptConfig | HostConfig) and not is_kept:
            text = "an adopted network is not trained; choose a head that is solved, as lnk is"
            raise ValueError(f"model.head: {text}")
        if isinstance(self.model.backbone, AdoptConfig | HostConfig) and (self.ensemble or self.backbone_from):
            raise ValueError("model.backbone.adopt goes neither with ensemble nor with backbone_from")
        if self.backbone_from is not None and not head.takes_backbone:
            text = f"the {head.name} head is trained with its backbone from scratch; leave it out"
            raise ValueError(f"backbone_from: {text}")
        if self.ensemble is not None and (self.mc_dropout is not None or self.backbone_from is not None):
            raise ValueError("ensemble goes neither with mc_dropout nor with backbone_from; choose one")
        if self.ensemble is not None and self.training.devices * self.training.n_nodes > 1:
            text = "on several devices train the members one by one, and join them with 'sigmaff ensemble'"
            raise ValueError(f"ensemble: {text}")
        if self.mc_dropout is not None and getattr(self.model.backbone, "dropout", 0.0) == 0.0:
            raise ValueError("mc_dropout needs a network with dropout: set model.backbone.dropout above 0")
        shares = [each.without_dropout for each in (self.training, self.head_training) if each is not None]
        if self.mc_dropout is not None and any(shares):
            raise ValueError("mc_dropout predicts with dropout on, so all epochs need it: leave out without_dropout")
        return self

    @model_serializer(mode="wrap")
    def _without_idle(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the unit of likelihoods where none is trained, and a test of all σ: as versions before wrote it."""
        written: dict[str, Any] = serialize(self)
        if self.test_forces_std:
            written.pop("test_forces_std", None)
        head = self.model.head
        if not HEADS[head.name].has_likelihood_loss or "solve" in head.stages:
            for name in ("training", "head_training"):
                (written.get(name) or {}).pop("likelihood_unit", None)
        return written

    @property
    def forces_std(self) -> ForceStdMethod:
        """How σ of forces is computed in calibration and test."""
        return "auto" if self.test_forces_std else "none"

    @property
    def has_std(self) -> bool:
        sampled = self.ensemble is not None or self.mc_dropout is not None
        return sampled or HEADS[self.model.head.name].kind is not None
