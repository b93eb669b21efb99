"""A study: one data set, one backbone, one scale, and the models that are made there. Experiments share them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmaff.data import DataSource, SplitConfig
from sigmaff.heads import EvidentialConfig, LNKConfig, SVGPConfig
from sigmaff.models import PotentialConfig
from sigmaff.runs.config import DataConfig, OtherStructures, RunConfig
from sigmaff_paper.experiments.cell import Cell
from sigmaff_paper.experiments.models import Joined, Sampled, Trained
from sigmaff_paper.experiments.protocols import BACKBONES, SIZES, Scale, head_training, n_inducing, training
from sigmaff_paper.experiments.recipes import RECIPES, Recipe, with_sources
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.tables.hyperparameters import Kind
from sigmaff_paper.tables.md17 import MOLECULES, N_ATOMS

OUT_OF_EQUILIBRIUM = "non-equilibrium"
MD17_MOLECULES: dict[Scale, tuple[str, ...]] = {
    "quick": ("ethanol", "malonaldehyde", "naphthalene", "uracil"),
    "paper": MOLECULES,
}
"""Molecules that the models of each are told apart from."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """``dataset`` is a molecule of MD17, or qm7x."""

    scale: Scale
    dataset: str
    backbone: str

    @property
    def kind(self) -> Kind:
        return "qm7x" if self.dataset == "qm7x" else "md17"

    def name(self, recipe: str) -> str:
        """Of the cell of a recipe."""
        folder = "qm7x" if self.kind == "qm7x" else f"md17-{self.dataset}"
        return f"{self.scale}/{folder}/{self.backbone}/{recipe}"

    def cells(self, recipes: tuple[str, ...], data: Data) -> list[Cell]:
        """Of these recipes and of all that they are made of."""
        gathering: list[Cell] = [*data.qm7x().gathering] if self.kind == "qm7x" else []
        return [*gathering, *(self._cell(name, RECIPES[name], data, gathering) for name in with_sources(recipes))]

    def _cell(self, name: str, recipe: Recipe, data: Data, gathering: list[Cell]) -> Cell:
        kind = Joined if recipe.joins else Sampled if recipe.samples is not None else Trained
        after = tuple(self.name(source) for source in recipe.after)
        return kind(
            name=self.name(name),
            after=after or tuple(cell.name for cell in gathering),
            needs=self._needs(data),
            config=self.config(recipe, data),
        )

    def _needs(self, data: Data) -> tuple[Path, ...]:
        return data.qm7x().needs if self.kind == "qm7x" else (data.md17(self.dataset),)

    def config(self, recipe: Recipe, data: Data) -> RunConfig:
        """The run of a recipe."""
        sizes, method = SIZES[self.scale][self.kind], recipe.method
        run = RunConfig(
            data=DataConfig(
                source=self._source(data),
                split=SplitConfig(n_train=sizes.n_train, n_validation=sizes.n_validation, n_test=sizes.n_test),
            ),
            model=PotentialConfig(backbone=BACKBONES[self.scale][self.backbone], head=method.head),
            training=training(
                self.scale, self.kind, self.backbone, evidential=isinstance(method.head, EvidentialConfig)
            ),
            calibration="quantile",  # one factor for every method: the shape that is left is the method's own
            ood={} if recipe.seed else self._others(data),
            seed=recipe.seed,
        )
        settings = method.settings(run)
        changes: dict[str, Any] = {"model": self._with_inducing_points(settings.model)}
        if method.trains_head:
            frozen = "head" in method.head.stages
            changes["head_training"] = head_training(self.scale, self.kind, self.backbone, frozen=frozen)
        return settings.model_copy(update=changes)

    def _source(self, data: Data) -> DataSource:
        if self.kind == "qm7x":
            return DataSource(path=data.qm7x().equilibrium)
        return DataSource(path=data.md17(self.dataset), format="rmd17_original")

    def _others(self, data: Data) -> dict[str, OtherStructures]:
        """Sets that σ should tell apart, of those that are there."""
        n = SIZES[self.scale][self.kind].n_ood
        if self.kind == "qm7x":
            source = DataSource(path=data.qm7x().non_equilibrium)
            return {OUT_OF_EQUILIBRIUM: OtherStructures(source=source, n_structures=n)}
        others = {molecule: data.md17(molecule) for molecule in MD17_MOLECULES[self.scale] if molecule != self.dataset}
        return {
            molecule: OtherStructures(source=DataSource(path=path, format="rmd17_original"), n_structures=n)
            for molecule, path in others.items()
            if path.is_file()
        }

    def _with_inducing_points(self, model: PotentialConfig) -> PotentialConfig:
        if not isinstance(model.head, LNKConfig | SVGPConfig):
            return model
        n = n_inducing(self.scale, self.kind, N_ATOMS.get(self.dataset))
        return model.model_copy(update={"head": model.head.model_copy(update={"n_inducing": n})})
