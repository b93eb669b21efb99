"""Weights of groups in the loss."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError
from sigmaff.training.objective import Objective, load_batch
from sigmaff.training.weights import check_groups, with_mean_one
from training_case import CONFIG, CUTOFF, labelled_structures, lnk_potential, potential, train

GROUPS = ("water", "alcohol")


def grouped(n: int, seed: int = 1, groups: tuple[str, ...] = GROUPS) -> GraphDataset:
    structures = labelled_structures(n, seed)
    return GraphDataset(replace(structures, groups=tuple(groups[i % len(groups)] for i in range(n))), CUTOFF)


@pytest.mark.parametrize("build", [potential, lnk_potential])
def test_the_loss_is_the_weighted_mean_of_the_losses_of_structures(build) -> None:
    """Against the loss of each structure alone, which knows no weights; a term that no structure owns counts once."""
    model, data = build(), grouped(6)
    weights = with_mean_one(CONFIG.model_copy(update={"group_weights": {"alcohol": 3.0}}), data, data)
    assert weights.group_weights == {"water": 0.5, "alcohol": 1.5}
    together = Objective(model, weights, 6).eval()(load_batch(model, data, torch.arange(6), weights))
    plain = Objective(model, CONFIG, 6).eval()
    each = [plain(load_batch(model, data, torch.tensor([index]), CONFIG)) for index in range(6)]
    factors, n_atoms = torch.tensor([0.5, 1.5] * 3), data.n_atoms.double()
    energy = sum(f * term.energy_loss for f, term in zip(factors, each, strict=True)) / 6
    forces = sum(f * n * term.forces_loss for f, n, term in zip(factors, n_atoms, each, strict=True)) / n_atoms.sum()
    torch.testing.assert_close(together.energy_loss.double(), energy.double(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(together.forces_loss.double(), forces.double(), rtol=1e-4, atol=1e-6)


def test_a_group_without_weight_teaches_nothing(tmp_path: Path) -> None:
    """The same steps as where its labels are others."""
    structures = grouped(8).structures
    spoilt = replace(structures, energy=structures.energy.copy(), forces=tuple(f.copy() for f in structures.forces))
    spoilt.energy[1::2] += 7.0
    for forces in spoilt.forces[1::2]:
        forces += 1.0
    config, trained = CONFIG.model_copy(update={"group_weights": {"alcohol": 0.0}, "max_epochs": 3}), []
    for number, data in enumerate((structures, spoilt)):
        model, dataset = potential(), GraphDataset(data, CUTOFF)
        train(model, dataset, grouped(4, seed=2), config, tmp_path / str(number), seed=1)
        trained.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*trained, rtol=0, atol=0)


def test_unknown_groups_are_refused_with_the_nearest() -> None:
    config = CONFIG.model_copy(update={"group_weights": {"alcool": 2.0}})
    with pytest.raises(ConfigError, match=r"'alcool'; nearest: alcohol; known: alcohol, water"):
        check_groups(config, grouped(4).structures)
    with pytest.raises(ConfigError, match="name no groups"):
        check_groups(config, labelled_structures(4, 1))
    with pytest.raises(ConfigError, match="weight of 0"):
        with_mean_one(CONFIG.model_copy(update={"group_weights": dict.fromkeys(GROUPS, 0.0)}), grouped(4), grouped(4))


def test_a_run_without_weights_is_the_run_that_it_was() -> None:
    """Checkpoints and folders of versions without weights resume."""
    assert "group_weights" not in CONFIG.trajectory()
    assert CONFIG.model_copy(update={"group_weights": {"a": 2.0}}).trajectory()["group_weights"] == {"a": 2.0}
