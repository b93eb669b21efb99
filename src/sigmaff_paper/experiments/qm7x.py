"""QM7-X: errors, calibration, detection of non-equilibrium structures, dropout rates and σ of forces."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from matplotlib.figure import Figure

from sigmaff.runs.jobs import Results
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.experiment import Entry, Experiment, Ours, Report, ResultTable, beside
from sigmaff_paper.experiments.notes import differences
from sigmaff_paper.experiments.settings import TITLES, Scale, Setup
from sigmaff_paper.experiments.study import OUT_OF_EQUILIBRIUM, RATES, Study, jobs_of
from sigmaff_paper.experiments.value import Value
from sigmaff_paper.tables import qm7x as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels, PaperTable

METRICS, OOD = ("metrics",), ("ood", OUT_OF_EQUILIBRIUM)
MEASURES: dict[str, tuple[str, ...]] = {  # keys of a result
    **dict.fromkeys(("Energy", "Energy MAE", "Energy ID"), (*METRICS, "energy_mae")),
    **dict.fromkeys(("Forces", "Forces MAE", "Forces ID"), (*METRICS, "forces_mae")),
    "Energy OOD": (*OOD, "ood_energy_mae"),
    "Forces OOD": (*OOD, "ood_forces_mae"),
    CALIBRATION: (*METRICS, "energy_calibration_paper_raw"),
    "Calibration per sample, raw force σ": (*METRICS, "forces_calibration_paper_raw"),
    "Calibration global, raw σ": (*METRICS, "energy_calibration_raw"),
    "Calibration global, calibrated σ": (*METRICS, "energy_calibration"),
    "Calibration global, raw force σ": (*METRICS, "forces_calibration_raw"),
    "Calibration global, calibrated force σ": (*METRICS, "forces_calibration"),
    **dict.fromkeys(("AUC-ROC", "AUC-ROC energy"), (*OOD, "energy_auroc_total")),
    "AUC-ROC, σ per atom": (*OOD, "energy_auroc"),
    "AUC-ROC forces (trace)": (*OOD, "forces_auroc_trace"),
    "AUC-ROC forces (rms)": (*OOD, "forces_auroc"),
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


MAIN: dict[Scale, tuple[str, ...]] = {"quick": ("schnet",), "hour": ("dimenet++", "schnet"), "paper": ("dimenet++",)}
"""The backbones of the tables of the paper's DimeNet++."""
_MAIN = (*COLUMNS.values(), "mcd-20-69", "mcd-1-69", "mcd-lnk-5", "mcd-lnk-1-69")
_OTHER = ("mcd-20", "mcd-20-69", "evidential")
_DROPOUT = tuple(f"mcd-{rate}" for rate in RATES)

STUDIES: dict[Scale, list[Study]] = {
    "quick": [Study("quick", "qm7x", "schnet", _MAIN)],
    "hour": [
        *(Study("hour", "qm7x", backbone, _MAIN) for backbone in MAIN["hour"]),
        Study("hour", "qm7x", "nequip", _OTHER),
    ],
    "paper": [
        Study("paper", "qm7x", "dimenet++", _MAIN),
        Study("paper", "qm7x", "schnet", _OTHER),
        Study("paper", "qm7x", "nequip", _OTHER),
    ],
}
_RATED: dict[Scale, tuple[str, ...]] = {
    "quick": ("schnet",),
    "hour": ("dimenet++", "schnet"),
    "paper": ("dimenet++", "schnet"),
}
DROPOUT: dict[Scale, list[Study]] = {
    scale: [Study(scale, "qm7x", backbone, _DROPOUT) for backbone in backbones] for scale, backbones in _RATED.items()
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """Return a lookup by measure, the last label of a row, and column; ``None`` if there is no such model."""

    def ours(row: Labels, column: str) -> Value | None:
        if column not in columns:
            return None
        return Study(scale, "qm7x", backbone).value(results, columns[column], *MEASURES[row[-1]])

    return ours


def _title(backbone: str) -> str:
    """Name the backbone that replaces the paper's DimeNet++, if another does."""
    return "" if backbone == "dimenet++" else f"; here {TITLES[backbone]} instead of DimeNet++"


# --- errors, calibration and detection, by method


def _report(
    results: Results,
    setup: Setup,
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
    scale = setup.scale
    first = {backbone: _main_table(results, scale, backbone, table, measures) for backbone in MAIN[scale]}
    more = [
        (tabulated, ours_of(results, scale, backbone, columns), _title(backbone))
        for tabulated, columns in ((paper.DIMENET_ALL, DIMENET_COLUMNS), (paper.DIMENET_69, DIMENET_69_COLUMNS))
        for backbone in MAIN[scale]
    ] + [
        (paper.OTHER_BACKBONES, _of_two_backbones(results, scale, OTHER_COLUMNS), ""),
        (paper.OTHER_BACKBONES_69, _of_two_backbones(results, scale, OTHER_69_COLUMNS), ""),
    ]
    name, label = figure
    return Report(
        tables=[*first.values(), *(_appendix(*each, appendix) for each in more)],
        figures=_figures(first, name, label, logarithmic=name == "errors"),
        notes=differences(setup, "qm7x", [study.backbone for study in STUDIES[scale]], results),
    )


def _figures(tables: Mapping[str, ResultTable], name: str, label: str, *, logarithmic: bool) -> dict[str, Figure]:
    """Of tables by backbone that have a number of ours; of all if none has."""
    shown = {backbone: table for backbone, table in tables.items() if table.has_ours} or tables
    return {
        name if len(tables) == 1 else f"{name}-{backbone}": figures.dots(table, label=label, logarithmic=logarithmic)
        for backbone, table in shown.items()
    }


def _main_table(
    results: Results, scale: Scale, backbone: str, table: PaperTable, measures: tuple[str, ...]
) -> ResultTable:
    rows: list[Labels] = [(measure,) for measure in measures]
    ours = ours_of(results, scale, backbone, COLUMNS)
    return beside(table, ours, rows=rows, more_columns=MORE, title=_title(backbone))


def _appendix(table: PaperTable, ours: Ours, title: str, beginnings: tuple[str, ...]) -> ResultTable:
    rows = [row for row in table.rows if row[-1].startswith(beginnings)]
    return beside(table, ours, rows=rows, title=title)


def _of_two_backbones(results: Results, scale: Scale, columns: Mapping[str, str]) -> Ours:
    """Of columns named "method, backbone"."""
    names = {title: name for name, title in TITLES.items()}

    def ours(row: Labels, column: str) -> Value | None:
        method, _, backbone = column.partition(", ")
        return ours_of(results, scale, names[backbone], columns)(row, method)

    return ours


def present_accuracy(results: Results, setup: Setup) -> Report:
    measures = ("Energy", "Forces")
    return _report(results, setup, paper.PREDICTIVE, measures, measures, ("errors", "MAE (eV, eV/Å)"))


def present_calibration(results: Results, setup: Setup) -> Report:
    measures = tuple(name for name in MEASURES if name.startswith("Calibration"))
    return _report(results, setup, paper.PREDICTIVE, measures, (CALIBRATION,), ("calibration", "calibration score"))


def present_detection(results: Results, setup: Setup) -> Report:
    measures = ("AUC-ROC", "AUC-ROC, σ per atom", "AUC-ROC forces (trace)", "AUC-ROC forces (rms)")
    report = _report(results, setup, paper.DETECTION, measures, ("AUC-ROC",), ("detection", "AUC-ROC"))
    n = len(MAIN[setup.scale])
    claims = [_claim(table, _title(name)) for table, name in zip(report.tables, MAIN[setup.scale], strict=False)]
    return replace(report, tables=[*report.tables[:n], *claims, *report.tables[n:]])


def _claim(table: ResultTable, title: str) -> ResultTable:
    """The paper: 1 − AUC-ROC of LNK is up to 2.5 and 2.1 times lower than that of dropout and evidential regression.

    Arguments:
        table: Table 5.
        title: appended to that of the claim.
    """
    entries = dict(zip(table.columns, table.rows["AUC-ROC",], strict=True))
    others = ("MCD 20 %", "MCD 1 %", "Evidential")

    def ratio(other: float | None, own: float | None) -> float | None:
        return None if other is None or own is None or own >= 1.0 else round((1.0 - other) / (1.0 - own), 2)

    return ResultTable(
        title=f"Claim of 2.5 and 2.1 times lower errors: (1 − AUC-ROC) over that of LNK, from Table 5{title}",
        columns=others,
        rows={
            (name,): tuple(
                Entry(
                    ours=ratio(entries[other].ours, entries[name].ours),
                    paper=ratio(entries[other].paper, entries[name].paper),
                )
                for other in others
            )
            for name in ("LNK", "fixed-LNK", "fixed-LNK, closed form")
        },
    )


# --- dropout rates


def present_dropout(results: Results, setup: Setup) -> Report:
    by_backbone = {"dimenet++": paper.DROPOUT_DIMENET, "schnet": paper.DROPOUT_SCHNET}
    columns = {f"{rate} %": f"mcd-{rate}" for rate in RATES}
    backbones = [study.backbone for study in DROPOUT[setup.scale]]
    tables = [beside(by_backbone[name], ours_of(results, setup.scale, name, columns)) for name in backbones]
    notes = differences(setup, "qm7x", backbones, results)
    if setup.scale == "quick":
        notes.append("Table 21, of DimeNet++, is made at scales hour and paper only.")
    return Report(
        tables=tables,
        figures={f"table-{table.title[6:8]}": figures.dots(table, label="eV, eV/Å, or score") for table in tables},
        notes=notes,
    )


# --- σ of forces

FORCE_MEASURES = ("Energy MAE", "Forces MAE", "AUC-ROC energy", "AUC-ROC forces (trace)", "AUC-ROC forces (rms)")
FORCE_RATES: dict[Scale, tuple[int, ...]] = {"quick": (1, 5, 20), "hour": (1, 5, 10, 20), "paper": (1, 5, 10, 20)}


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
        Study(scale, "qm7x", backbone, tuple(chain.from_iterable(map(dict.values, _force_methods(scale).values()))))
        for backbone in MAIN[scale]
    ]
    for scale in FORCE_RATES
}


def present_forces(results: Results, setup: Setup) -> Report:
    tables = {backbone: _force_table(results, setup.scale, backbone) for backbone in MAIN[setup.scale]}
    detection = {
        backbone: replace(
            table, rows={row: table.rows[row] for row in table.rows if row[1] == "AUC-ROC forces (trace)"}
        )
        for backbone, table in tables.items()
    }
    label = "AUC-ROC by the trace of the force covariance"
    return Report(
        tables=list(tables.values()),
        figures=_figures(detection, "detection", label, logarithmic=False),
        notes=[
            "Analytic σ of forces is that of the process itself, from one model and one forward-mode pass per "
            "coordinate. At 0 % dropout the LNK is the fixed-LNK. The paper has no such rows: it considers them "
            "impossible.",
            *differences(setup, "qm7x", MAIN[setup.scale], results),
        ],
    )


def _force_table(results: Results, scale: Scale, backbone: str) -> ResultTable:
    methods = _force_methods(scale)

    def ours(row: Labels, column: str) -> Value | None:
        return ours_of(results, scale, backbone, methods[row[0]])(row, column)

    rows = [(block, measure) for block in methods for measure in FORCE_MEASURES]
    return beside(paper.FORCE, ours, rows=rows, title=_title(backbone))


EXPERIMENTS = {
    "qm7x-accuracy": Experiment(
        "errors on QM7-X, in and out of equilibrium",
        "Tables 4, 17, 18, 19, 20 (errors)",
        17,
        jobs_of(STUDIES),
        present_accuracy,
    ),
    "qm7x-calibration": Experiment(
        "calibration on QM7-X", "Tables 4, 17, 18, 19, 20 (calibration)", 17, jobs_of(STUDIES), present_calibration
    ),
    "qm7x-ooe": Experiment(
        "detection of non-equilibrium structures of QM7-X",
        "Tables 5, 17, 18, 19, 20 (AUC-ROC)",
        17,
        jobs_of(STUDIES),
        present_detection,
    ),
    "dropout-rate": Experiment("dropout rates on QM7-X", "Tables 21, 22", 7, jobs_of(DROPOUT), present_dropout),
    "force-uncertainty": Experiment(
        "σ of forces by dropout, by an ensemble, and analytic", "Table 7", 15, jobs_of(FORCE), present_forces
    ),
}
