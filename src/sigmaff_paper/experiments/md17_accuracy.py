"""Errors and calibration on MD17, by molecule and on average."""

from collections.abc import Mapping
from dataclasses import dataclass

from sigmaff.units import KCAL_PER_MOL
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Cell, Results, number
from sigmaff_paper.experiments.experiment import Experiment, differences, once
from sigmaff_paper.experiments.presentation import Entry, Ours, Presentation, Table, beside
from sigmaff_paper.experiments.protocols import TITLES, Scale
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.experiments.study import Study
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels, PaperTable

GLOBAL, GLOBAL_FORCES = "Calibration, global", "Calibration, global, forces"
MEASURES: dict[str, tuple[str, float]] = {  # key of a metric, factor
    "Energy": ("energy_mae", 1.0 / KCAL_PER_MOL),
    "Forces": ("forces_mae", 1.0 / KCAL_PER_MOL),
    CALIBRATION: ("energy_calibration_paper", 1.0),
    GLOBAL: ("energy_calibration", 1.0),
    GLOBAL_FORCES: ("forces_calibration", 1.0),
}
COLUMNS = {
    "MCD": "mcd-20",
    "Dropout": "mcd-20",
    "MCD (N=5)": "mcd-20",
    "MCD (N=69)": "mcd-20-69",
    "Evidential": "evidential",
    "fixed-LNK": "fixed-lnk",
    "LNK": "lnk-5",
    "Backbone": "backbone",
    "Ensemble": "ensemble",
    "GMDN": "gmdn",
    "SVGP-DKL": "svgp-dkl",
    "fixed-LNK, closed form": "fixed-lnk-closed",
}
"""Recipes of the paper's columns, and of ours."""
CLOSED = "fixed-LNK, closed form"
FIXED_EVERYWHERE = {**COLUMNS, "LNK": "fixed-lnk"}
"""In Tables 13 to 15 the column LNK is the fixed one: their averages are those of Table 3."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which models: recipes by backbone, and molecules by backbone."""

    recipes: Mapping[str, tuple[str, ...]]
    molecules: Mapping[str, tuple[str, ...]]

    def studies(self, scale: Scale) -> list[tuple[Study, tuple[str, ...]]]:
        return [
            (Study(scale=scale, dataset=molecule, backbone=backbone), recipes)
            for backbone, recipes in self.recipes.items()
            for molecule in self.molecules[backbone]
        ]

    def cells(self, scale: Scale, data: Data) -> list[Cell]:
        return once(cell for study, recipes in self.studies(scale) for cell in study.cells(recipes, data))


def everywhere(molecules: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(TITLES, molecules)


_ALL = ("backbone", "mcd-20", "mcd-20-69", "evidential", "fixed-lnk", "fixed-lnk-closed")

PLANS: dict[Scale, Plan] = {
    "quick": Plan(
        recipes={"schnet": (*_ALL, "lnk-5", "ensemble"), "dimenet++": _ALL, "nequip": _ALL},
        molecules={"schnet": ("ethanol", "uracil"), "dimenet++": ("ethanol",), "nequip": ("ethanol",)},
    ),
    "paper": Plan(
        recipes={
            "schnet": (*_ALL, "lnk-5", "ensemble"),
            "dimenet++": (*_ALL, "ensemble"),
            "nequip": (*_ALL, "ensemble"),
        },
        molecules=everywhere(paper.MOLECULES),
    ),
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """The number of (molecule, measure) and of a column."""

    def ours(row: Labels, column: str) -> float | None:
        molecule, measure = row
        key, factor = MEASURES[measure]
        study = Study(scale=scale, dataset=molecule, backbone=backbone)
        found = number(results, study.name(columns[column]), "metrics", key)
        return None if found is None else factor * found

    return ours


def rows_of(molecules: tuple[str, ...], measures: tuple[str, ...]) -> list[Labels]:
    return [(molecule, measure) for molecule in molecules for measure in measures]


def present(results: Results, scale: Scale) -> Presentation:
    plan, measures = PLANS[scale], tuple(MEASURES)
    sources: tuple[tuple[PaperTable, str, Mapping[str, str]], ...] = (
        (paper.SCHNET, "schnet", COLUMNS),
        (paper.DIMENET_ALL, "dimenet++", FIXED_EVERYWHERE),
        (paper.NEQUIP_ALL, "nequip", FIXED_EVERYWHERE),
        (paper.SCHNET_ALL, "schnet", COLUMNS),
    )
    tables = [
        beside(
            table,
            ours_of(results, scale, backbone, columns),
            rows=rows_of(plan.molecules[backbone], measures),
            more_columns=(CLOSED,),
        )
        for table, backbone, columns in sources
    ]
    average = _averages(results, scale)
    return Presentation(
        tables=[average, *tables],
        figures={"averages": figures.dots(average, label="MAE (kcal/mol, kcal/mol/Å)")},
        notes=[
            "Averages of fewer than seven molecules stand beside those of the paper over the same molecules.",
            "The column LNK of Tables 14 and 15 is the fixed-LNK: their averages are those of Table 3.",
            *differences(scale, "md17", TITLES),
        ],
    )


AVERAGED = {"dimenet++": paper.DIMENET_ALL, "schnet": paper.SCHNET, "nequip": paper.NEQUIP_ALL}
"""The tables of single molecules that Table 3 averages."""
COLUMN_OF_MOLECULES = {"Dropout": ("MCD", "MCD (N=5)"), "fixed-LNK": ("fixed-LNK", "LNK")}
"""Names of columns of Table 3 in those."""


def _averages(results: Results, scale: Scale) -> Table:
    """Table 3; where there are not all molecules here, with the paper's averages over the same ones."""
    columns = (*paper.AVERAGE.columns, CLOSED)
    rows: dict[Labels, tuple[Entry, ...]] = {}
    for backbone in AVERAGED:
        ours, molecules = ours_of(results, scale, backbone, COLUMNS), PLANS[scale].molecules[backbone]
        complete = molecules == paper.MOLECULES
        title = TITLES[backbone] if complete else f"{TITLES[backbone]}: {', '.join(molecules)}"
        published = _published_average if complete else _published_mean
        for measure in ("Energy", "Forces"):
            rows[title, measure] = tuple(
                published(backbone, molecules, measure, column, _mean([ours((m, measure), column) for m in molecules]))
                for column in columns
            )
    return Table(title=f"{paper.AVERAGE.number}: {paper.AVERAGE.caption}", columns=columns, rows=rows)


def _published_average(
    backbone: str, molecules: tuple[str, ...], measure: str, column: str, ours: float | None
) -> Entry:
    """Beside what Table 3 prints."""
    row = (TITLES[backbone], measure)
    return Entry(ours=ours, paper=paper.AVERAGE.value(row, column), note=paper.AVERAGE.slip(row, column))


def _published_mean(backbone: str, molecules: tuple[str, ...], measure: str, column: str, ours: float | None) -> Entry:
    """Beside the mean over these molecules in the paper's own table of them."""
    table = AVERAGED[backbone]
    own = next((name for name in COLUMN_OF_MOLECULES.get(column, (column,)) if name in table.columns), column)
    return Entry(ours=ours, paper=_mean([table.value((molecule, measure), own) for molecule in molecules]))


def _mean(values: list[float | None]) -> float | None:
    """``None`` where one is not there."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


EXPERIMENT = Experiment(
    title="errors and calibration on MD17, by molecule and on average",
    shows="Tables 2, 3, 14, 15, 16",
    cells=lambda scale, data: PLANS[scale].cells(scale, data),
    present=present,
    quick_minutes=16,
)
