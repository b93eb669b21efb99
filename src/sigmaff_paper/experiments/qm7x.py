"""QM7-X: errors, calibration and detection of non-equilibrium structures, by method and by rate of dropout."""

from collections.abc import Mapping
from dataclasses import dataclass

from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Cell, Results, number
from sigmaff_paper.experiments.experiment import Experiment, differences, once
from sigmaff_paper.experiments.presentation import Ours, Presentation, Table, beside
from sigmaff_paper.experiments.protocols import TITLES, Scale
from sigmaff_paper.experiments.recipes import RATES
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.experiments.study import OUT_OF_EQUILIBRIUM, Study
from sigmaff_paper.tables import qm7x as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels, PaperTable

METRICS, OOD = ("metrics",), ("ood", OUT_OF_EQUILIBRIUM)
MEASURES: dict[str, tuple[str, ...]] = {  # keys of a result
    "Energy": (*METRICS, "energy_mae"),
    "Energy MAE": (*METRICS, "energy_mae"),
    "Energy ID": (*METRICS, "energy_mae"),
    "Forces": (*METRICS, "forces_mae"),
    "Forces MAE": (*METRICS, "forces_mae"),
    "Forces ID": (*METRICS, "forces_mae"),
    "Energy OOD": (*OOD, "ood_energy_mae"),
    "Forces OOD": (*OOD, "ood_forces_mae"),
    CALIBRATION: (*METRICS, "energy_calibration_paper"),
    "Calibration, forces": (*METRICS, "forces_calibration_paper"),
    "Calibration, global": (*METRICS, "energy_calibration"),
    "Calibration, global, forces": (*METRICS, "forces_calibration"),
    "Calibration, global, raw": (*METRICS, "energy_calibration_raw"),
    "AUC-ROC": (*OOD, "energy_auroc_total"),
    "AUC-ROC energy": (*OOD, "energy_auroc_total"),
    "AUC-ROC, σ per atom": (*OOD, "energy_auroc"),
    "AUC-ROC, force σ": (*OOD, "forces_auroc"),
    "AUC-ROC forces": (*OOD, "forces_auroc"),
    "AUC-ROC forces (trace)": (*OOD, "forces_auroc"),
}
COLUMNS = {
    "MCD 20 %": "mcd-20",
    "MCD 1 %": "mcd-1",
    "Evidential": "evidential",
    "fixed-LNK": "fixed-lnk",
    "LNK": "lnk-5",
    "Ensemble": "ensemble",
    "fixed-LNK, closed form": "fixed-lnk-closed",
    "LLPR": "llpr",
    "latent distance, k-NN": "latent-knn",
    "latent distance, Mahalanobis": "latent-mahalanobis",
}
"""Recipes of the paper's columns, and of ours."""
MORE = ("fixed-LNK, closed form", "LLPR", "latent distance, k-NN", "latent distance, Mahalanobis")
DIMENET_COLUMNS = COLUMNS | {"LNK": "fixed-lnk", "LNK + Drop 5 %": "mcd-lnk-5"}
DIMENET_69_COLUMNS = {
    "MCD 20 %": "mcd-20-69",
    "MCD 1 %": "mcd-1-69",
    "Evidential": "evidential",
    "LNK": "fixed-lnk",
    "LNK + Drop 1 %": "mcd-lnk-1-69",
}
OTHER_COLUMNS = {"MCD": "mcd-20", "Evidential": "evidential"}
OTHER_69_COLUMNS = {"MCD": "mcd-20-69", "Evidential": "evidential"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which models: recipes by backbone. ``main`` stands where the paper has DimeNet++."""

    main: str
    recipes: Mapping[str, tuple[str, ...]]

    def cells(self, scale: Scale, data: Data) -> list[Cell]:
        return once(
            cell
            for backbone, recipes in self.recipes.items()
            for cell in Study(scale=scale, dataset="qm7x", backbone=backbone).cells(recipes, data)
        )


_MAIN = tuple(COLUMNS.values())
_OTHER = ("mcd-20", "mcd-20-69", "evidential")

METHODS: dict[Scale, Plan] = {
    "quick": Plan(main="schnet", recipes={"schnet": (*_MAIN, "mcd-20-69")}),
    "paper": Plan(
        main="dimenet++",
        recipes={
            "dimenet++": (*_MAIN, "mcd-20-69", "mcd-1-69", "mcd-lnk-5", "mcd-lnk-1-69"),
            "schnet": _OTHER,
            "nequip": _OTHER,
        },
    ),
}

DROPOUT: dict[Scale, Plan] = {
    "quick": Plan(main="schnet", recipes={"schnet": tuple(f"mcd-{rate}" for rate in RATES)}),
    "paper": Plan(
        main="dimenet++",
        recipes=dict.fromkeys(("dimenet++", "schnet"), tuple(f"mcd-{rate}" for rate in RATES)),
    ),
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """The number of a measure, the last label of a row, and of a column; ``None`` where there is no such model."""
    study = Study(scale=scale, dataset="qm7x", backbone=backbone)

    def ours(row: Labels, column: str) -> float | None:
        if column not in columns:
            return None
        return number(results, study.name(columns[column]), *MEASURES[row[-1]])

    return ours


def with_main_backbone(table: Table, main: str) -> Table:
    """The same, with a title that says which backbone stands for the paper's DimeNet++, if another does."""
    if main == "dimenet++":
        return table
    title = f"{table.title}; here {TITLES[main]} in the place of DimeNet++"
    return Table(title=title, columns=table.columns, rows=table.rows)


def _main_table(results: Results, scale: Scale, table: PaperTable, measures: tuple[str, ...]) -> Table:
    """A table of DimeNet++ with the methods that are ours."""
    main = METHODS[scale].main
    rows = [(measure,) for measure in measures]
    shown = beside(table, ours_of(results, scale, main, COLUMNS), rows=rows, more_columns=MORE)
    return with_main_backbone(shown, main)


def _more_tables(results: Results, scale: Scale, keep: tuple[str, ...]) -> list[Table]:
    """The tables of the appendix with those of their rows that begin so."""
    plan = METHODS[scale]
    tables = []
    for table, columns in ((paper.DIMENET_ALL, DIMENET_COLUMNS), (paper.DIMENET_69, DIMENET_69_COLUMNS)):
        rows = [row for row in table.rows if row[-1].startswith(keep)]
        shown = beside(table, ours_of(results, scale, plan.main, columns), rows=rows)
        tables.append(with_main_backbone(shown, plan.main))
    for table, columns in ((paper.OTHER_BACKBONES, OTHER_COLUMNS), (paper.OTHER_BACKBONES_69, OTHER_69_COLUMNS)):
        rows = [row for row in table.rows if row[-1].startswith(keep)]
        tables.append(beside(table, _of_two_backbones(results, scale, columns), rows=rows))
    return tables


def _of_two_backbones(results: Results, scale: Scale, columns: Mapping[str, str]) -> Ours:
    """Of columns named "method, backbone"."""

    def ours(row: Labels, column: str) -> float | None:
        method, _, backbone = column.partition(", ")
        name = next(key for key, title in TITLES.items() if title == backbone)
        return ours_of(results, scale, name, columns)(row, method)

    return ours


def _presentation(scale: Scale, tables: list[Table], figure: str, label: str, *, logarithmic: bool) -> Presentation:
    return Presentation(
        tables=tables,
        figures={figure: figures.dots(tables[0], label=label, logarithmic=logarithmic)},
        notes=differences(scale, "qm7x", METHODS[scale].recipes),
    )


def present_accuracy(results: Results, scale: Scale) -> Presentation:
    main = _main_table(results, scale, paper.PREDICTIVE, ("Energy", "Forces"))
    more = _more_tables(results, scale, ("Energy", "Forces"))
    return _presentation(scale, [main, *more], "errors", "MAE (eV, eV/Å)", logarithmic=True)


def present_calibration(results: Results, scale: Scale) -> Presentation:
    measures = tuple(name for name in MEASURES if name.startswith(CALIBRATION))
    main = _main_table(results, scale, paper.PREDICTIVE, measures)
    more = _more_tables(results, scale, (CALIBRATION,))
    return _presentation(scale, [main, *more], "calibration", "calibration score", logarithmic=False)


def present_detection(results: Results, scale: Scale) -> Presentation:
    measures = ("AUC-ROC", "AUC-ROC, σ per atom", "AUC-ROC, force σ")
    main = _main_table(results, scale, paper.DETECTION, measures)
    more = _more_tables(results, scale, ("AUC-ROC",))
    return _presentation(scale, [main, *more], "detection", "AUC-ROC", logarithmic=False)


def present_dropout(results: Results, scale: Scale) -> Presentation:
    by_backbone = {"dimenet++": paper.DROPOUT_DIMENET, "schnet": paper.DROPOUT_SCHNET}
    columns = {f"{rate} %": f"mcd-{rate}" for rate in RATES}
    tables = [
        beside(by_backbone[backbone], ours_of(results, scale, backbone, columns)) for backbone in DROPOUT[scale].recipes
    ]
    notes = differences(scale, "qm7x", DROPOUT[scale].recipes)
    if scale == "quick":
        notes.append("Table 21, of DimeNet++, is made at scale paper alone.")
    return Presentation(
        tables=tables,
        figures={f"table-{table.title[6:8]}": figures.dots(table, label="eV, eV/Å, or score") for table in tables},
        notes=notes,
    )


ACCURACY_EXPERIMENT = Experiment(
    title="errors on QM7-X, in and out of equilibrium",
    shows="Tables 4, 17, 18, 19, 20 (errors)",
    cells=lambda scale, data: METHODS[scale].cells(scale, data),
    present=present_accuracy,
    quick_minutes=15,
)
CALIBRATION_EXPERIMENT = Experiment(
    title="calibration on QM7-X",
    shows="Tables 4, 17, 18, 19, 20 (calibration)",
    cells=lambda scale, data: METHODS[scale].cells(scale, data),
    present=present_calibration,
    quick_minutes=15,
)
DETECTION_EXPERIMENT = Experiment(
    title="non-equilibrium structures of QM7-X told apart from equilibrium ones",
    shows="Tables 5, 17, 18, 19, 20 (AUC-ROC)",
    cells=lambda scale, data: METHODS[scale].cells(scale, data),
    present=present_detection,
    quick_minutes=15,
)
DROPOUT_EXPERIMENT = Experiment(
    title="rates of dropout on QM7-X",
    shows="Tables 21, 22",
    cells=lambda scale, data: DROPOUT[scale].cells(scale, data),
    present=present_dropout,
    quick_minutes=7,
)
