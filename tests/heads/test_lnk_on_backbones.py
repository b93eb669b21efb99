"""Both fits of the LNK on every backbone: σ is added, and what the backbone has learned is not lost."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import training_case as case
from contract import BACKBONES
from sigmaff.backbones import BackboneConfig
from sigmaff.data import GraphDataset, compute_statistics
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.solve import LabelledObservations, solve_head
from sigmaff.training import CosineSchedule

TRAINING = case.CONFIG.model_copy(
    update={"max_epochs": 12, "learning_rate": 1e-2, "schedule": CosineSchedule(warmup_steps=5), "validate_every": 4}
)
HEAD = LNKConfig(n_inducing=10, n_samples=4, n_frequencies=16)


@pytest.fixture(scope="module", params=BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}")
def learned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Potential, GraphDataset, GraphDataset]:
    backbone: BackboneConfig = request.param
    data, held_out = (
        GraphDataset(case.labelled_structures(n, seed), backbone.cutoff) for n, seed in ((30, 1), (20, 2))
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = PotentialConfig(backbone=backbone, head=DeterministicConfig())
        potential = Potential(config, compute_statistics(data))
    case.train(potential, data, held_out, TRAINING, tmp_path_factory.mktemp("backbone"), seed=0)
    return potential, data, held_out


@pytest.fixture
def trained(learned: tuple[Potential, GraphDataset, GraphDataset]) -> tuple[Potential, GraphDataset, GraphDataset]:
    """A copy, as a fit may change the potential."""
    potential, data, held_out = learned
    return deepcopy(potential), data, held_out


def errors(potential: Potential, data: GraphDataset) -> tuple[float, float]:
    """MAE of energies and forces."""
    graph, labels = data.batch(range(len(data)))
    prediction = potential.predict(graph, forces_std="none")
    assert labels.energy is not None
    assert labels.forces is not None
    energy, forces = prediction.energy - labels.energy, prediction.forces - labels.forces
    return float(energy.abs().mean()), float(forces.abs().mean())


def worst_ratio(fitted: Potential, backbone: Potential, data: GraphDataset) -> float:
    """Of the errors with the LNK to those without."""
    return max(after / before for after, before in zip(errors(fitted, data), errors(backbone, data), strict=True))


def test_closed_form(trained: tuple[Potential, GraphDataset, GraphDataset]):
    """Chosen on the held-out structures, the mean is not worse on them; σ there is larger where errors are larger."""
    potential, data, held_out = trained
    fitted, _ = solve_head(potential, HEAD, data, held_out)
    assert worst_ratio(fitted, potential, held_out) <= 1.02
    graph, labels = held_out.batch(range(len(held_out)))
    prediction = fitted.predict(graph)
    scale = (prediction.forces - labels.forces).square().mean().sqrt()
    assert 0.1 * float(scale) < float(prediction.forces_std.mean()) < 10 * float(scale)
    assert bool((prediction.energy_std > 0).all())


def test_variational(trained: tuple[Potential, GraphDataset, GraphDataset], tmp_path: Path):
    """Gradient descent on the frozen backbone finds a better likelihood, and does not lose the backbone's accuracy."""
    potential, data, held_out = trained
    fitted = potential.with_head(HEAD.model_copy(update={"fit": "variational", "start": "prior"}))
    fitted.head.initialize(*LabelledObservations(fitted, data).embeddings())
    settings = TRAINING.model_copy(update={"freeze_backbone": True, "forces_weight": 0.5})
    result = case.train(fitted, data, held_out, settings, tmp_path / "head", seed=0)
    losses = [record.validation_loss for record in result.history if record.validation_loss is not None]
    assert min(losses[1:]) < losses[0]
    assert np.isfinite(losses).all()
    assert worst_ratio(fitted, potential, held_out) <= 1.2
