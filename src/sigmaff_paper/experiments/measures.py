"""Cells that measure and train nothing: growth of σ, time, parameters."""

import statistics
import time
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from pydantic import Field

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig
from sigmaff.data import DatasetStatistics, DataSource, read_structures
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig, EvidentialConfig, HeadConfig, LNKConfig
from sigmaff.models import Ensemble, Model, MonteCarloDropout, Potential, PotentialConfig
from sigmaff.models.file import load
from sigmaff.models.prediction import ForcesStd
from sigmaff.progress import Listener
from sigmaff.runs.methods import METHODS, PAPERS_LNK, Method
from sigmaff_paper.experiments.cell import Cell, Place
from sigmaff_paper.tables import hyperparameters as paper

QM7X_ELEMENTS = (1, 6, 7, 8, 16, 17)
TIMED_MOLECULES = ("C6H6", "CH3COCl", "CH3CONH2", "C5H8", "C4H4NH", "C2H6CHOH", "CH3SCH3", "isobutane")
"""Molecules of the size of those of QM7-X."""
N_RATTLED = 12
"""Displaced copies of each, on whose atoms inducing points are placed."""
N_COPIED = 20
"""Test structures that are copied."""


class Copies(Cell):
    """Energy σ of 1, 2, … copies of a molecule in a row, in units of that of one: means over test structures."""

    source: DataSource = Field(description="structures of which the model's test set is a part")
    n_copies: int = Field(default=8, ge=2, description="most copies")
    apart: float = Field(default=paper.COPIES_APART, gt=0, description="Å from one copy to the next")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        model = load(place.model(self.after[0]))
        assert model.record.split is not None
        test = read_structures(self.source).subset(model.record.split.test[:N_COPIED])
        std = np.array([[_energy_std(model, self._copied(atoms, n)) for n in self.n] for atoms in test.structures])
        curve = (std / std[:, :1]).mean(0)
        slope = np.polyfit(np.log(self.n), np.log(std / std[:, :1]).mean(0), 1)[0]
        return {"n": list(self.n), "curve": curve.tolist(), "slope": float(slope), "last": float(curve[-1])}

    @property
    def n(self) -> range:
        return range(1, self.n_copies + 1)

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


class Timed(Cell):
    """Milliseconds of a prediction of each method, one structure at a time: medians of alternating rounds.

    Networks with initial weights take as long as trained ones.
    """

    backbone: BackboneConfig = Field(default=DimeNetPPConfig(), description="the network")
    n_inducing: int = Field(default=100, ge=1, description="inducing points of the LNK")
    n_rounds: int = Field(default=5, ge=1, description="rounds over all structures, after one to warm up")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        structures = [_rattled(name, seed) for seed in range(N_RATTLED) for name in TIMED_MOLECULES]
        graphs = [build_graph(atoms, self.backbone.cutoff) for atoms in structures]
        models, graphs = self._models(batch_graphs(graphs)), graphs[: len(TIMED_MOLECULES)]
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for round_ in range(self.n_rounds + 1):
            for name, (model, forces_std) in models.items():
                began = time.perf_counter()
                for graph in graphs:
                    model.predict(graph, forces_std=forces_std)
                if round_ > 0:
                    seconds[name].append((time.perf_counter() - began) / len(graphs))
        return {
            "milliseconds": {name: 1e3 * statistics.median(found) for name, found in seconds.items()},
            "spread": {name: 1e3 * statistics.pstdev(found) for name, found in seconds.items()},
        }

    def _models(self, graph: AtomicGraph) -> dict[str, tuple[Model, ForcesStd]]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            lnk = self._potential(PAPERS_LNK.model_copy(update={"n_inducing": self.n_inducing}))
            networks = [self._potential(DeterministicConfig()) for _ in range(paper.ENSEMBLE_SIZE)]
            dropping = self._potential(DeterministicConfig(), dropout=0.01 * paper.DROPOUT_PERCENT)
            evidential = self._potential(EvidentialConfig())
        prepared = lnk.prepare(graph)
        lnk.head.initialize(lnk.backbone(prepared).detach(), graph.atomic_numbers, graph.structure_index)
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
        return Potential(PotentialConfig(backbone=backbone, head=head), _statistics(QM7X_ELEMENTS)).eval()


class Counted(Cell):
    """Numbers of parameters by method, of one backbone."""

    backbone: BackboneConfig = Field(description="the network")
    lnk: LNKConfig = Field(description="the LNK on it")

    def work(self, place: Place, listener: Listener) -> dict[str, Any]:
        ours = Method(title="LNK", head=self.lnk, growth="√n")
        n_noise = 1  # a parameter that the paper does not count
        return {
            "MCD": METHODS["mc_dropout"].n_parameters(self.backbone),
            "Evidential": METHODS["evidential"].n_parameters(self.backbone),
            "LNK": ours.n_parameters(self.backbone) - n_noise,
            "Ensemble": METHODS["ensemble"].n_parameters(self.backbone),
            "LNK, closed form": METHODS["fixed_lnk"].n_parameters(self.backbone),
        }


def _rattled(name: str, seed: int) -> Atoms:
    atoms = molecule(name)
    atoms.rattle(0.05, seed=seed)
    return atoms


def _statistics(elements: tuple[int, ...]) -> DatasetStatistics:
    return DatasetStatistics(
        elements=elements,
        reference_energies=dict.fromkeys(elements, 0.0),
        scale=1.0,
        mean_neighbors=10.0,
        n_structures=1,
    )
