"""The unit in which forces are weighed against a likelihood of energies: hand-written losses, and runs from before."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributions import StudentT

import training_case as case
from sigmaff.errors import ConfigError
from sigmaff.heads import EvidentialConfig, GMDNConfig, HeadConfig
from sigmaff.heads.evidential import NormalInverseGamma
from sigmaff.heads.gmdn import GaussianMixture
from sigmaff.models import Potential, PotentialConfig
from sigmaff.training import TrainingConfig
from sigmaff.training.objective import Objective, load_batch
from sigmaff.units import KCAL_PER_MOL

EVIDENTIAL = EvidentialConfig(regularization=0.3)
UNITS = ("kcal/mol", "normalised")
RHO = 0.8


def in_unit(unit: str) -> TrainingConfig:
    return TrainingConfig.model_validate(case.CONFIG.model_dump() | {"likelihood_unit": unit, "forces_weight": RHO})


def potential_with(head: HeadConfig, dtype: torch.dtype = torch.float32) -> Potential:
    base = case.potential()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Potential(PotentialConfig(backbone=base.config.backbone, head=head), base.statistics)
    model.set_precision(dtype)
    return model


def likelihood_loss(model: Potential, energy: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Loss of energies in a unit of so many normalised ones, by torch.distributions; and the forces."""
    graph = case.train_set().batch(range(6))[0].to(dtype=model.dtype)
    found, forces = model(model.backbone.prepare(graph))
    mean, energy = found.mean / unit, energy / unit
    if isinstance(found, GaussianMixture):
        components = torch.distributions.Normal(found.means / unit, found.stds / unit)
        weights = torch.distributions.Categorical(logits=found.log_weights)
        return -torch.distributions.MixtureSameFamily(weights, components).log_prob(energy).mean(), forces
    assert isinstance(found, NormalInverseGamma)
    v, alpha, beta = found.evidence, found.excess + 1.0, found.scale / unit**2
    likelihood = StudentT(2.0 * alpha, mean, (beta * (1.0 + v) / (v * alpha)).sqrt()).log_prob(energy)
    return (0.3 * (energy - mean).abs() * (2.0 * v + alpha) - likelihood).mean(), forces


@pytest.mark.parametrize("head", [EVIDENTIAL, GMDNConfig(n_components=3, n_hidden=8)], ids=lambda head: head.name)
@pytest.mark.parametrize("unit", UNITS)
def test_gradients_are_those_of_a_loss_in_this_unit(head: HeadConfig, unit: str) -> None:
    """Up to the one factor by which all losses in the unit are larger."""
    model, config = potential_with(head, torch.float64), in_unit(unit)
    one = KCAL_PER_MOL / model.statistics.scale if unit == "kcal/mol" else 1.0
    batch = load_batch(model, case.train_set(), torch.arange(6), config)
    objective = Objective(model, config, 21)
    weights = list(model.parameters())
    found = torch.autograd.grad(objective.total(objective(batch)), weights)
    of_energies, forces = likelihood_loss(model, batch.energy, one)
    assert batch.forces is not None
    of_forces = (forces - batch.forces).div(one).square().sum(-1).sqrt().mean()
    expected = torch.autograd.grad((1 - RHO) * of_energies + RHO * of_forces, weights)
    assert abs(one - 1.0) > 0.5 or unit == "normalised"
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, one * wanted, rtol=1e-9, atol=1e-12)


def test_losses_without_a_likelihood_are_the_same_to_the_bit() -> None:
    found = []
    for unit in UNITS:
        model, config = case.potential(), in_unit(unit)
        objective = Objective(model, config, 21)
        loss = objective.total(objective(load_batch(model, case.train_set(), torch.arange(6), config)))
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def make_old(checkpoint: Path) -> None:
    """As versions without the setting wrote it."""
    with safe_open(checkpoint, framework="pt") as file:
        numbers = json.loads(file.metadata()["sigmaff_checkpoint"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    assert numbers["identity"].pop("training.likelihood_unit") == "normalised"
    save_file(tensors, checkpoint, metadata={"sigmaff_checkpoint": json.dumps(numbers)})


@pytest.mark.parametrize("head", ["evidential", "deterministic"])
def test_a_run_from_before_resumes_as_it_began(tmp_path: Path, head: str) -> None:
    def model() -> Potential:
        return potential_with(EVIDENTIAL) if head == "evidential" else case.potential()

    unbroken, resumed = model(), model()
    old = in_unit("normalised").model_copy(update={"forces_weight": None})
    case.run(unbroken, old, tmp_path / "unbroken")
    with pytest.raises(ZeroDivisionError):
        case.run(resumed, old, tmp_path, case.Reporter(at_epoch=3))
    make_old(tmp_path / "checkpoint.safetensors")
    if head == "evidential":
        named = TrainingConfig.model_validate(case.CONFIG.model_dump() | {"likelihood_unit": "kcal/mol"})
        with pytest.raises(ConfigError, match=r"training.likelihood_unit: was normalised, now kcal/mol"):
            case.run(resumed, named, tmp_path)
    case.run(resumed, case.CONFIG, tmp_path)
    assert torch.equal(case.weights(resumed), case.weights(unbroken))


def test_new_runs_are_in_kcal_per_mol(tmp_path: Path) -> None:
    by_default, named, before = (potential_with(EVIDENTIAL) for _ in range(3))
    case.run(by_default, case.CONFIG, tmp_path / "default")
    for model, unit in ((named, "kcal/mol"), (before, "normalised")):
        config = in_unit(unit).model_copy(update={"forces_weight": None})
        case.run(model, config, tmp_path / unit.replace("/", "-"))
    assert torch.equal(case.weights(by_default), case.weights(named))
    assert not torch.equal(case.weights(by_default), case.weights(before))
