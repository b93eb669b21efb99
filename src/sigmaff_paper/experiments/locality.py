"""Energy σ of far copies of a molecule: size-consistent where it grows as their number."""

from sigmaff.data import DataSource
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Cell, Results, number
from sigmaff_paper.experiments.experiment import Experiment, differences
from sigmaff_paper.experiments.measures import Copies
from sigmaff_paper.experiments.presentation import Presentation, beside
from sigmaff_paper.experiments.protocols import Scale
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.experiments.study import Study
from sigmaff_paper.tables import costs as paper
from sigmaff_paper.tables.table import Labels

MOLECULE, BACKBONE = "ethanol", "schnet"  # the paper does not tell its own
METHODS = {
    "Ensemble": "ensemble",
    "MCD": "mcd-20",
    "Evidential": "evidential",
    "SVGP-DKL": "svgp-dkl",
    "LNK": "lnk-5",
    "fixed-LNK, closed form": "fixed-lnk-closed",
}
COLUMNS = {"slope": "slope", "σ of 8 / σ of 1": "last"}


def _study(scale: Scale) -> Study:
    return Study(scale=scale, dataset=MOLECULE, backbone=BACKBONE)


def _copies_name(scale: Scale, recipe: str) -> str:
    return f"{_study(scale).name(recipe)}-copies"


def _cells(scale: Scale, data: Data) -> list[Cell]:
    study = _study(scale)
    source = DataSource(path=data.md17(MOLECULE), format="rmd17_original")
    copies = [
        Copies(name=_copies_name(scale, recipe), after=(study.name(recipe),), needs=(source.path,), source=source)
        for recipe in METHODS.values()
    ]
    return [*study.cells(tuple(METHODS.values()), data), *copies]


def present(results: Results, scale: Scale) -> Presentation:
    def ours(row: Labels, column: str) -> float | None:
        return number(results, _copies_name(scale, METHODS[row[0]]), COLUMNS[column])

    rows = [(name,) for name in METHODS]
    curves = {
        name: results[cell].content["curve"]
        for name, recipe in METHODS.items()
        if (cell := _copies_name(scale, recipe)) in results and results[cell].status == "done"
    }
    return Presentation(
        tables=[beside(paper.LOCALITY, ours, rows=rows, columns=tuple(COLUMNS))],
        figures={"growth": figures.growth(curves)} if curves else {},
        notes=[
            "The paper's figure has no numbers. Its text: ensembles and LNK grow linearly with slope 1, MCD does so in "
            "expectation; SVGP-DKL and evidential regression rise too steeply, and no further after three molecules.",
            "Slopes of log σ over log n, n = 1 … 8, means over 20 test structures. The LNK of the paper sums variances "
            "of atoms (σ as √n); the closed form keeps their covariance (σ as n).",
            *differences(scale, "md17", (BACKBONE,)),
        ],
    )


EXPERIMENT = Experiment(
    title="growth of σ with the number of far copies of a molecule",
    shows="Figure 2",
    cells=_cells,
    present=present,
    quick_minutes=4,
)
