"""Costs: time of a prediction, and numbers of parameters. Neither needs data or training."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from pydantic import Field

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig
from sigmaff.data import DatasetStatistics
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig, EvidentialConfig, HeadConfig, LNKConfig
from sigmaff.models import Ensemble, Model, MonteCarloDropout, Potential, PotentialConfig
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.progress import Listener
from sigmaff.runs.jobs import Job, JobFolder, Results
from sigmaff.runs.methods import METHODS, PAPERS_LNK, Method
from sigmaff.timing import time_calls
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.experiment import Experiment, Report, beside
from sigmaff_paper.experiments.settings import BACKBONES, TITLES, Scale, Setup, n_inducing
from sigmaff_paper.experiments.value import Value, value_of
from sigmaff_paper.tables import costs as paper
from sigmaff_paper.tables.hyperparameters import DROPOUT_PERCENT, ENSEMBLE_SIZE, N_INDUCING
from sigmaff_paper.tables.md17 import N_ATOMS
from sigmaff_paper.tables.table import Labels

# --- time

ROUNDS: dict[Scale, int] = {"quick": 3, "hour": 15, "paper": 15}
TRAININGS = {"LNK": "lnk", "Evidential": "evidential", "MCD": "mc_dropout", "Ensemble": "ensemble"}
TIMED_MOLECULES = ("C6H6", "CH3COCl", "CH3CONH2", "C5H8", "C4H4NH", "C2H6CHOH", "CH3SCH3", "isobutane")
"""Molecules as large as those of QM7-X."""
N_RATTLED = 12
"""Displaced copies of each, for the choice of inducing points."""
QM7X_ELEMENTS = (1, 6, 7, 8, 16, 17)
QM7X_STATISTICS = DatasetStatistics(
    elements=QM7X_ELEMENTS,
    reference_energies=dict.fromkeys(QM7X_ELEMENTS, 0.0),
    scale=1.0,
    mean_neighbors=10.0,
    n_structures=1,
)


class SpeedJob(Job):
    """Milliseconds of a prediction by each method, one structure at a time: medians over rounds.

    Networks have initial weights, which take as long as trained ones.
    """

    kind: ClassVar[str] = "Timed"

    backbone: BackboneConfig = Field(default=DimeNetPPConfig(), description="the network")
    n_inducing: int = Field(default=100, ge=1, description="inducing points of the LNK")
    n_rounds: int = Field(default=5, ge=1, description="rounds over all structures, after one to warm up")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        structures = [_rattled(name, seed) for seed in range(N_RATTLED) for name in TIMED_MOLECULES]
        graphs = [build_graph(atoms, self.backbone.cutoff) for atoms in structures]
        models, graphs = self._models(batch_graphs(graphs)), graphs[: len(TIMED_MOLECULES)]

        def predict(model: Model, forces_std: ForceStdMethod) -> None:
            for graph in graphs:
                model.predict(graph, forces_std=forces_std)

        seconds = time_calls({name: partial(predict, *model) for name, model in models.items()}, self.n_rounds)
        milliseconds = {name: 1e3 * values / len(graphs) for name, values in seconds.items()}
        return {
            "milliseconds": {name: float(np.median(values)) for name, values in milliseconds.items()},
            "spread": {name: float(np.std(values)) for name, values in milliseconds.items()},
        }

    def _models(self, graph: AtomicGraph) -> dict[str, tuple[Model, ForceStdMethod]]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            lnk = self._potential(PAPERS_LNK.model_copy(update={"n_inducing": self.n_inducing}))
            networks = [self._potential(DeterministicConfig()) for _ in range(ENSEMBLE_SIZE)]
            dropping = self._potential(DeterministicConfig(), dropout=0.01 * DROPOUT_PERCENT)
            evidential = self._potential(EvidentialConfig())
        prepared = lnk.prepare(graph)
        lnk.head.initialize(lnk.embed(prepared).detach(), graph.atomic_numbers, graph.structure_index)
        assert METHODS["mc_dropout"].mc_dropout is not None
        return {
            "LNK": (lnk, "none"),
            "Evidential": (evidential, "none"),
            "MCD": (MonteCarloDropout(dropping, METHODS["mc_dropout"].mc_dropout), "none"),
            "Ensemble": (Ensemble(networks), "none"),
            "backbone alone": (networks[0], "none"),
            "LNK with force σ": (lnk, "auto"),
        }

    def _potential(self, head: HeadConfig, dropout: float = 0.0) -> Potential:
        backbone = self.backbone.model_copy(update={"dropout": dropout})
        return Potential(PotentialConfig(backbone=backbone, head=head), QM7X_STATISTICS).eval()


def _rattled(name: str, seed: int) -> Atoms:
    atoms = molecule(name)
    atoms.rattle(0.05, seed=seed)
    return atoms


def _speed_jobs(setup: Setup, data: DataFolders) -> list[Job]:
    n_points = N_INDUCING["qm7x"]
    return [SpeedJob(name=f"{setup.scale}/speed", n_inducing=n_points, n_rounds=ROUNDS[setup.scale])]


def present_speed(results: Results, setup: Setup) -> Report:
    found = [results[name] for name in (f"{setup.scale}/speed",) if name in results]

    def ours(row: Labels, column: str) -> Value | None:
        if row == ("Runtime [ms]",):
            return value_of(found, "milliseconds", column)
        return Value(mean=METHODS[TRAININGS[column]].n_trainings) if column in TRAININGS else None

    table = beside(paper.SPEED, ours, more_columns=("backbone alone", "LNK with force σ"))
    of_time = beside(paper.SPEED, ours, rows=[("Runtime [ms]",)], more_columns=table.columns[4:])
    return Report(
        tables=[table],
        figures={"time": figures.dots(of_time, label="time of a prediction (ms)")},
        notes=[
            "DimeNet++ at the paper's size with initial weights, energies, forces and energy σ of one molecule at a "
            "time, medians on one CPU thread. The paper does not state its hardware: compare ratios, not milliseconds.",
            "Eight molecules as large as those of QM7-X, from ASE's collection. Trainings are those of a backbone; the "
            "process of an LNK is trained on one.",
        ],
    )


# --- parameters

_FOR_ASPIRIN = n_inducing("paper", "md17", N_ATOMS["aspirin"])
COUNTED_LNK: dict[str, dict[str, int | str]] = {
    "dimenet++": {"n_inducing": N_INDUCING["md17"], "mean": "constant"},
    "schnet": {"n_inducing": _FOR_ASPIRIN, "mean": "constant"},
    "nequip": {"n_inducing": _FOR_ASPIRIN, "mean": "residual"},  # with the readout, which is not used
}
"""Settings of the LNK that the paper counts on each backbone."""


class ParametersJob(Job):
    """Numbers of parameters of each method on one backbone."""

    kind: ClassVar[str] = "Counted"

    backbone: BackboneConfig = Field(description="the network")
    lnk: LNKConfig = Field(description="the LNK on it")

    def work(self, folder: JobFolder, listener: Listener) -> dict[str, Any]:
        n_noise = 1  # a parameter that the paper does not count
        lnk = Method(title="LNK", head=self.lnk, growth="√n").n_parameters(self.backbone) - n_noise
        names = TRAININGS | {"LNK, closed form": "fixed_lnk"}
        return {title: METHODS[name].n_parameters(self.backbone) for title, name in names.items()} | {"LNK": lnk}


def _parameters_jobs(setup: Setup, data: DataFolders) -> list[Job]:
    """Of the paper's sizes at every scale."""
    return [
        ParametersJob(
            name=f"parameters/{name}", backbone=BACKBONES["paper"][name], lnk=PAPERS_LNK.model_copy(update=settings)
        )
        for name, settings in COUNTED_LNK.items()
    ]


def present_parameters(results: Results, setup: Setup) -> Report:
    names = {title: f"parameters/{name}" for name, title in TITLES.items()}
    found = {title: [results[name]] for title, name in names.items() if name in results}

    def ours(row: Labels, column: str) -> Value | None:
        return value_of(found.get(column, ()), row[0])

    table = beside(paper.PARAMETERS, ours, rows=[*paper.PARAMETERS.rows, ("LNK, closed form",)])
    return Report(
        tables=[table],
        figures={"parameters": figures.dots(table, label="parameters")},
        notes=[
            "For H, C, N and O. The LNK has 84 inducing points on SchNet and NequIP (aspirin) and 100 on DimeNet++; "
            "its noise is not counted, as in the paper."
        ],
    )


EXPERIMENTS = {
    "speed": Experiment("time of a prediction", "Table 6", 1, _speed_jobs, present_speed),
    "parameters": Experiment("numbers of parameters", "Table 11", 1, _parameters_jobs, present_parameters),
}
