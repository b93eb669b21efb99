"""A harmonic model with a σ for tests of molecular dynamics. Run as a script, it moves in a process of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms

from sigmaff.graph import AtomicGraph
from sigmaff.models.prediction import ForceStdMethod, Prediction, Provenance
from sigmaff.progress import Listener
from sigmaff.simulation.md import MDConfig, MDResult, run_md
from sigmaff.simulation.md.checkpoint import read_checkpoint

SITES = 3.0 * np.array([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])


WAYS = [
    MDConfig(ensemble="nve", temperature=400.0),
    MDConfig(thermostat="langevin", temperature=400.0),
    MDConfig(thermostat="nose-hoover", temperature=400.0),
    MDConfig(thermostat="bussi", temperature=400.0),
    MDConfig(ensemble="npt", temperature=400.0, pressure=1.0),
    MDConfig(ensemble="npt", temperature=400.0, pressure=1.0, cell="full"),
]
"""Every integrator there is."""


def name_of(config: MDConfig) -> str:
    return f"{config.ensemble}-{config.chosen_thermostat}-{config.cell}"


def changed(config: MDConfig, **changes: object) -> MDConfig:
    return MDConfig.model_validate(config.model_dump() | changes)


@dataclass(frozen=True)
class Wells:
    """E = ½ k Σ_i |d_i|² with d_i the distance of an atom from its site, both seen from their centres.

    n atoms are 3n − 3 independent oscillators. The σ of a force component is ``relative_std`` times its size; energies
    of structures with an atom farther from its site than ``edge`` are not numbers.
    """

    stiffness: float = 4.0
    relative_std: float = 1.0
    edge: float = np.inf
    cutoff: float = 3.0
    sites: tuple[tuple[float, ...], ...] = tuple(map(tuple, SITES.tolist()))

    def predict(
        self, graph: AtomicGraph, *, forces_std: ForceStdMethod = "auto", stress_std: bool = True
    ) -> Prediction:
        sites = torch.tensor(self.sites, dtype=torch.float64)
        positions = graph.pad(graph.positions.double())
        away = positions - positions.mean(1, keepdim=True) - (sites - sites.mean(0))
        energy = 0.5 * self.stiffness * away.square().sum((1, 2))
        energy = torch.where(away.norm(dim=-1).amax(1) > self.edge, torch.nan, energy)
        forces = (-self.stiffness * away).flatten(0, 1)
        return Prediction(
            energy=energy,
            forces=forces,
            energy_std=self.relative_std * energy,
            forces_std=None if forces_std == "none" else self.relative_std * forces.abs(),
            provenance=Provenance(method="wells"),
        )


def at_sites(model: Wells | None = None) -> Atoms:
    sites = (model or Wells()).sites
    return Atoms("Ar" * len(sites), positions=sites)


def final_state(directory: Path, replica: int = 0) -> dict[str, np.ndarray]:
    """Of a replica of a run that has ended: positions, momenta, step and what its integrator remembers."""
    saved = read_checkpoint(directory)
    assert saved is not None
    return {name: values[-1] for name, values in saved.histories[replica].items()}


def columns(result: MDResult) -> np.ndarray:
    """The log, by the names of its columns."""
    return np.genfromtxt(result.directory / "log.csv", delimiter=",", names=True)


def files(directory: Path) -> dict[str, bytes]:
    """What a run has written, but for the states to go on from."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if "checkpoint" not in path.name}


RESTARTED = MDConfig(
    temperature=(200.0, 900.0),
    timestep=4.0,
    steps=100_000,
    damping=20.0,
    every=3,
    check_every=2,
    checkpoint_every=7,
    stop_above=1.0,
    on_crossing="rollback",
    rollback=9,
    max_rollbacks=10_000,
)


class Printer(Listener):
    def advance(self, done: int, total: int, note: str = "") -> None:
        print(done, flush=True)


if __name__ == "__main__":
    run_md(Wells(), [at_sites()], RESTARTED, Path(sys.argv[1]), Printer())
