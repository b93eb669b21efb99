"""SVGP-DKL, a process on the embedding of a whole structure, against LNK, one on those of its atoms."""

from sigmaff.runs.jobs import Results
from sigmaff_paper.experiments import figures, md17, qm7x
from sigmaff_paper.experiments.experiment import Experiment, Report, beside, differences
from sigmaff_paper.experiments.settings import TITLES, Scale
from sigmaff_paper.experiments.study import Study, jobs_of
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import Labels

COLUMNS = {"LNK": "lnk-5", "SVGP-DKL": "svgp-dkl"}
BACKBONE = "dimenet++"  # on MD17
MOLECULES: dict[Scale, tuple[str, ...]] = {"quick": ("ethanol", "uracil"), "paper": paper.MOLECULES}


STUDIES: dict[Scale, list[Study]] = {
    scale: [
        *(Study(scale, molecule, BACKBONE, tuple(COLUMNS.values())) for molecule in MOLECULES[scale]),
        Study(scale, "qm7x", qm7x.MAIN[scale], tuple(COLUMNS.values())),
    ]
    for scale in MOLECULES
}


def present(results: Results, scale: Scale) -> Report:
    of_molecules = md17.ours_of(results, scale, BACKBONE, COLUMNS)
    of_qm7x = qm7x.ours_of(results, scale, qm7x.MAIN[scale], COLUMNS)
    rows: list[Labels] = [(name, key) for name in (*MOLECULES[scale], "QM7-X") for key in ("Energy", "Forces")]
    table = beside(
        paper.SVGP_DKL,
        lambda row, column: (of_qm7x if row[0] == "QM7-X" else of_molecules)(row, column),
        rows=rows,
    )
    notes = [*differences(scale, "md17", (BACKBONE,)), *differences(scale, "qm7x", (qm7x.MAIN[scale],))]
    if qm7x.MAIN[scale] != "dimenet++":
        notes.insert(0, f"On QM7-X {TITLES[qm7x.MAIN[scale]]} replaces DimeNet++.")
    return Report(
        tables=[table],
        figures={"errors": figures.dots(table, label="MAE (kcal/mol, /Å; QM7-X eV, /Å)")},
        notes=list(dict.fromkeys(notes)),
    )


EXPERIMENTS = {"svgp-dkl": Experiment("SVGP-DKL against LNK", "Table 12", 9, jobs_of(STUDIES), present)}
