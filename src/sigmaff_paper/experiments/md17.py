"""MD17: errors and calibration by molecule, detection of other molecules, and the mixture density network."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from sigmaff.runs.jobs import Results
from sigmaff.units import KCAL_PER_MOL
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.experiment import Entry, Experiment, Ours, Report, ResultTable, beside
from sigmaff_paper.experiments.figures import Matrix
from sigmaff_paper.experiments.notes import differences
from sigmaff_paper.experiments.settings import TITLES, Scale, Setup
from sigmaff_paper.experiments.study import MD17_MOLECULES, Study, jobs_of
from sigmaff_paper.experiments.value import Value, mean_of
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import CALIBRATION, Labels

MEASURES: dict[str, tuple[str, float]] = {  # key of a metric, factor
    "Energy": ("energy_mae", 1.0 / KCAL_PER_MOL),
    "Forces": ("forces_mae", 1.0 / KCAL_PER_MOL),
    CALIBRATION: ("energy_calibration_paper_raw", 1.0),
    "Calibration global, raw σ": ("energy_calibration_raw", 1.0),
    "Calibration global, calibrated σ": ("energy_calibration", 1.0),
    "Calibration global, raw force σ": ("forces_calibration_raw", 1.0),
    "Calibration global, calibrated force σ": ("forces_calibration", 1.0),
}
CLOSED = "fixed-LNK, closed form"
LESS_DROPOUT = "LNK, 1 % dropout"
"""The paper names no rate for MD17. On QM7-X its LNK has 5 and 1 %."""
COLUMNS = {
    "MCD": "mcd-20",
    "Dropout": "mcd-20",
    "MCD (N=5)": "mcd-20",
    "MCD (N=69)": "mcd-20-69",
    "Evidential": "evidential",
    "fixed-LNK": "fixed-lnk",
    "LNK": "lnk-5",
    LESS_DROPOUT: "lnk-1",
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


def _accuracy(scale: Scale) -> list[Study]:
    """With the paper's networks."""
    return [
        *_studies(scale, ["schnet"], (*_ALL, "lnk-5", "lnk-1", "ensemble"), paper.MOLECULES),
        *_studies(scale, ["dimenet++", "nequip"], (*_ALL, "ensemble"), paper.MOLECULES),
    ]


ACCURACY: dict[Scale, list[Study]] = {
    "quick": [
        *_studies("quick", ["schnet"], (*_ALL, "lnk-5", "ensemble"), ("ethanol", "uracil")),
        *_studies("quick", ["dimenet++", "nequip"], _ALL, ("ethanol",)),
    ],
    "hour": _accuracy("hour"),
    "paper": _accuracy("paper"),
}
_DETECTING = ("mcd-20", "evidential", "fixed-lnk", "fixed-lnk-closed", "ensemble")


def _detection(scale: Scale) -> list[Study]:
    """With the paper's networks."""
    return [
        *_studies(scale, ["schnet"], (*_DETECTING, "lnk-5", "lnk-1"), paper.MOLECULES),
        *_studies(scale, ["dimenet++", "nequip"], _DETECTING, paper.MOLECULES),
    ]


DETECTION: dict[Scale, list[Study]] = {
    "quick": _studies(
        "quick", ["schnet"], ("mcd-20", "evidential", "fixed-lnk", "fixed-lnk-closed"), MD17_MOLECULES["quick"]
    ),
    "hour": _detection("hour"),
    "paper": _detection("paper"),
}
MIXTURE: dict[Scale, list[Study]] = {
    scale: _studies(scale, ["schnet"], ("fixed-lnk", "gmdn"), molecules) for scale, molecules in MD17_MOLECULES.items()
}


def ours_of(results: Results, scale: Scale, backbone: str, columns: Mapping[str, str]) -> Ours:
    """Return a lookup of the number of (molecule, measure) and of a column."""

    def ours(row: Labels, column: str) -> Value | None:
        molecule, measure = row
        key, factor = MEASURES[measure]
        value = Study(scale, molecule, backbone).value(results, columns[column], "metrics", key)
        return None if value is None else value.times(factor)

    return ours


# --- errors and calibration


def present_accuracy(results: Results, setup: Setup) -> Report:
    scale = setup.scale
    tables = [
        beside(
            table,
            ours_of(results, scale, backbone, columns),
            rows=[(study.dataset, measure) for study in _of_backbone(scale, backbone) for measure in MEASURES],
            more_columns=(*more, CLOSED),
        )
        for table, backbone, columns, more in (
            (paper.SCHNET, "schnet", COLUMNS, ()),
            (paper.DIMENET_ALL, "dimenet++", FIXED_EVERYWHERE, ()),
            (paper.NEQUIP_ALL, "nequip", FIXED_EVERYWHERE, ()),
            (paper.SCHNET_ALL, "schnet", COLUMNS, (LESS_DROPOUT,)),
        )
    ]
    average = _averages(results, scale)
    return Report(
        tables=[average, *tables],
        figures={"averages": figures.dots(average, label="MAE (kcal/mol, kcal/mol/Å)")},
        notes=[
            "Averages over fewer than seven molecules are compared with the paper's averages over the same molecules.",
            "The column LNK of Tables 14 and 15 is the fixed-LNK: their averages are those of Table 3.",
            *differences(setup, "md17", TITLES, results),
        ],
    )


def _of_backbone(scale: Scale, backbone: str) -> list[Study]:
    return [study for study in ACCURACY[scale] if study.backbone == backbone]


def _molecules(results: Results, scale: Scale, backbone: str) -> tuple[str, ...]:
    """Those with a result; all if there is none."""
    studies = _of_backbone(scale, backbone)
    found = [study for study in studies if study.value(results, "backbone", "metrics", "energy_mae") is not None]
    return tuple(study.dataset for study in found or studies)


AVERAGED = {"dimenet++": paper.DIMENET_ALL, "schnet": paper.SCHNET, "nequip": paper.NEQUIP_ALL}
"""The tables of single molecules that Table 3 averages."""
COLUMN_OF_MOLECULES = {"Dropout": ("MCD", "MCD (N=5)"), "fixed-LNK": ("fixed-LNK", "LNK")}
"""Names of columns of Table 3 in those."""


def _averages(results: Results, scale: Scale) -> ResultTable:
    """Table 3; for fewer molecules, with the paper's averages over the same ones."""
    rows: dict[Labels, tuple[str, tuple[str, ...]]] = {}  # backbone and molecules
    for backbone in AVERAGED:
        molecules, title = _molecules(results, scale, backbone), TITLES[backbone]
        named = title if molecules == paper.MOLECULES else f"{title}: {', '.join(molecules)}"
        rows |= {(named, measure): (backbone, molecules) for measure in ("Energy", "Forces")}

    def mean(row: Labels, column: str) -> Value | None:
        backbone, molecules = rows[row]
        ours = ours_of(results, scale, backbone, COLUMNS)
        return mean_of([ours((molecule, row[1]), column) for molecule in molecules])

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
PERFECT = ("fixed-lnk", "lnk-5", "fixed-lnk-closed", "ensemble")
"""Methods that detect all molecules according to the text; its figures have no other numbers."""
SUMMARY: dict[str, str] = {
    "least AUROC, σ per atom": "energy_auroc",
    "least AUROC, σ of the whole": "energy_auroc_total",
    "least AUROC, force σ (rms)": "forces_auroc",
    "least AUROC, force σ (trace)": "forces_auroc_trace",
}
SAME_SIZE = "ethanol, malonaldehyde (9 atoms each), σ per atom"


def auroc_map(results: Results, scale: Scale, backbone: str, method: str, measure: str) -> Matrix:
    """Return AUROC by trained (rows) and other (columns) molecule; 0.5 on the diagonal, by definition.

    NaN where there is no result.
    """
    names = MD17_MOLECULES[scale]
    studies = [Study(scale, molecule, backbone) for molecule in names]
    found = [[study.value(results, method, "ood", other, measure) for other in names] for study in studies]
    values = np.array([[np.nan if value is None else value.mean for value in row] for row in found])
    return np.where(np.eye(len(names), dtype=bool) & np.isfinite(values).any(1), 0.5, values)


def present_detection(results: Results, setup: Setup) -> Report:
    scale = setup.scale
    maps = _detection_maps(results, scale)
    backbones = list(dict.fromkeys(backbone for backbone, _ in maps))
    return Report(
        tables=[_summary(results, scale, maps), *(_map_table(values, scale, *key) for key, values in maps.items())],
        figures={
            backbone: figures.heat_maps(
                {METHOD_TITLES[method]: values for (name, method), values in maps.items() if name == backbone},
                MD17_MOLECULES[scale],
            )
            for backbone in backbones
        },
        notes=[
            "Rows: the molecule that a model was trained on; columns: the molecule that its energy σ per atom should "
            "detect. 0.5 on the diagonal is by definition.",
            "The paper's heat maps have no numbers. According to its text ensembles and LNK separate perfectly (1), "
            "and MCD and evidential regression show no clear diagonal. Its σ is that of the whole molecule.",
            *differences(setup, "md17", backbones, results),
        ],
    )


def _detection_maps(results: Results, scale: Scale) -> dict[tuple[str, str], Matrix]:
    """Heat maps by backbone and method, of those with a result; of all if there is none."""
    models = dict.fromkeys((study.backbone, method) for study in DETECTION[scale] for method in study.methods)
    maps = {model: auroc_map(results, scale, *model, "energy_auroc") for model in models}
    return {model: values for model, values in maps.items() if np.isfinite(values).any()} or maps


def _summary(results: Results, scale: Scale, models: Iterable[tuple[str, str]]) -> ResultTable:
    """Of models by backbone and method."""
    names = MD17_MOLECULES[scale]
    pair = [names.index("ethanol"), names.index("malonaldehyde")]
    rows: dict[Labels, tuple[Entry, ...]] = {}
    for backbone, method in models:
        found = {key: auroc_map(results, scale, backbone, method, key) for key in SUMMARY.values()}
        published = {"energy_auroc_total": 1.0} if method in PERFECT else {}
        rows[TITLES[backbone], METHOD_TITLES[method]] = (
            *(Entry(ours=_least_other(values), paper=published.get(key)) for key, values in found.items()),
            Entry(ours=_least(found["energy_auroc"][pair, pair[::-1]])),
            Entry(ours=int(np.isfinite(found["energy_auroc"]).any(1).sum())),
        )
    title = "Figures 3, 5 and 6: the pair that is hardest to distinguish"
    return ResultTable(title=title, columns=(*SUMMARY, SAME_SIZE, "molecules trained on"), rows=rows)


def _least_other(values: Matrix) -> float | None:
    """Of molecules other than the trained one, over all trained ones."""
    off_diagonal = ~np.eye(len(values), dtype=bool)
    trained = np.isfinite(values).any(1, keepdims=True)
    return _least(values[off_diagonal & trained])


def _least(values: Matrix) -> float | None:
    """``None`` if a value is missing."""
    return float(values.min()) if values.size and np.isfinite(values).all() else None


def _map_table(values: Matrix, scale: Scale, backbone: str, method: str) -> ResultTable:
    """Of the molecules that models were trained on; of all if there is no model."""
    names = MD17_MOLECULES[scale]
    has_model = bool(np.isfinite(values).any())
    return ResultTable(
        title=f"AUROC by energy σ per atom: {TITLES[backbone]}, {METHOD_TITLES[method]}",
        columns=names,
        rows={
            (name,): tuple(Entry(ours=float(value) if np.isfinite(value) else None) for value in row)
            for name, row in zip(names, values, strict=True)
            if np.isfinite(row).any() or not has_model
        },
    )


# --- mixture density network


def present_mixture(results: Results, setup: Setup) -> Report:
    scale = setup.scale
    rows = [(study.dataset, measure) for study in MIXTURE[scale] for measure in ("Energy", "Forces")]
    table = beside(paper.GMDN, ours_of(results, scale, "schnet", FIXED_EVERYWHERE), rows=rows)
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
            *differences(setup, "md17", ("schnet",), results),
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
        11,
        jobs_of(DETECTION),
        present_detection,
    ),
    "gmdn": Experiment(
        "graph mixture density network against LNK", "Table 13, Figure 4", 6, jobs_of(MIXTURE), present_mixture
    ),
}
