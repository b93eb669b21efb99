"""SVGP-DKL, a process on the embedding of a whole structure, against LNK, one on those of its atoms."""

from dataclasses import dataclass

from sigmaff_paper.experiments import figures, md17_accuracy, qm7x
from sigmaff_paper.experiments.cell import Cell, Results
from sigmaff_paper.experiments.experiment import Experiment, differences, once
from sigmaff_paper.experiments.presentation import Ours, Presentation, beside
from sigmaff_paper.experiments.protocols import TITLES, Scale
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.experiments.study import Study
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import Labels

COLUMNS = {"LNK": "lnk-5", "SVGP-DKL": "svgp-dkl"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Molecules of MD17, and the backbones."""

    molecules: tuple[str, ...]
    md17: str
    qm7x: str


PLANS: dict[Scale, Plan] = {
    "quick": Plan(molecules=("ethanol", "uracil"), md17="dimenet++", qm7x="schnet"),
    "paper": Plan(molecules=paper.MOLECULES, md17="dimenet++", qm7x="dimenet++"),
}


def _cells(scale: Scale, data: Data) -> list[Cell]:
    plan, recipes = PLANS[scale], tuple(COLUMNS.values())
    studies = [Study(scale=scale, dataset=molecule, backbone=plan.md17) for molecule in plan.molecules]
    studies.append(Study(scale=scale, dataset="qm7x", backbone=plan.qm7x))
    return once(cell for study in studies for cell in study.cells(recipes, data))


def _ours(results: Results, scale: Scale) -> Ours:
    plan = PLANS[scale]
    of_molecules = md17_accuracy.ours_of(results, scale, plan.md17, COLUMNS)
    of_qm7x = qm7x.ours_of(results, scale, plan.qm7x, COLUMNS)
    return lambda row, column: (of_qm7x if row[0] == "QM7-X" else of_molecules)(row, column)


def present(results: Results, scale: Scale) -> Presentation:
    plan = PLANS[scale]
    rows: list[Labels] = [(name, measure) for name in (*plan.molecules, "QM7-X") for measure in ("Energy", "Forces")]
    table = beside(paper.SVGP_DKL, _ours(results, scale), rows=rows)
    notes = [*differences(scale, "md17", (plan.md17,)), *differences(scale, "qm7x", (plan.qm7x,))]
    if plan.qm7x != "dimenet++":
        notes.insert(0, f"On QM7-X {TITLES[plan.qm7x]} stands in the place of DimeNet++.")
    return Presentation(
        tables=[table],
        figures={"errors": figures.dots(table, label="MAE (kcal/mol, /Å; QM7-X eV, /Å)")},
        notes=list(dict.fromkeys(notes)),
    )


EXPERIMENT = Experiment(
    title="SVGP-DKL against LNK",
    shows="Table 12",
    cells=_cells,
    present=present,
    quick_minutes=9,
)
