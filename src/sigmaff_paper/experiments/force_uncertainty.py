"""σ of forces on QM7-X: from dropout, from an ensemble, and in closed form."""

from collections.abc import Mapping
from dataclasses import dataclass

from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Cell, Results
from sigmaff_paper.experiments.experiment import Experiment, differences
from sigmaff_paper.experiments.presentation import Ours, Presentation, beside
from sigmaff_paper.experiments.protocols import Scale
from sigmaff_paper.experiments.qm7x import ours_of, with_main_backbone
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.experiments.study import Study
from sigmaff_paper.tables import qm7x as paper
from sigmaff_paper.tables.table import Labels

MEASURES = ("Energy MAE", "Forces MAE", "AUC-ROC energy", "AUC-ROC forces")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``backbone`` stands where the paper has DimeNet++; rates of dropout in per cent."""

    backbone: str
    rates: tuple[int, ...]

    @property
    def models(self) -> Mapping[str, Mapping[str, str]]:
        """Recipes by name of a block of rows and by column."""
        return {
            "MCD": {f"{rate} %": f"mcd-{rate}" for rate in self.rates},
            "MCD-LNK": {f"{rate} %": f"mcd-lnk-{rate}" for rate in self.rates},
            "Ensemble": {"0 %": "ensemble"},
            "LNK, analytic σ": {f"{rate} %": f"lnk-{rate}" for rate in self.rates} | {"0 %": "fixed-lnk"},
            "fixed-LNK, closed form, analytic σ": {"0 %": "fixed-lnk-closed"},
        }

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(recipe for columns in self.models.values() for recipe in columns.values())


PLANS: dict[Scale, Plan] = {
    "quick": Plan(backbone="schnet", rates=(1, 5, 20)),
    "paper": Plan(backbone="dimenet++", rates=(1, 5, 10, 20)),
}


def _ours(results: Results, scale: Scale) -> Ours:
    plan = PLANS[scale]

    def ours(row: Labels, column: str) -> float | None:
        return ours_of(results, scale, plan.backbone, plan.models[row[0]])(row, column)

    return ours


def present(results: Results, scale: Scale) -> Presentation:
    plan = PLANS[scale]
    rows = [(block, measure) for block in plan.models for measure in MEASURES]
    table = beside(paper.FORCE, _ours(results, scale), rows=rows)
    detection = beside(paper.FORCE, _ours(results, scale), rows=[row for row in rows if row[1] == "AUC-ROC forces"])
    return Presentation(
        tables=[with_main_backbone(table, plan.backbone)],
        figures={"detection": figures.dots(detection, label="AUC-ROC by force σ", logarithmic=False)},
        notes=[
            "Analytic σ of forces is that of the process itself, from one model and one pass; at 0 % of dropout of "
            "the LNK stands the fixed-LNK. The paper has no such rows: it takes them to be impossible.",
            *differences(scale, "qm7x", (plan.backbone,)),
        ],
    )


def _cells(scale: Scale, data: Data) -> list[Cell]:
    plan = PLANS[scale]
    return Study(scale=scale, dataset="qm7x", backbone=plan.backbone).cells(plan.recipes, data)


EXPERIMENT = Experiment(
    title="σ of forces by dropout, by an ensemble, and analytic",
    shows="Table 7",
    cells=_cells,
    present=present,
    quick_minutes=15,
)
