"""The demonstration: from nothing to a calibrated force field and its report in minutes.

GFN2-xTB (tblite) samples and labels ethanol at 500 K. Dimethyl ether, its isomer, is the molecule that the model has
never seen.
"""

import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import Stationary

from sigmaff.backbones import SchNetConfig
from sigmaff.data import DataSource, GraphDataset, ReferenceEnergies, SplitConfig, read_structures
from sigmaff.data.free_atoms import FreeAtomMethod
from sigmaff.data.labelling import EngineConfig, origin_of
from sigmaff.errors import SigmaffError
from sigmaff.evaluation import Summary, evaluate, summarize
from sigmaff.evaluation.datasets import recorded_structures
from sigmaff.extras import require
from sigmaff.files import atomic_write, folder_lock
from sigmaff.heads import LNKConfig
from sigmaff.models import PotentialConfig
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.runs.config import DataConfig, RunConfig
from sigmaff.runs.data import references_begun
from sigmaff.runs.run import run
from sigmaff.training import CosineSchedule, TrainingConfig

METHOD: FreeAtomMethod = "gfn2-xtb"
TEMPERATURE = 500.0  # K
STEP = 1.0  # fs
SAMPLE_EVERY = 10  # steps
EQUILIBRATION = 25  # samples left out
N_REPLICAS, N_WORKERS = 6, 2
N_ETHANOL, N_TRAIN, N_VALIDATION = 720, 400, 100
N_ETHER = 120


def demo_config(directory: Path, references: ReferenceEnergies = METHOD) -> RunConfig:
    """A small SchNet, so that it trains in two minutes on two cores."""
    source = DataSource(path=directory / "ethanol.extxyz")
    backbone = SchNetConfig(n_hidden=64, n_filters=64, n_interactions=3, n_gaussians=32, cutoff=5.0)
    schedule = CosineSchedule(warmup_steps=200)
    training = TrainingConfig(
        batch_size=10, max_epochs=160, validate_every=5, learning_rate=2e-3, schedule=schedule, threads=1
    )
    return RunConfig(
        data=DataConfig(
            source=source,
            split=SplitConfig(n_train=N_TRAIN, n_validation=N_VALIDATION),
            reference_energies=references,
        ),
        model=PotentialConfig(backbone=backbone, head=LNKConfig()),
        training=training,
        output=directory / "run",
    )


def run_demo(directory: Path, listener: Listener | None = None, *, force: bool = False) -> tuple[Summary, Path]:
    """Run the demonstration, or resume it. Return the metrics of the held-out set and the path of the report."""
    require("the demonstration", "tblite", "lightning_fabric", "tensorboard", "jinja2", "matplotlib")
    with folder_lock(directory, wait=False):
        return _demonstrated(directory, listener or Listener(), force=force)


def _demonstrated(directory: Path, listener: Listener, *, force: bool) -> tuple[Summary, Path]:
    from sigmaff.report import model_facts, write_report

    for name, compound, n_frames in (("ethanol", "CH3CH2OH", N_ETHANOL), ("dimethyl_ether", "CH3OCH3", N_ETHER)):
        path = directory / f"{name}.extxyz"
        if force or not path.exists():
            listener.stage(f"labelling {name} with GFN2-xTB")
            frames = sample(compound, n_frames, listener)
            with atomic_write(path, force=force) as temporary:
                write(temporary, frames, format="extxyz")
    begun = None if force else references_begun(directory / "run")
    result = run(demo_config(directory, begun or METHOD), listener, force=force)
    assert result is not None
    potential = load(result.model_path)
    held_out, unseen = recorded_structures(potential, "test"), read_structures(directory / "dimethyl_ether.extxyz")
    evaluations = []
    for name, structures in (("ethanol", held_out), ("dimethyl ether", unseen)):
        listener.stage(f"testing on {name}")
        dataset = GraphDataset(structures, potential.cutoff)
        evaluations.append(evaluate(potential, dataset, name=name, listener=listener))
    report, title = directory / "report.html", "Ethanol, from GFN2-xTB labels to calibrated error bars"
    training, fit = potential.record.training, potential.record.fit
    assert training is not None
    assert fit is not None
    timings = {
        "training the backbone": training.seconds,
        "fitting the LNK": fit.seconds,
        "one structure: energy, forces and both σ": evaluations[0].seconds_per_structure,
    }
    write_report(report, *evaluations, title=title, model_info=model_facts(potential), timings=timings, force=True)
    return summarize(*evaluations), report


def sample(compound: str, n_frames: int, listener: Listener) -> list[Atoms]:
    """Frames of Langevin dynamics with energies and forces: replicas from different velocities, side by side."""
    done = 0
    with ProcessPoolExecutor(N_WORKERS, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        atoms = molecule(compound)
        jobs = [pool.submit(simulate, atoms, n_frames // N_REPLICAS, seed) for seed in range(N_REPLICAS)]
        try:
            for job in as_completed(jobs):
                done += len(job.result())
                listener.advance(done, n_frames)
        except BrokenProcessPool:
            raise SigmaffError(
                "a process that computes labels was killed, perhaps for lack of memory; run the same command again"
            ) from None
    return [frame for job in jobs for frame in job.result()]


def simulate(atoms: Atoms, n_frames: int, seed: int) -> list[Atoms]:
    """One replica: molecular dynamics on the GFN2-xTB surface, a frame every few steps."""
    from tblite.ase import TBLite

    random = np.random.default_rng(seed)
    atoms = atoms.copy()
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
    thermal = np.sqrt(atoms.get_masses() * units.kB * 2 * TEMPERATURE)  # half of it becomes potential energy
    atoms.set_momenta(thermal[:, None] * random.normal(size=(len(atoms), 3)))
    Stationary(atoms)
    dynamics = Langevin(
        atoms, STEP * units.fs, temperature_K=TEMPERATURE, friction=0.02 / units.fs, fixcm=False, rng=random
    )
    dynamics.run(EQUILIBRATION * SAMPLE_EVERY)
    frames = []
    for _ in range(n_frames):
        dynamics.run(SAMPLE_EVERY)
        frame = Atoms(atoms.numbers, atoms.get_positions(), info=origin_of(EngineConfig(calculator=METHOD)))
        frame.calc = SinglePointCalculator(frame, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
        frames.append(frame)
    return frames


def _begin_worker() -> None:
    """GFN2-xTB of a small molecule is many times slower on two threads than on one. A worker ends with its parent."""
    os.environ["OMP_NUM_THREADS"] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
