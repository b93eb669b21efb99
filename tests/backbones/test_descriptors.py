"""Backbones without weights: symmetry functions against sums written out, and coordinates without symmetry."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from contract import CRYSTAL, ETHANOL, WATER, graph_of
from sigmaff.backbones import Coordinates, CoordinatesConfig, Descriptor, DescriptorConfig
from sigmaff.data import DatasetStatistics
from sigmaff.errors import DataError
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Potential, PotentialConfig
from sigmaff.models.file import load, save

ELEMENTS = (1, 6, 8)
CONFIG = DescriptorConfig(cutoff=4.5, n_radial=5, n_shells=3, n_powers=3)
EXACT = {"rtol": 1e-10, "atol": 1e-10}
STATISTICS = DatasetStatistics(
    elements=ELEMENTS,
    reference_energies=dict.fromkeys(ELEMENTS, -3.0),
    scale=0.7,
    mean_neighbors=8.0,
    n_structures=10,
)

close = torch.testing.assert_close


def descriptor() -> Descriptor:
    return Descriptor(CONFIG, ELEMENTS, 1.0).double()


def coordinates(n_atoms: int = 9) -> Coordinates:
    return Coordinates(CoordinatesConfig(n_atoms=n_atoms), ELEMENTS, 0.0).double()


def summed(backbone: Descriptor | Coordinates, atoms: Atoms) -> Tensor:
    return backbone(backbone.prepare(graph_of(atoms))).sum(0)


def turned(atoms: Atoms) -> Atoms:
    q = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    other = atoms.copy()
    other.positions, other.cell = atoms.positions @ q.T, atoms.cell.array @ q.T
    return other


def potential_on(backbone: DescriptorConfig | CoordinatesConfig) -> Potential:
    potential = Potential(PotentialConfig(backbone=backbone, head=DeterministicConfig()), STATISTICS)
    potential.set_precision(torch.float64)
    return potential.eval()


def written_out(atoms: Atoms) -> np.ndarray:
    """Symmetry functions of each atom of a molecule by loops over its neighbours and pairs of neighbours."""

    def functions(distance: float, n: int) -> np.ndarray:
        centers = np.linspace(0.5, CONFIG.cutoff, n)
        gaussians = np.exp(-0.5 * ((distance - centers) / (centers[1] - centers[0])) ** 2)
        return gaussians * 0.5 * (math.cos(math.pi * distance / CONFIG.cutoff) + 1.0)

    n_pairs = len(ELEMENTS) * (len(ELEMENTS) + 1) // 2
    pair_number = {(a, b): k for k, (a, b) in enumerate(zip(*np.triu_indices(len(ELEMENTS)), strict=True))}
    kinds = [ELEMENTS.index(number) for number in atoms.numbers]
    found = []
    for i in range(len(atoms)):
        vectors = atoms.positions - atoms.positions[i]
        lengths = np.linalg.norm(vectors, axis=1)
        near = [j for j in range(len(atoms)) if j != i and lengths[j] < CONFIG.cutoff]
        radial = np.zeros((len(ELEMENTS), CONFIG.n_radial))
        angular = np.zeros((CONFIG.n_powers, n_pairs, CONFIG.n_shells))
        for j in near:
            radial[kinds[j]] += functions(lengths[j], CONFIG.n_radial)
            for k in near:
                if kinds[j] > kinds[k]:
                    continue
                cosine = vectors[j] @ vectors[k] / (lengths[j] * lengths[k])
                product = functions(lengths[j], CONFIG.n_shells) * functions(lengths[k], CONFIG.n_shells)
                for power in range(CONFIG.n_powers):
                    angular[power, pair_number[kinds[j], kinds[k]]] += product * cosine ** (power + 1)
        blocks = np.zeros((len(ELEMENTS), 1 + radial.size + angular.size))
        blocks[kinds[i]] = np.concatenate([[1.0], radial.ravel(), angular.ravel()])
        found.append(blocks.ravel())
    return np.array(found)


class TestDescriptor:
    def test_is_the_sums_over_neighbours_and_angles(self):
        close(descriptor()(graph_of(ETHANOL)), torch.as_tensor(written_out(ETHANOL)), **EXACT)

    @pytest.mark.parametrize("atoms", [ETHANOL, CRYSTAL], ids=["molecule", "crystal"])
    def test_sums_are_invariant_under_rotation_and_permutation(self, atoms: Atoms):
        expected = summed(descriptor(), atoms)
        order = np.random.default_rng(6).permutation(len(atoms))
        close(summed(descriptor(), turned(atoms)), expected, **EXACT)
        close(summed(descriptor(), atoms[order]), expected, **EXACT)

    def test_smoothness_at_the_cutoff(self):
        """Of a pair just inside, what is left goes with the square of what is missing, in values as in slopes once."""

        backbone = Descriptor(CONFIG, (6, 8), 1.0).double()

        def left(gap: float) -> tuple[float, float]:
            graph = graph_of(Atoms("CO", positions=[[0, 0, 0], [0, 0, CONFIG.cutoff - gap]]))
            assert graph.pair_index.shape[1] == 1

            def neighbours(positions: Tensor) -> Tensor:
                counts = backbone(graph.with_positions(positions)).sum(0)
                return counts - counts.round()  # without the ones

            slopes = torch.func.jacrev(neighbours)(graph.positions)
            return float(neighbours(graph.positions).abs().max()), float(slopes.abs().max())

        (value, slope), (nearer_value, nearer_slope) = left(1e-2), left(1e-3)
        assert value < 1e-4
        assert nearer_value < 0.011 * value
        assert nearer_slope < 0.11 * slope

    def test_tells_angles_apart(self):
        """Two structures with the same distances from the central atom and another angle are told apart."""
        bent, straight = (
            Atoms("COO", positions=[[0, 0, 0], [1.2, 0, 0], [1.2 * math.cos(a), 1.2 * math.sin(a), 0]])
            for a in (2.0, math.pi)
        )
        centre = [descriptor()(graph_of(atoms))[0] for atoms in (bent, straight)]
        n_radial = len(ELEMENTS) * CONFIG.n_radial + 1
        blocks = [c.view(len(ELEMENTS), -1) for c in centre]
        close(blocks[0][:, :n_radial], blocks[1][:, :n_radial], **EXACT)
        assert float((blocks[0][:, n_radial:] - blocks[1][:, n_radial:]).abs().max()) > 0.1

    def test_unknown_elements_count_for_nothing(self):
        with_sulfur = ETHANOL + Atoms("S", positions=[[3.0, 0.5, 0.4]])
        embeddings = descriptor()(graph_of(with_sulfur))
        close(embeddings[:-1], descriptor()(graph_of(ETHANOL)), **EXACT)
        assert bool((embeddings[-1] == 0).all())

    def test_forces_conserve_energy(self):
        potential, step = potential_on(CONFIG), 1e-4
        forces = potential.predict(graph_of(ETHANOL)).forces
        for atom, axis in [(0, 0), (4, 2), (8, 1)]:
            energies = []
            for sign in (1.0, -1.0):
                moved = ETHANOL.copy()
                moved.positions[atom, axis] += sign * step
                energies.append(float(potential.predict(graph_of(moved)).energy))
            slope = (energies[0] - energies[1]) / (2.0 * step)
            assert float(forces[atom, axis]) == pytest.approx(-slope, rel=1e-6, abs=1e-7)


class TestCoordinates:
    def test_sum_to_the_vector_of_centred_positions(self):
        graph = graph_of(ETHANOL, WATER)
        embeddings = coordinates()(graph)
        for number, atoms in enumerate((ETHANOL, WATER)):
            expected = np.zeros(27)
            expected[: 3 * len(atoms)] = (atoms.positions - atoms.positions.mean(0)).ravel()
            close(embeddings[graph.structure_index == number].sum(0), torch.as_tensor(expected), **EXACT)

    def test_invariant_under_translation_but_not_under_rotation_and_permutation(self):
        """The symmetry it has, and the two that it lacks."""
        potential = potential_on(CoordinatesConfig(n_atoms=9))

        def energy(atoms: Atoms) -> float:
            return float(potential.predict(graph_of(atoms)).energy)

        graph = graph_of(ETHANOL)
        moved = potential.predict(graph.with_positions(graph.positions + 7.0)).energy
        hydrogens = [atom.index for atom in ETHANOL if atom.symbol == "H"]
        order = list(range(9))
        order[hydrogens[0]], order[hydrogens[1]] = hydrogens[1], hydrogens[0]
        assert float(moved) == pytest.approx(energy(ETHANOL), abs=1e-12)
        assert abs(energy(turned(ETHANOL)) - energy(ETHANOL)) > 1e-2
        assert abs(energy(ETHANOL[order]) - energy(ETHANOL)) > 1e-2

    def test_forces_are_those_of_a_centred_linear_function(self):
        """E = scale · w·x: the force is −scale · w, less its mean over the atoms."""
        potential = potential_on(CoordinatesConfig(n_atoms=9))
        weight = potential.head.linear.weight.detach().view(9, 3)
        expected = -0.7 * (weight - weight.mean(0))
        close(potential.predict(graph_of(ETHANOL)).forces, expected, **EXACT)

    def test_a_larger_structure_is_an_error(self):
        with pytest.raises(DataError, match=r"structure 1 has 9 atoms.*at most 3 atoms.*n_atoms: 9"):
            potential_on(CoordinatesConfig(n_atoms=3)).predict(graph_of(WATER, ETHANOL))

    def test_a_crystal_is_an_error(self):
        with pytest.raises(DataError, match="periodic"):
            potential_on(CoordinatesConfig(n_atoms=9)).predict(graph_of(CRYSTAL))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backbone", [CONFIG, CoordinatesConfig(n_atoms=9)], ids=lambda config: config.name)
def test_a_file_keeps_the_precision(backbone: DescriptorConfig | CoordinatesConfig, dtype: torch.dtype, tmp_path):
    potential = potential_on(backbone)
    potential.set_precision(dtype)
    save(potential, tmp_path / "model.sigmaff")
    loaded = load(tmp_path / "model.sigmaff")
    assert loaded.dtype == dtype
    expected, found = (model.predict(graph_of(ETHANOL, WATER)) for model in (potential, loaded))
    close((found.energy, found.forces), (expected.energy, expected.forces), rtol=0.0, atol=0.0)
