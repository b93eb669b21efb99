"""QM7-X: errors, calibration, detection of non-equilibrium structures, dropout rates and σ of forces."""

from collections.abc import Mapping
from itertools import chain

from sigmaff.runs.jobs import Results
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.experiment import Experiment, Interval, Intervals, Ours, Report, beside, differences
from sigmaff_paper.experiments.settings import TITLES, Scale
from sigmaff_paper.experiments.study import OUT_OF_EQUILIBRIUM, RATES, Study, jobs_of
from sigmaff_paper.tables import qm7x as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels, PaperTable

METRICS, OOD = ("metrics",), ("ood", OUT_OF_EQUILIBRIUM)
RAW = "Calibration, global, raw (closed form, LLPR and latent distances: scaled on validation errors)"
MEASURES: dict[str, tuple[str, ...]] = {  # keys of a result
    **dict.fromkeys(("Energy", "Energy MAE", "Energy ID"), (*METRICS, "energy_mae")),
    **dict.fromkeys(("Forces", "Forces MAE", "Forces ID"), (*METRICS, "forces_mae")),
    "Energy OOD": (*OOD, "ood_energy_mae"),
    "Forces OOD": (*OOD, "ood_forces_mae"),
    CALIBRATION: (*METRICS, "energy_calibration_paper"),
    "Calibration, forces": (*METRICS, "forces_calibration_paper"),
    "Calibration, global": (*METRICS, "energy_calibration"),
    "Calibration, global, forces": (*METRICS, "forces_calibration"),
    RAW: (*METRICS, "energy_calibration_raw"),
    **dict.fromkeys(("AUC-ROC", "AUC-ROC energy"), (*OOD, "energy_auroc_total")),
    "AUC-ROC, σ per atom": (*OOD, "energy_auroc"),
    **dict.fromkeys(("AUC-ROC, force σ", "AUC-ROC forces", "AUC-ROC forces (trace)"), (*OOD, "forces_auroc")),
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
"""Methods of the paper's columns, and ours."""
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


MAIN: dict[Scale, str] = {"quick": "schnet", "paper": "dimenet++"}
"""The backbone in place of the paper's DimeNet++."""
_MAIN = (*COLUMNS.values(), "mcd-20-69")
_OTHER = ("mcd-20", "mcd-20-69", "evidential")
_DROPOUT = tuple(f"mcd-{rate}" for rate in RATES)

STUDIES: dict[Scale, list[Study]] = {
    "quick": [Study("quick", "qm7x", "schnet", _MAIN)],
    "paper": [
        Study("paper", "qm7x", "dimenet++", (*_MAIN, "mcd-1-69", "mcd-lnk-5", "mcd-lnk-1-69")),
        Study("paper", "qm7x", "schnet", _OTHER),
        Study("paper", "qm7x", "nequip", _OTHER),
    ],
}
DROPOUT: dict[Scale, list[Study]] = {
    "quick": [Study("quick", "qm7x", "schnet", _DROPOUT)],
    "paper": [Study("paper", "qm7x", "dimenet++", _DROPOUT), Study("paper", "qm7x", "schnet", _DROPOUT)],
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """Return a lookup by measure, the last label of a row, and column; ``None`` if there is no such model."""

    def ours(row: Labels, column: str) -> float | None:
        if column not in columns:
            return None
        return Study(scale, "qm7x", backbone).number(results, columns[column], *MEASURES[row[-1]])

    return ours


def intervals_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Intervals:
    """Return a lookup as ``ours_of``: of errors and AUROCs, not of calibration scores, which resampling biases."""

    def interval(row: Labels, column: str) -> Interval | None:
        if column not in columns or row[-1].startswith(CALIBRATION):
            return None
        return Study(scale, "qm7x", backbone).interval(results, columns[column], *MEASURES[row[-1]])

    return interval


def _title(scale: Scale) -> str:
    """Name the backbone that replaces the paper's DimeNet++, if another does."""
    return "" if MAIN[scale] == "dimenet++" else f"; here {TITLES[MAIN[scale]]} instead of DimeNet++"


# --- errors, calibration and detection, by method


def _report(
    results: Results,
    scale: Scale,
    table: PaperTable,
    measures: tuple[str, ...],
    appendix: tuple[str, ...],
    figure: tuple[str, str],
) -> Report:
    """Show a table of DimeNet++ with our methods, and the tables of the appendix.

    Arguments:
        measures: rows of the table.
        appendix: beginnings of rows of the appendix.
        figure: name and label.
    """
    main, title = MAIN[scale], _title(scale)
    rows: list[Labels] = [(measure,) for measure in measures]
    ours, intervals = ours_of(results, scale, main, COLUMNS), intervals_of(results, scale, main, COLUMNS)
    tables = [beside(table, ours, rows=rows, more_columns=MORE, title=title, intervals=intervals)]
    for more, others, ending in (
        (paper.DIMENET_ALL, ours_of(results, scale, main, DIMENET_COLUMNS), title),
        (paper.DIMENET_69, ours_of(results, scale, main, DIMENET_69_COLUMNS), title),
        (paper.OTHER_BACKBONES, _of_two_backbones(results, scale, OTHER_COLUMNS), ""),
        (paper.OTHER_BACKBONES_69, _of_two_backbones(results, scale, OTHER_69_COLUMNS), ""),
    ):
        rows = [row for row in more.rows if row[-1].startswith(appendix)]
        tables.append(beside(more, others, rows=rows, title=ending))
    name, label = figure
    return Report(
        tables=tables,
        figures={name: figures.dots(tables[0], label=label, logarithmic=name == "errors")},
        notes=differences(scale, "qm7x", [study.backbone for study in STUDIES[scale]]),
    )


def _of_two_backbones(results: Results, scale: Scale, columns: Mapping[str, str]) -> Ours:
    """Of columns named "method, backbone"."""
    names = {title: name for name, title in TITLES.items()}

    def ours(row: Labels, column: str) -> float | None:
        method, _, backbone = column.partition(", ")
        return ours_of(results, scale, names[backbone], columns)(row, method)

    return ours


def present_accuracy(results: Results, scale: Scale) -> Report:
    measures = ("Energy", "Forces")
    return _report(results, scale, paper.PREDICTIVE, measures, measures, ("errors", "MAE (eV, eV/Å)"))


def present_calibration(results: Results, scale: Scale) -> Report:
    measures = tuple(name for name in MEASURES if name.startswith(CALIBRATION))
    return _report(results, scale, paper.PREDICTIVE, measures, (CALIBRATION,), ("calibration", "calibration score"))


def present_detection(results: Results, scale: Scale) -> Report:
    measures = ("AUC-ROC", "AUC-ROC, σ per atom", "AUC-ROC, force σ")
    return _report(results, scale, paper.DETECTION, measures, ("AUC-ROC",), ("detection", "AUC-ROC"))


# --- dropout rates


def present_dropout(results: Results, scale: Scale) -> Report:
    by_backbone = {"dimenet++": paper.DROPOUT_DIMENET, "schnet": paper.DROPOUT_SCHNET}
    columns = {f"{rate} %": f"mcd-{rate}" for rate in RATES}
    backbones = [study.backbone for study in DROPOUT[scale]]
    tables = [
        beside(
            by_backbone[name],
            ours_of(results, scale, name, columns),
            intervals=intervals_of(results, scale, name, columns),
        )
        for name in backbones
    ]
    notes = differences(scale, "qm7x", backbones)
    if scale == "quick":
        notes.append("Table 21, of DimeNet++, is made at scale paper only.")
    return Report(
        tables=tables,
        figures={f"table-{table.title[6:8]}": figures.dots(table, label="eV, eV/Å, or score") for table in tables},
        notes=notes,
    )


# --- σ of forces

FORCE_MEASURES = ("Energy MAE", "Forces MAE", "AUC-ROC energy", "AUC-ROC forces")
FORCE_RATES: dict[Scale, tuple[int, ...]] = {"quick": (1, 5, 20), "paper": (1, 5, 10, 20)}


def _force_methods(scale: Scale) -> dict[str, dict[str, str]]:
    """Methods by block of rows and by column."""
    rates = FORCE_RATES[scale]
    return {
        "MCD": {f"{rate} %": f"mcd-{rate}" for rate in rates},
        "MCD-LNK": {f"{rate} %": f"mcd-lnk-{rate}" for rate in rates},
        "Ensemble": {"0 %": "ensemble"},
        "LNK, analytic σ": {f"{rate} %": f"lnk-{rate}" for rate in rates} | {"0 %": "fixed-lnk"},
        "fixed-LNK, closed form, analytic σ": {"0 %": "fixed-lnk-closed"},
    }


FORCE: dict[Scale, list[Study]] = {
    scale: [
        Study(scale, "qm7x", MAIN[scale], tuple(chain.from_iterable(map(dict.values, _force_methods(scale).values()))))
    ]
    for scale in FORCE_RATES
}


def present_forces(results: Results, scale: Scale) -> Report:
    methods = _force_methods(scale)

    def ours(row: Labels, column: str) -> float | None:
        return ours_of(results, scale, MAIN[scale], methods[row[0]])(row, column)

    def intervals(row: Labels, column: str) -> Interval | None:
        return intervals_of(results, scale, MAIN[scale], methods[row[0]])(row, column)

    rows = [(block, measure) for block in methods for measure in FORCE_MEASURES]
    detection = beside(paper.FORCE, ours, rows=[row for row in rows if row[1] == "AUC-ROC forces"])
    return Report(
        tables=[beside(paper.FORCE, ours, rows=rows, title=_title(scale), intervals=intervals)],
        figures={"detection": figures.dots(detection, label="AUC-ROC by force σ", logarithmic=False)},
        notes=[
            "Analytic σ of forces is that of the process itself, from one model and one forward-mode pass per "
            "coordinate. At 0 % dropout the LNK is the fixed-LNK. The paper has no such rows: it considers them "
            "impossible.",
            *differences(scale, "qm7x", (MAIN[scale],)),
        ],
    )


EXPERIMENTS = {
    "qm7x-accuracy": Experiment(
        "errors on QM7-X, in and out of equilibrium",
        "Tables 4, 17, 18, 19, 20 (errors)",
        15,
        jobs_of(STUDIES),
        present_accuracy,
    ),
    "qm7x-calibration": Experiment(
        "calibration on QM7-X", "Tables 4, 17, 18, 19, 20 (calibration)", 15, jobs_of(STUDIES), present_calibration
    ),
    "qm7x-ooe": Experiment(
        "detection of non-equilibrium structures of QM7-X",
        "Tables 5, 17, 18, 19, 20 (AUC-ROC)",
        15,
        jobs_of(STUDIES),
        present_detection,
    ),
    "dropout-rate": Experiment("dropout rates on QM7-X", "Tables 21, 22", 7, jobs_of(DROPOUT), present_dropout),
    "force-uncertainty": Experiment(
        "σ of forces by dropout, by an ensemble, and analytic", "Table 7", 15, jobs_of(FORCE), present_forces
    ),
}
