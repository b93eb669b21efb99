"""Stress as a label: the loss against public predictions, and training on it against not doing so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.stress import full_3x3_to_voigt_6_stress

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, LabelledStructures, compute_statistics
from sigmaff.errors import DataError
from sigmaff.evaluation import evaluate_predictor, summarize
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig, Uncalibrated
from sigmaff.training import CosineSchedule, TrainingConfig
from sigmaff.training.loop import train
from sigmaff.training.objective import Objective, load_batch

CUTOFF = 4.0
CONFIG = TrainingConfig(
    forces_weight=0.5,
    batch_size=8,
    max_epochs=25,
    validate_every=5,
    learning_rate=5e-3,
    schedule=CosineSchedule(warmup_steps=0),
    threads=1,
    tensorboard=False,
)


def crystals(n: int, seed: int) -> LabelledStructures:
    """Strained and shaken copper, labelled by effective-medium theory."""
    generator = np.random.default_rng(seed)
    structures = []
    for _ in range(n):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.05 * generator.normal(size=(3, 3))), scale_atoms=True)
        atoms.positions += 0.05 * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        structures.append(atoms)
    return LabelledStructures(
        structures=tuple(atoms.copy() for atoms in structures),
        energy=np.array([atoms.get_potential_energy() for atoms in structures]),
        forces=tuple(atoms.get_forces() for atoms in structures),
        stress=np.array([atoms.get_stress(voigt=False) for atoms in structures]),
        source="copper",
        frame_index=np.arange(n),
    )


@pytest.fixture(scope="module")
def data() -> GraphDataset:
    return GraphDataset(crystals(40, seed=0), CUTOFF)


def new_potential(data: GraphDataset) -> Potential:
    backbone = SchNetConfig(cutoff=CUTOFF, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = PotentialConfig(backbone=backbone, head=DeterministicConfig())
        return Potential(config, compute_statistics(data))


def stress_error(potential: Potential, data: GraphDataset) -> np.ndarray:
    """Predicted minus true, (n_structures, 3, 3)."""
    graph, labels = data.batch(range(len(data)))
    stress = potential.predict(graph).stress
    assert stress is not None
    assert labels.stress is not None
    return (stress - labels.stress).numpy()


def test_loss_is_the_formula(data: GraphDataset):
    potential, config = new_potential(data), CONFIG.model_copy(update={"stress_weight": 0.3})
    terms = Objective(potential, config, len(data))(load_batch(potential, data, torch.arange(6), config))
    volumes = np.array([atoms.get_volume() for atoms in data.structures.structures[:6]])
    error = np.linalg.norm(stress_error(potential, data)[:6].reshape(6, 9), axis=1) * volumes / 4
    assert terms.virial_loss is not None
    assert terms.virial_loss.item() == pytest.approx(error.mean() / potential.statistics.scale, rel=1e-4)
    without = Objective(potential, CONFIG, len(data))
    plain = without(load_batch(potential, data, torch.arange(6), CONFIG))
    assert plain.virial_loss is None
    total = Objective(potential, config, len(data)).total(terms)
    assert total.item() == pytest.approx(without.total(plain).item() + 0.3 * terms.virial_loss.item(), rel=1e-5)


def test_training_on_stress_makes_stress_better(data: GraphDataset, tmp_path: Path):
    errors = {}
    for weight in (0.0, 1.0):
        potential, config = new_potential(data), CONFIG.model_copy(update={"stress_weight": weight})
        train(potential, data, data, config, tmp_path / str(weight), seed=0)
        errors[weight] = np.abs(stress_error(potential, GraphDataset(crystals(10, seed=1), CUTOFF))).mean()
    assert errors[1.0] < 0.85 * errors[0.0]


def test_evaluation_tells_the_error_of_stress(data: GraphDataset):
    potential = new_potential(data)
    summary = summarize(evaluate_predictor(Uncalibrated(potential), data, name="copper", batch_size=7))
    error = full_3x3_to_voigt_6_stress(stress_error(potential, data))
    assert summary["stress_mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert summary["stress_rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-5)


def test_a_molecule_has_no_stress_to_train_on(data: GraphDataset):
    water = GraphDataset(
        LabelledStructures(
            structures=(molecule("H2O"),),
            energy=np.zeros(1),
            forces=(np.zeros((3, 3)),),
            stress=np.zeros((1, 3, 3)),
            source="water.extxyz",
            frame_index=np.arange(1),
        ),
        CUTOFF,
    )
    config = CONFIG.model_copy(update={"stress_weight": 0.1})
    with pytest.raises(DataError, match=r"water\.extxyz: .* needs a periodic cell and a stress"):
        load_batch(new_potential(water), water, torch.arange(1), config)
