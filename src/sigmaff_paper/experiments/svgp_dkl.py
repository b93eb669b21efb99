"""SVGP-DKL, a process on the embedding of a whole structure, against LNK, one on those of its atoms."""

from sigmaff.runs.jobs import Results
from sigmaff_paper.experiments import figures, md17, qm7x
from sigmaff_paper.experiments.experiment import Experiment, Report, beside
from sigmaff_paper.experiments.notes import differences
from sigmaff_paper.experiments.settings import TITLES, Scale, Setup
from sigmaff_paper.experiments.study import Study, jobs_of
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import Labels

COLUMNS = {"LNK": "lnk-5", "SVGP-DKL": "svgp-dkl"}
BACKBONE = "dimenet++"  # on MD17
MOLECULES: dict[Scale, tuple[str, ...]] = {
    "quick": ("ethanol", "uracil"),
    "hour": paper.MOLECULES,
    "paper": paper.MOLECULES,
}
ON_QM7X: dict[Scale, str] = {scale: backbones[0] for scale, backbones in qm7x.MAIN.items()}


STUDIES: dict[Scale, list[Study]] = {
    scale: [
        *(Study(scale, molecule, BACKBONE, tuple(COLUMNS.values())) for molecule in MOLECULES[scale]),
        Study(scale, "qm7x", ON_QM7X[scale], tuple(COLUMNS.values())),
    ]
    for scale in MOLECULES
}


def present(results: Results, setup: Setup) -> Report:
    scale, backbone = setup.scale, ON_QM7X[setup.scale]
    of_molecules = md17.ours_of(results, scale, BACKBONE, COLUMNS)
    of_qm7x = qm7x.ours_of(results, scale, backbone, COLUMNS)
    rows: list[Labels] = [(name, key) for name in (*MOLECULES[scale], "QM7-X") for key in ("Energy", "Forces")]
    table = beside(
        paper.SVGP_DKL,
        lambda row, column: (of_qm7x if row[0] == "QM7-X" else of_molecules)(row, column),
        rows=rows,
    )
    notes = [
        *differences(setup, "md17", (BACKBONE,), results),
        *differences(setup, "qm7x", (backbone,), results),
    ]
    if backbone != "dimenet++":
        notes.insert(0, f"On QM7-X {TITLES[backbone]} replaces DimeNet++.")
    return Report(
        tables=[table],
        figures={"errors": figures.dots(table, label="MAE (kcal/mol, /Å; QM7-X eV, /Å)")},
        notes=list(dict.fromkeys(notes)),
    )


EXPERIMENTS = {"svgp-dkl": Experiment("SVGP-DKL against LNK", "Table 12", 9, jobs_of(STUDIES), present)}
