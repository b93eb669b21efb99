"""Energy σ of distant copies of a molecule: size-consistent if it grows as their number."""

from typing import Any, ClassVar

import numpy as np
from ase import Atoms
from pydantic import Field

from sigmaff.data import DataSource, read_structures
from sigmaff.graph import build_graph
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.runs.jobs import Job, JobFolder, Results
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.experiment import Experiment, Report, beside
from sigmaff_paper.experiments.notes import differences
from sigmaff_paper.experiments.settings import SIZES, Setup
from sigmaff_paper.experiments.study import COPIES, Study
from sigmaff_paper.experiments.value import Value
from sigmaff_paper.tables import costs as paper
from sigmaff_paper.tables.hyperparameters import COPIES_APART
from sigmaff_paper.tables.table import Labels

MOLECULE, BACKBONE = "ethanol", "schnet"  # the paper does not name its own
METHODS = {
    "Ensemble": "ensemble",
    "MCD": "mcd-20",
    "Evidential": "evidential",
    "SVGP-DKL": "svgp-dkl",
    "LNK": "lnk-5",
    "fixed-LNK, closed form": "fixed-lnk-closed",
}
LAST = "σ of 8 / σ of 1"
N_COPIED = 20
"""Test structures that are copied."""


class CopiesJob(Job):
    """Energy σ of 1, 2, … copies of a molecule in a row relative to one: means over test structures."""

    kind: ClassVar[str] = "Copies"

    source: DataSource = Field(description="structures that contain the model's test set")
    n_copies: int = Field(default=8, ge=2, description="largest number of copies")
    apart: float = Field(default=COPIES_APART, gt=0, description="Å from one copy to the next")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        model, n = load(folder.model(self.after[0])), range(1, self.n_copies + 1)
        assert model.record.split is not None
        test = read_structures(self.source).subset(model.record.split.test[:N_COPIED])
        std = np.array([[_energy_std(model, self._copied(atoms, k)) for k in n] for atoms in test.structures])
        curve = (std / std[:, :1]).mean(0)
        slope = np.polyfit(np.log(n), np.log(std / std[:, :1]).mean(0), 1)[0]
        return {"n": list(n), "curve": curve.tolist(), "slope": float(slope), "last": float(curve[-1])}

    def _copied(self, atoms: Atoms, n: int) -> Atoms:
        copies = Atoms()
        for number in range(n):
            copy = atoms.copy()
            copy.positions[:, 0] += number * self.apart
            copies += copy
        return copies


def _energy_std(model: Model, atoms: Atoms) -> float:
    prediction = model.predict_raw(build_graph(atoms, model.cutoff, model.dtype), forces_std="none")
    assert prediction.energy_std is not None
    return float(prediction.energy_std)


STUDIES = {scale: Study(scale, MOLECULE, BACKBONE, tuple(METHODS.values())) for scale in SIZES}


def _jobs(setup: Setup, data: DataFolders) -> list[Job]:
    source = data.md17(MOLECULE)
    jobs: list[Job] = []
    for study in STUDIES[setup.scale].repeated(setup):
        jobs += study.jobs(data)
        for method in study.methods:
            name, after = study.job(f"{method}{COPIES}"), (study.job(method),)
            jobs.append(CopiesJob(name=name, after=after, needs=(source.path,), source=source))
    return jobs


def present(results: Results, setup: Setup) -> Report:
    study = STUDIES[setup.scale]

    def ours(row: Labels, column: str) -> Value | None:
        return study.value(results, f"{METHODS[row[0]]}{COPIES}", "last" if column == LAST else column)

    found = {title: study.results(results, f"{method}{COPIES}") for title, method in METHODS.items()}
    done = {title: [one.content["curve"] for one in each if one.status == "done"] for title, each in found.items()}
    curves = {title: np.mean(each, axis=0).tolist() for title, each in done.items() if each}
    return Report(
        tables=[beside(paper.LOCALITY, ours, rows=[(title,) for title in METHODS], more_columns=(LAST,))],
        figures={"growth": figures.growth(curves)} if curves else {},
        notes=[
            "The paper's figure has no numbers. Its text: ensembles and LNK grow linearly with slope 1, MCD does so in "
            "expectation; SVGP-DKL and evidential regression rise too steeply, and stop after three molecules.",
            "Slopes of log σ over log n, n = 1 … 8, means over 20 test structures. The LNK of the paper sums variances "
            "of atoms (σ ∝ √n); the closed form keeps their covariance (σ ∝ n).",
            *differences(setup, "md17", (BACKBONE,), results),
        ],
    )


EXPERIMENTS = {
    "locality": Experiment("growth of σ with the number of distant copies of a molecule", "Figure 2", 4, _jobs, present)
}
