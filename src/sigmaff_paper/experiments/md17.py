"""MD17: errors and calibration by molecule, detection of other molecules, and the mixture density network."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from sigmaff.runs.jobs import Results
from sigmaff.units import KCAL_PER_MOL
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.experiment import (
    Entry,
    Experiment,
    Interval,
    Intervals,
    Ours,
    Report,
    ResultTable,
    beside,
    differences,
)
from sigmaff_paper.experiments.figures import Matrix
from sigmaff_paper.experiments.settings import TITLES, Scale
from sigmaff_paper.experiments.study import MD17_MOLECULES, Study, jobs_of
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels

GLOBAL, GLOBAL_FORCES = "Calibration, global", "Calibration, global, forces"
MEASURES: dict[str, tuple[str, float]] = {  # key of a metric, factor
    "Energy": ("energy_mae", 1.0 / KCAL_PER_MOL),
    "Forces": ("forces_mae", 1.0 / KCAL_PER_MOL),
    CALIBRATION: ("energy_calibration_paper", 1.0),
    GLOBAL: ("energy_calibration", 1.0),
    GLOBAL_FORCES: ("forces_calibration", 1.0),
}
CLOSED = "fixed-LNK, closed form"
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
    CLOSED: "fixed-lnk-closed",
}
"""Methods of the paper's columns, and ours."""
FIXED_EVERYWHERE = {**COLUMNS, "LNK": "fixed-lnk"}
"""In Tables 13 to 15 the column LNK is the fixed one: their averages are those of Table 3."""


def _studies(
    scale: Scale, backbones: Iterable[str], methods: tuple[str, ...], molecules: tuple[str, ...]
) -> list[Study]:
    return [Study(scale, molecule, backbone, methods) for backbone in backbones for molecule in molecules]


_ALL = ("backbone", "mcd-20", "mcd-20-69", "evidential", "fixed-lnk", "fixed-lnk-closed")
ACCURACY: dict[Scale, list[Study]] = {
    "quick": [
        *_studies("quick", ["schnet"], (*_ALL, "lnk-5", "ensemble"), ("ethanol", "uracil")),
        *_studies("quick", ["dimenet++", "nequip"], _ALL, ("ethanol",)),
    ],
    "paper": [
        *_studies("paper", ["schnet"], (*_ALL, "lnk-5", "ensemble"), paper.MOLECULES),
        *_studies("paper", ["dimenet++", "nequip"], (*_ALL, "ensemble"), paper.MOLECULES),
    ],
}
DETECTION: dict[Scale, list[Study]] = {
    "quick": _studies("quick", ["schnet"], ("mcd-20", "evidential", "fixed-lnk-closed"), MD17_MOLECULES["quick"]),
    "paper": _studies(
        "paper", TITLES, ("mcd-20", "evidential", "fixed-lnk", "fixed-lnk-closed", "ensemble"), paper.MOLECULES
    ),
}
MIXTURE: dict[Scale, list[Study]] = {
    "quick": _studies("quick", ["schnet"], ("fixed-lnk", "gmdn"), MD17_MOLECULES["quick"]),
    "paper": _studies("paper", ["schnet"], ("fixed-lnk", "gmdn"), paper.MOLECULES),
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """Return a lookup of the number of (molecule, measure) and of a column."""

    def ours(row: Labels, column: str) -> float | None:
        molecule, measure = row
        key, factor = MEASURES[measure]
        study = Study(scale, molecule, backbone)
        number = study.number(results, columns[column], "metrics", key)
        return None if number is None else factor * number

    return ours


def intervals_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Intervals:
    """Return a lookup as ``ours_of``: of errors, not of calibration scores, which resampling biases."""

    def interval(row: Labels, column: str) -> Interval | None:
        molecule, measure = row
        key, factor = MEASURES[measure]
        if measure.startswith(CALIBRATION):
            return None
        found = Study(scale, molecule, backbone).interval(results, columns[column], "metrics", key)
        return None if found is None else (factor * found[0], factor * found[1])

    return interval


# --- errors and calibration


def present_accuracy(results: Results, scale: Scale) -> Report:
    tables = [
        beside(
            table,
            ours_of(results, scale, backbone, columns),
            rows=[(molecule, measure) for molecule in _molecules(scale, backbone) for measure in MEASURES],
            more_columns=(CLOSED,),
            intervals=intervals_of(results, scale, backbone, columns),
        )
        for table, backbone, columns in (
            (paper.SCHNET, "schnet", COLUMNS),
            (paper.DIMENET_ALL, "dimenet++", FIXED_EVERYWHERE),
            (paper.NEQUIP_ALL, "nequip", FIXED_EVERYWHERE),
            (paper.SCHNET_ALL, "schnet", COLUMNS),
        )
    ]
    average = _averages(results, scale)
    return Report(
        tables=[average, *tables],
        figures={"averages": figures.dots(average, label="MAE (kcal/mol, kcal/mol/Å)")},
        notes=[
            "Averages over fewer than seven molecules are compared with the paper's averages over the same molecules.",
            "The column LNK of Tables 14 and 15 is the fixed-LNK: their averages are those of Table 3.",
            *differences(scale, "md17", TITLES),
        ],
    )


def _molecules(scale: Scale, backbone: str) -> tuple[str, ...]:
    return tuple(study.dataset for study in ACCURACY[scale] if study.backbone == backbone)


AVERAGED = {"dimenet++": paper.DIMENET_ALL, "schnet": paper.SCHNET, "nequip": paper.NEQUIP_ALL}
"""The tables of single molecules that Table 3 averages."""
COLUMN_OF_MOLECULES = {"Dropout": ("MCD", "MCD (N=5)"), "fixed-LNK": ("fixed-LNK", "LNK")}
"""Names of columns of Table 3 in those."""


def _averages(results: Results, scale: Scale) -> ResultTable:
    """Table 3; for fewer molecules, with the paper's averages over the same ones."""
    rows: dict[Labels, tuple[str, tuple[str, ...]]] = {}  # backbone and molecules
    for backbone in AVERAGED:
        molecules, title = _molecules(scale, backbone), TITLES[backbone]
        named = title if molecules == paper.MOLECULES else f"{title}: {', '.join(molecules)}"
        rows |= {(named, measure): (backbone, molecules) for measure in ("Energy", "Forces")}

    def mean(row: Labels, column: str) -> float | None:
        backbone, molecules = rows[row]
        ours = ours_of(results, scale, backbone, COLUMNS)
        return _mean([ours((molecule, row[1]), column) for molecule in molecules])

    columns = paper.AVERAGE.columns
    means = {row: tuple(_published_mean(*rows[row], row[1], column) for column in columns) for row in rows}
    table = replace(paper.AVERAGE, rows={**means, **paper.AVERAGE.rows})  # printed averages replace computed ones
    return beside(table, mean, rows=rows, more_columns=(CLOSED,))


def _published_mean(backbone: str, molecules: tuple[str, ...], measure: str, column: str) -> float | None:
    """The mean over these molecules in the paper's own table of them."""
    table = AVERAGED[backbone]
    own = next((name for name in COLUMN_OF_MOLECULES.get(column, (column,)) if name in table.columns), column)
    return _mean([table.value((molecule, measure), own) for molecule in molecules])


def _mean(values: list[float | None]) -> float | None:
    """``None`` if a value is missing."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


# --- detection of other molecules

METHOD_TITLES = {method: column for column, method in reversed(COLUMNS.items())}
PERFECT = ("fixed-lnk", "fixed-lnk-closed", "ensemble")
"""Methods that detect all molecules according to the text; its figures have no other numbers."""
SUMMARY: dict[str, str] = {
    "least AUROC, σ per atom": "energy_auroc",
    "least AUROC, σ of the whole": "energy_auroc_total",
    "least AUROC, force σ": "forces_auroc",
}
SAME_SIZE = "ethanol, malonaldehyde (9 atoms each), σ per atom"


def auroc_map(results: Results, scale: Scale, backbone: str, method: str, measure: str) -> Matrix:
    """Return AUROC by trained (rows) and other (columns) molecule; 0.5 on the diagonal, by definition."""
    names = MD17_MOLECULES[scale]
    studies = [Study(scale, molecule, backbone) for molecule in names]
    found = [[study.number(results, method, "ood", other, measure) for other in names] for study in studies]
    values = np.array(found, dtype=float)  # NaN for None
    np.fill_diagonal(values, 0.5)
    return values


def present_detection(results: Results, scale: Scale) -> Report:
    methods = {study.backbone: study.methods for study in DETECTION[scale]}
    maps = {
        (backbone, method): auroc_map(results, scale, backbone, method, "energy_auroc")
        for backbone in methods
        for method in methods[backbone]
    }
    return Report(
        tables=[_summary(results, scale, maps), *(_map_table(values, scale, *key) for key, values in maps.items())],
        figures={
            backbone: figures.heat_maps(
                {METHOD_TITLES[method]: maps[backbone, method] for method in methods[backbone]}, MD17_MOLECULES[scale]
            )
            for backbone in methods
        },
        notes=[
            "Rows: the molecule that a model was trained on; columns: the molecule that its energy σ per atom should "
            "detect. 0.5 on the diagonal is by definition.",
            "The paper's heat maps have no numbers. According to its text ensembles and LNK separate perfectly (1), "
            "and MCD and evidential regression show no clear diagonal. Its σ is that of the whole molecule.",
            *differences(scale, "md17", methods),
        ],
    )


def _summary(results: Results, scale: Scale, models: Iterable[tuple[str, str]]) -> ResultTable:
    """Of models by backbone and method."""
    names = MD17_MOLECULES[scale]
    others, pair = ~np.eye(len(names), dtype=bool), [names.index("ethanol"), names.index("malonaldehyde")]
    rows: dict[Labels, tuple[Entry, ...]] = {}
    for backbone, method in models:
        per_atom, of_whole, of_forces = (auroc_map(results, scale, backbone, method, key) for key in SUMMARY.values())
        rows[TITLES[backbone], METHOD_TITLES[method]] = (
            Entry(ours=_least(per_atom[others])),
            Entry(ours=_least(of_whole[others]), paper=1.0 if method in PERFECT else None),
            Entry(ours=_least(of_forces[others])),
            Entry(ours=_least(per_atom[pair, pair[::-1]])),
        )
    title = "Figures 3, 5 and 6: the pair that is hardest to distinguish"
    return ResultTable(title=title, columns=(*SUMMARY, SAME_SIZE), rows=rows)


def _least(values: Matrix) -> float | None:
    """``None`` if a value is missing."""
    return float(values.min()) if np.isfinite(values).all() else None


def _map_table(values: Matrix, scale: Scale, backbone: str, method: str) -> ResultTable:
    names = MD17_MOLECULES[scale]
    return ResultTable(
        title=f"AUROC by energy σ per atom: {TITLES[backbone]}, {METHOD_TITLES[method]}",
        columns=names,
        rows={
            (name,): tuple(Entry(ours=float(value) if np.isfinite(value) else None) for value in row)
            for name, row in zip(names, values, strict=True)
        },
    )


# --- mixture density network


def present_mixture(results: Results, scale: Scale) -> Report:
    ours = ours_of(results, scale, "schnet", FIXED_EVERYWHERE)
    rows = [(study.dataset, measure) for study in MIXTURE[scale] for measure in ("Energy", "Forces")]
    intervals = intervals_of(results, scale, "schnet", FIXED_EVERYWHERE)
    table = beside(paper.GMDN, ours, rows=rows, intervals=intervals)
    values = auroc_map(results, scale, "schnet", "gmdn", "energy_auroc")
    return Report(
        tables=[table, _map_table(values, scale, "schnet", "gmdn")],
        figures={
            "errors": figures.dots(table, label="MAE (kcal/mol, kcal/mol/Å)"),
            "detection": figures.heat_maps({"GMDN": values}, MD17_MOLECULES[scale]),
        },
        notes=[
            "The paper takes the best of several settings for each molecule; here all have one setting. The column "
            "LNK is the fixed-LNK of Table 2.",
            *differences(scale, "md17", ("schnet",)),
        ],
    )


EXPERIMENTS = {
    "md17-accuracy": Experiment(
        "errors and calibration on MD17, by molecule and on average",
        "Tables 2, 3, 14, 15, 16",
        16,
        jobs_of(ACCURACY),
        present_accuracy,
    ),
    "md17-ood": Experiment(
        "detection of molecules of MD17 other than the one that a model was trained on",
        "Figures 3, 5, 6",
        9,
        jobs_of(DETECTION),
        present_detection,
    ),
    "gmdn": Experiment(
        "graph mixture density network against LNK", "Table 13, Figure 4", 6, jobs_of(MIXTURE), present_mixture
    ),
}
