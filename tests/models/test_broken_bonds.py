"""σ where nothing is known: broken bonds, isolated atoms, collisions, elements that were not seen."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms

from contract import BACKBONES, ETHANOL, Case, displaced, graph_of, relabelled
from sigmaff.backbones import BackboneConfig
from sigmaff.data import GraphDataset
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.heads.lnk.reach import MOST, MOST_SHARE, SHARE
from sigmaff.models import Potential
from sigmaff.models.solve import solve_head

PRIOR = LNKConfig().distance_prior
STRETCHES = (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)


@cache
def lnk(backbone: BackboneConfig = BACKBONES[0], *, distance_aware: bool = True) -> Potential:
    """Solved on sixty displaced ethanols, twenty held out. A network of random weights nearly hits their labels."""
    potential = Case(backbone=backbone, head=DeterministicConfig()).build()
    frames = [displaced(ETHANOL, number) for number in range(80)]
    parts = (relabelled(potential, part) for part in (frames[:60], frames[60:]))
    train, held_out = (GraphDataset(part, potential.cutoff, torch.float64) for part in parts)
    return solve_head(potential, LNKConfig(distance_aware=distance_aware), train, held_out)[0].eval()


def stretched(amount: float) -> Atoms:
    """Ethanol with the hydrogen atom of its hydroxyl group moved away from oxygen, Å."""
    atoms = ETHANOL.copy()
    [oxygen] = np.flatnonzero(atoms.numbers == 8)
    hydrogen = min(np.flatnonzero(atoms.numbers == 1), key=lambda index: atoms.get_distance(oxygen, index))
    bond = atoms.positions[hydrogen] - atoms.positions[oxygen]
    atoms.positions[hydrogen] += amount * bond / np.linalg.norm(bond)
    return atoms


def energy_std(potential: Potential, *structures: Atoms, unseen_elements: bool = False) -> torch.Tensor:
    graph = graph_of(*structures)
    return potential.predict_raw(graph, forces_std="none", unseen_elements=unseen_elements).energy_std


@pytest.mark.parametrize("backbone", BACKBONES[:3], ids=lambda config: config.name)
def test_a_bond_that_breaks_is_not_known(backbone: BackboneConfig):
    """σ rises along the stretch and stays up; without surroundings it has no reason to."""
    std = energy_std(lnk(backbone), *map(stretched, STRETCHES))
    assert bool((std.diff() > -0.05 * std[:-1]).all())
    assert float(std[-1]) > 0.7 * PRIOR
    assert float(std[0]) < 0.1 * PRIOR


def test_forces_of_a_broken_bond_are_not_known():
    potential = lnk()
    near, broken = (potential.predict_raw(graph_of(stretched(d)), forces_std="exact").forces_std for d in (0.0, 0.6))
    assert float(broken.norm(dim=-1).max()) > 1.0
    assert float(broken.norm(dim=-1).max()) > 5.0 * float(near.norm(dim=-1).max())


def test_the_part_of_unseen_surroundings_is_told():
    prediction = lnk().predict_raw(graph_of(ETHANOL, stretched(2.0)))
    share = (prediction.unseen_std / prediction.energy_std).square()
    assert float(share[0]) < 0.5
    assert float(share[1]) > 0.9
    assert lnk(distance_aware=False).predict_raw(graph_of(ETHANOL)).unseen_std is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Atoms("H"),
        lambda: Atoms("CO", [[0, 0, 0], [20, 0, 0]]),
        lambda: Atoms("OO", [[0, 0, 0], [0, 0, 0.3]]),
        lambda: Atoms("C8", 20.0 * np.arange(24).reshape(8, 3)),
    ],
    ids=["isolated atom", "two of them", "collision", "many of them"],
)
def test_atoms_that_resemble_none_have_the_prior(make: Callable[[], Atoms]):
    """Atoms of one element in like surroundings are wrong alike, those of two elements independently."""
    atoms = make()
    _, counts = np.unique(atoms.numbers, return_counts=True)
    expected = PRIOR * np.sqrt((counts**2).sum())
    prediction = lnk().predict_raw(graph_of(atoms), forces_std="none")
    assert float(prediction.unseen_std) == pytest.approx(expected, rel=0.05)
    assert float(prediction.energy_std) >= float(prediction.unseen_std)


def test_an_element_that_was_not_seen_is_not_known():
    [std] = energy_std(lnk(), Atoms("Si"), unseen_elements=True)
    assert float(std) >= PRIOR


def test_a_neighbour_that_was_not_seen_is_not_known():
    """Ethanol with sulfur in place of oxygen: carbon and hydrogen next to it have surroundings of no training atom."""
    other = ETHANOL.copy()
    other.numbers[other.numbers == 8] = 16
    [std] = energy_std(lnk(), other, unseen_elements=True)
    assert float(std) > PRIOR


def test_the_unknown_has_a_fifth_of_the_variance_in_distribution():
    """Of held-out energies, in the median; or half of it in one of twenty, whichever is less."""
    prediction = lnk().predict_raw(graph_of(*(displaced(ETHANOL, number) for number in range(60, 80))))
    share = (prediction.unseen_std / prediction.energy_std).square()
    used = max(float(share.median()) / SHARE, float(share.quantile(MOST)) / MOST_SHARE)
    assert used == pytest.approx(1.0, rel=0.02)


def test_with_few_labels_the_unknown_is_seldom_the_larger_part():
    """One of ten held-out structures is far from six training structures: the median does not see it."""
    potential = Case(backbone=BACKBONES[0], head=DeterministicConfig()).build()
    frames = [*(displaced(ETHANOL, number) for number in range(15)), displaced(ETHANOL, 15, width=0.25)]
    parts = (relabelled(potential, part) for part in (frames[:6], frames[6:]))
    train, held_out = (GraphDataset(part, potential.cutoff, torch.float64) for part in parts)
    solved = solve_head(potential, LNKConfig(), train, held_out)[0].eval()
    prediction = solved.predict_raw(graph_of(*frames[6:]))
    share = (prediction.unseen_std / prediction.energy_std).square()
    assert float(share.quantile(MOST)) == pytest.approx(MOST_SHARE, rel=0.02)
    assert float(share.median()) < SHARE


def test_growth_of_force_std_does_not_count_it_twice():
    """Where σ is due to unseen surroundings, what force σ grows with is as small as in distribution."""
    potential, graph = lnk(), graph_of(ETHANOL, stretched(2.0))
    found = potential.with_component_std(potential.predict_raw(graph), graph).component_std
    known, broken = found[: len(ETHANOL)].max(), found[len(ETHANOL) :].max()
    assert float(broken) < 3.0 * float(known)
    assert float(potential.predict_raw(graph).energy_std[1]) > 30.0 * float(known) * len(ETHANOL)
