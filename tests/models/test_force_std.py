"""Force σ: exact against the full covariance from autograd, sampled against exact."""

import math
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import AMMONIA, BACKBONES, CASES, CRYSTAL, ETHANOL, EXACT, FINITE_DIFFERENCE, STEP, WATER, Case, graph_of
from contract import LNK as LINEAR
from sigmaff.backbones import BackboneConfig
from sigmaff.backbones.linear_response import AutomaticResponse
from sigmaff.backbones.schnet_response import SchNetResponse
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph
from sigmaff.heads import LNKConfig
from sigmaff.models import Ensemble, Model, MonteCarloDropout, MonteCarloDropoutConfig, Potential
from sigmaff.models.force_std import embedding_tangents, exact_forces_variance, unit_displacements

KERNELS = ("rbf", "matern52", "linear", "rbf+linear")
N_SAMPLES, N_FREQUENCIES = 400, 600

close = torch.testing.assert_close


def potential_with(**settings: object) -> Potential:
    sizes = {"n_inducing": 12, "n_samples": 8, "n_frequencies": 8}
    fit = "variational" if settings.get("covariance") == "diagonal" else "closed_form"
    return Case(backbone=CASES[0].backbone, head=LNKConfig(**(sizes | {"fit": fit} | settings))).build()


def jacobian(potential: Potential, graph: AtomicGraph) -> Tensor:
    """∂h/∂x by reverse-mode differentiation, (n_coordinates, n_atoms, n_features)."""
    derivative = torch.func.jacrev(lambda x: potential.embed(graph.with_positions(x)))(graph.positions)
    return derivative.flatten(2).permute(2, 0, 1)


@torch.no_grad()
def forces_covariance(potential: Potential, graph: AtomicGraph) -> Tensor:
    """Covariance of all force components of one structure in eV²/Å², by polarisation of slope variances.

    2 Cov(a, b) = Var(a + b) − Var(a) − Var(b)
    """
    tangents, features = jacobian(potential, graph), potential.embed(graph)
    n = len(tangents)
    pairs = (tangents[:, None] + tangents[None]).flatten(0, 1)
    sums = potential.head.slope_variance(features, pairs, graph).view(n, n)
    single = potential.head.slope_variance(features, tangents, graph).view(n)
    return potential.statistics.scale**2 * 0.5 * (sums - single[:, None] - single)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("kernel", KERNELS)
class TestExact:
    def test_is_the_diagonal_of_the_covariance(self, kernel: str, covariance: str):
        potential, graph = potential_with(kernel=kernel, covariance=covariance), graph_of(WATER)
        expected = forces_covariance(potential, graph).diagonal().sqrt().view(-1, 3)
        close(potential.predict(graph, forces_std="exact").forces_std, expected, **EXACT)

    def test_covariance_is_positive_and_moves_nothing_as_a_whole(self, kernel: str, covariance: str):
        """No eigenvalue below rounding; the net force is certainly zero."""
        potential, graph = potential_with(kernel=kernel, covariance=covariance), graph_of(AMMONIA)
        matrix = forces_covariance(potential, graph)
        assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-10 * float(matrix.diagonal().max())
        along = torch.eye(3, dtype=torch.float64).repeat(4, 1)
        close(along.T @ matrix @ along, torch.zeros(3, 3, dtype=torch.float64), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_exact_is_the_variance_of_energy_differences(kernel: str):
    """Two structures a small step apart in one coordinate: Var(E(x + ε) − E(x − ε)) = 4 ε² Var(F).

    As one structure with one of the two counted negatively it needs the covariance between atoms of both, which
    the head gives for the sum: Var(a − b) = 2 Var(a) + 2 Var(b) − Var(a + b).
    """
    potential, step = deepcopy(potential_with(kernel=kernel)), 2e-4
    potential.head.slope_scale.fill_(1.0)
    exact = potential.predict(graph_of(WATER), forces_std="exact").forces_std
    for atom, axis in [(0, 2), (1, 1), (2, 0)]:
        ends = [WATER.copy(), WATER.copy()]
        ends[0].positions[atom, axis] += step
        ends[1].positions[atom, axis] -= step
        ends[1].positions += [0.0, 0.0, 50.0]
        single = potential.predict(graph_of(*ends), forces_std="none").energy_std
        both = potential.predict(graph_of(ends[0] + ends[1]), forces_std="none").energy_std
        variance = 2.0 * single.square().sum() - both.square().sum()
        assert math.sqrt(float(variance)) / (2.0 * step) == pytest.approx(float(exact[atom, axis]), rel=2e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sampled_is_exact_within_its_error(kernel: str):
    """The mean square of n samples has relative error √(2/n); random features add theirs, relative to the prior."""
    potential = potential_with(kernel=kernel, n_samples=N_SAMPLES, n_frequencies=N_FREQUENCIES)
    graph = graph_of(WATER)
    exact = potential.predict(graph, forces_std="exact").forces_std
    sampled = potential.predict(graph, forces_std="sampled").forces_std
    allowed = 5.0 * math.sqrt(0.5 / N_SAMPLES) + (0.0 if kernel == "linear" else 5.0 / math.sqrt(N_FREQUENCIES))
    ratio = (sampled / exact).log().abs()
    assert float(ratio.max()) < allowed


@pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL], ids=["molecule", "crystal"])
def test_as_many_orthogonal_samples_as_weights_are_exact(atoms: Atoms):
    """A linear kernel has no other randomness than that of its weights."""
    n_weights = potential_with(kernel="linear").head.n_weights
    potential = potential_with(kernel="linear", n_samples=n_weights, distance_aware=False)
    found, expected = (potential.predict(graph_of(atoms), forces_std=how) for how in ("sampled", "exact"))
    for name in ("energy", "energy_std", "forces", "forces_std", "stress", "stress_std"):
        close(getattr(found, name), getattr(expected, name), **EXACT)


@pytest.mark.parametrize("case", [Case(backbone=b, head=LINEAR) for b in BACKBONES], ids=lambda case: case.name)
def test_forces_and_stress_do_not_depend_on_the_way_of_their_std(case: Case):
    """With force σ they come from the linear response of the backbone, without it from automatic differentiation."""
    model, graph = case.build(), graph_of(WATER, CRYSTAL)
    found, expected = model.predict(graph), model.predict(graph, forces_std="none")
    for name in ("energy", "energy_std", "node_energy", "forces", "stress"):
        close(getattr(found, name), getattr(expected, name), equal_nan=True, **EXACT)


def test_independent_atoms_cannot_be_sampled():
    """Samples are functions that all atoms share: auto takes the exact way, however large the structure."""
    potential, graph = potential_with(covariance="diagonal", n_samples=1), graph_of(ETHANOL)
    assert potential.predict(graph).provenance.forces_std == "exact"
    with pytest.raises(ConfigError, match="cannot compute force σ as 'sampled'"):
        potential.predict(graph, forces_std="sampled")


@pytest.mark.parametrize(
    ("n_samples", "water", "ethanol"), [(27, "exact", "exact"), (26, "exact", "sampled"), (8, "sampled", "sampled")]
)
def test_auto_takes_the_cheaper(n_samples: int, water: str, ethanol: str):
    """The exact way costs a pass for each coordinate (water 9, ethanol 27), the other a sample; in a batch as alone."""
    potential = potential_with(n_samples=n_samples)
    batch = potential.predict(graph_of(WATER, ETHANOL))
    assert batch.provenance.forces_std == ("exact" if ethanol == "exact" else "sampled")
    assert batch.forces_std is not None
    for part, atoms, how in zip(batch.forces_std.split([3, 9]), (WATER, ETHANOL), (water, ethanol), strict=True):
        alone = potential.predict(graph_of(atoms))
        assert alone.provenance.forces_std == how
        close(part, alone.forces_std, **EXACT)
        close(part, potential.predict(graph_of(atoms), forces_std=how).forces_std, **EXACT)


def test_none_costs_nothing_and_says_so():
    prediction = potential_with().predict(graph_of(WATER), forces_std="none")
    assert prediction.forces_std is None
    assert prediction.provenance.forces_std is None
    assert prediction.energy_std is not None


@pytest.mark.parametrize("wrapper", ["alone", "ensemble", "dropout"])
def test_stress_std_can_be_left_out(wrapper: str):
    """Nothing else changes; an ensemble does not take the spread of means alone for it."""
    potential, graph = potential_with(), graph_of(CRYSTAL)
    model: Model = potential
    if wrapper == "ensemble":
        model = Ensemble([potential, potential_with(kernel="rbf")])
    elif wrapper == "dropout":
        model = MonteCarloDropout(
            Case(backbone=BACKBONES[0].model_copy(update={"dropout": 0.1}), head=LINEAR).build(),
            MonteCarloDropoutConfig(n_samples=2),
        )
    whole, part = model.predict(graph), model.predict(graph, stress_std=False)
    assert whole.stress_std is not None
    assert part.stress_std is None
    for name in ("energy", "energy_std", "forces", "forces_std", "stress"):
        close(getattr(part, name), getattr(whole, name), rtol=0.0, atol=0.0)


def test_tangents_are_the_jacobian():
    potential, graph = potential_with(), graph_of(CRYSTAL)
    directions = unit_displacements(graph.atom_rank(), graph.n_atoms, torch.float64)
    tangents = torch.cat(list(embedding_tangents(potential.linear_response(graph), graph, directions)))
    close(tangents, jacobian(potential, graph), **EXACT)


@pytest.mark.parametrize("atoms", [CRYSTAL, CRYSTAL.repeat((1, 1, 2))], ids=["cell", "supercell"])
def test_stress_std_is_that_of_the_slope_by_strain(atoms: Atoms):
    """A linear kernel is a linear model: Var(∂E/∂ε) = |∂Φ/∂ε · C|², with ∂Φ/∂ε by differences of deformed crystals."""
    potential = potential_with(kernel="linear", mean="backbone", distance_aware=False)
    head = potential.head

    def summed_basis(strain: np.ndarray) -> Tensor:
        deformed = atoms.copy()
        deformed.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        graph = graph_of(deformed)
        features = potential.embed(graph)
        return head.kernel.basis(features.double(), head.element_index[graph.atomic_numbers]).sum(0)

    expected = torch.zeros(3, 3, dtype=torch.float64)
    with torch.no_grad():
        for a, b in np.ndindex(3, 3):
            strain = np.zeros((3, 3))
            strain[a, b] += 0.5 * STEP
            strain[b, a] += 0.5 * STEP
            slope = (summed_basis(strain) - summed_basis(-strain)) / (2.0 * STEP)
            expected[a, b] = (slope @ head.weight_cholesky.tril()).norm() * head.slope_scale.sqrt()
    scale = potential.statistics.scale / atoms.get_volume()
    close(potential.predict(graph_of(atoms)).stress_std[0], scale * expected, **FINITE_DIFFERENCE)


@torch.no_grad()
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    potential, graph = potential_with(), graph_of(ETHANOL, WATER)
    monkeypatch.setattr(SchNetResponse, "n_at_once", 1)
    one, other = potential.linear_response(graph), AutomaticResponse(potential.embed, graph)
    whole = exact_forces_variance(other, potential.head, graph, 9)
    monkeypatch.setattr(AutomaticResponse, "n_at_once", 1)
    for response in (one, other):
        close(exact_forces_variance(response, potential.head, graph, 9), whole, **EXACT)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("how", ["exact", "sampled"])
def test_scale_of_slopes_is_that_of_force_std_alone(kernel: str, how: str):
    potential = deepcopy(potential_with(kernel=kernel, distance_aware=False))
    potential.head.slope_scale.fill_(1.0)
    before = potential.predict(graph_of(WATER), forces_std=how)
    potential.head.slope_scale.fill_(9.0)
    after = potential.predict(graph_of(WATER), forces_std=how)
    close(after.forces_std, 3.0 * before.forces_std, **EXACT)
    close(after.energy_std, before.energy_std, **EXACT)


@pytest.mark.parametrize("backbone", BACKBONES[:3], ids=lambda config: config.name)
def test_threads_predict_at_once(backbone: BackboneConfig):
    """torch has one count of levels of forward differentiation for all threads: they take turns."""
    model, graph = Case(backbone=backbone, head=LINEAR).build(), graph_of(ETHANOL)
    expected = model.predict(graph, forces_std="exact").forces_std
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: model.predict(graph, forces_std="exact").forces_std, range(9)))
    for one in found:
        close(one, expected, rtol=0.0, atol=0.0)
