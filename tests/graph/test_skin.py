"""Neighbour lists with a skin: the pairs of a new search, whenever the last one was."""

from collections.abc import Callable

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, GraphBuilder, SkinList, build_graph
from sigmaff.graph.neighbors import neighbor_pairs
from sigmaff.graph.skin import SMALL

CUTOFF = 4.5


def large_molecule() -> Atoms:
    """Too large for all pairs to be kept."""
    atoms = molecule("C60")
    assert len(atoms) > SMALL
    return atoms


def crystal() -> Atoms:
    """A skewed cell that is smaller than the sphere of the cutoff."""
    atoms = bulk("Cu", "fcc", a=3.6)
    return Atoms("CuZn", [[0, 0, 0], [1.2, 1.1, 1.3]], cell=atoms.cell.array * 1.3, pbc=True)


def slab(periodic: tuple[bool, bool, bool] = (True, True, False)) -> Atoms:
    atoms = fcc111("Al", (2, 2, 3), vacuum=6.0)
    atoms.pbc = periodic
    return atoms


STRUCTURES = {
    "molecule": lambda: molecule("CH3CH2OH"),
    "large molecule": large_molecule,
    "crystal": crystal,
    "cubic crystal": lambda: bulk("Si", cubic=True),
    "slab": slab,
    "wire": lambda: slab((False, True, False)),
    "molecule in a cell": lambda: slab((False, False, False)),
}


def fresh(structures: list[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs and shifts of a new search for each structure."""
    found = [neighbor_pairs(atoms.positions, atoms.cell.array, atoms.pbc, CUTOFF) for atoms in structures]
    first = np.cumsum([0, *map(len, structures)])
    indices = [index + start for (index, _), start in zip(found, first, strict=False)]
    return np.concatenate(indices, axis=1), np.concatenate([shift for _, shift in found])


def arrays(structures: list[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    positions = np.concatenate([atoms.positions for atoms in structures])
    return positions, np.array([atoms.cell.array for atoms in structures])


def skin_list(structures: list[Atoms], **options: float) -> SkinList:
    return SkinList(list(map(len, structures)), np.array([atoms.pbc for atoms in structures]), CUTOFF, **options)


def move(atoms: Atoms, rng: np.random.Generator, way: str) -> None:
    """Atoms by hundredths of Å with now and then a jump; a cell by strains, turns and both, with atoms or without."""
    atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
    if rng.random() < 0.05:
        atoms.positions[rng.integers(len(atoms))] += rng.normal(scale=0.3, size=3)
    if way == "drift":
        atoms.positions += [0.03, 0.0, -0.02]
    elif way != "fixed" and rng.random() < 0.5:
        strain = np.eye(3) + rng.normal(scale=0.004, size=(3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=way == "strained")


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("way", ["fixed", "drift", "strained", "around atoms"])
def test_pairs_are_those_of_a_new_search(name: str, way: str):
    for seed in range(3):
        rng, atoms = np.random.default_rng(seed), STRUCTURES[name]()
        neighbors = skin_list([atoms])
        for _ in range(60):
            pairs, (index, shift) = neighbors.pairs(*arrays([atoms])), fresh([atoms])
            np.testing.assert_array_equal(pairs.atoms, index)
            np.testing.assert_allclose(pairs.shift, shift, rtol=0, atol=1e-12)
            vectors = atoms.positions[index[1]] + shift - atoms.positions[index[0]]
            np.testing.assert_allclose(pairs.distance, np.linalg.norm(vectors, axis=1), rtol=0, atol=1e-12)
            move(atoms, rng, way)
        if way == "fixed" and "large" not in name:
            assert neighbors.n_searches < 40


def test_a_batch_has_the_pairs_of_its_structures():
    rng, structures = np.random.default_rng(0), [make() for make in STRUCTURES.values()]
    neighbors = skin_list(structures)
    for _ in range(40):
        pairs, (index, shift) = neighbors.pairs(*arrays(structures)), fresh(structures)
        np.testing.assert_array_equal(pairs.atoms, index)
        np.testing.assert_allclose(pairs.shift, shift, rtol=0, atol=1e-12)
        for atoms in structures:
            move(atoms, rng, "strained")


def test_pairs_have_the_same_bits_whenever_they_were_searched():
    rng, atoms = np.random.default_rng(0), crystal() * (2, 2, 1)
    kept = skin_list([atoms])
    for _ in range(50):
        one, other = kept.pairs(*arrays([atoms])), skin_list([atoms]).pairs(*arrays([atoms]))
        for values, others in zip(one, other, strict=True):
            assert values.tobytes() == others.tobytes()
        move(atoms, rng, "strained")
    assert kept.n_searches < 50


def test_only_structures_that_moved_are_searched_again():
    structures = [crystal(), large_molecule(), molecule("CH3CH2OH")]
    neighbors = skin_list(structures)
    neighbors.pairs(*arrays(structures))
    assert neighbors.n_searches == 3
    for atoms in structures:
        atoms.positions += 0.1
    neighbors.pairs(*arrays(structures))
    assert neighbors.n_searches == 3
    structures[1].positions[5, 0] += 0.2  # 0.33 Å from where it was searched
    structures[2].positions[5, 0] += 5.0  # pairs of this one are kept within a wide skin
    neighbors.pairs(*arrays(structures))
    assert neighbors.n_searches == 4
    structures[0].set_cell(1.2 * structures[0].cell.array, scale_atoms=True)  # only a smaller one has new pairs
    neighbors.pairs(*arrays(structures))
    assert neighbors.n_searches == 4
    structures[0].set_cell(structures[0].cell.array / 1.2 / 1.2, scale_atoms=True)
    neighbors.pairs(*arrays(structures))
    assert neighbors.n_searches == 5


def test_a_part_of_a_list_keeps_what_was_searched():
    rng, structures = np.random.default_rng(0), [make() for make in STRUCTURES.values()]
    whole = skin_list(structures)
    whole.pairs(*arrays(structures))
    chosen = np.arange(len(structures)) % 3 != 1
    structures = [atoms for atoms, is_chosen in zip(structures, chosen, strict=True) if is_chosen]
    for atoms in structures:
        atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
    part = whole.select(chosen)
    np.testing.assert_array_equal(part.pairs(*arrays(structures)).atoms, fresh(structures)[0])
    assert part.n_searches == 0


def test_without_a_skin_every_call_searches():
    atoms = molecule("CH3CH2OH")
    neighbors = skin_list([atoms], skin=0.0)
    for n_searches in (1, 2):
        neighbors.pairs(*arrays([atoms]))
        assert neighbors.n_searches == n_searches


def test_a_structure_that_cannot_be_searched_is_named_and_the_others_are_found():
    flat, whole = crystal(), crystal()
    flat.set_cell([[1, 0, 0], [2, 0, 0], [0, 0, 3]])
    neighbors = skin_list([flat, whole])
    pairs = neighbors.pairs(*arrays([flat, whole]))
    assert "no volume" in neighbors.problems[0]
    np.testing.assert_array_equal(pairs.atoms - 2, fresh([whole])[0])
    flat.set_cell(whole.cell)
    neighbors.pairs(*arrays([flat, whole]))
    assert not neighbors.problems


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_builder_builds_the_graphs_of_build_graph(name: str):
    rng, atoms, builder = np.random.default_rng(1), STRUCTURES[name](), GraphBuilder(CUTOFF)
    for _ in range(10):
        found, expected = builder.build(atoms), build_graph(atoms, CUTOFF)
        for field in ("positions", "atomic_numbers", "structure_index", "pair_index", "pair_shift", "cell"):
            one, other = getattr(found, field), getattr(expected, field)
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
                assert one.dtype == other.dtype
        move(atoms, rng, "strained")


def test_a_builder_follows_from_one_structure_to_another():
    builder = GraphBuilder(CUTOFF)
    for atoms in (crystal(), slab(), slab((True, True, True)), molecule("H2O"), crystal()):
        np.testing.assert_array_equal(builder.build(atoms).pair_index, build_graph(atoms, CUTOFF).pair_index)


def nan_position(atoms: Atoms) -> None:
    atoms.positions[1, 2] = np.nan


def nan_cell(atoms: Atoms) -> None:
    atoms.cell[0, 0] = np.nan


def far(atoms: Atoms) -> None:
    atoms.positions[0] += 1e9


def onto_another(atoms: Atoms) -> None:
    atoms.positions[0] = atoms.positions[1] + 0.01


def outcome(build: Callable[[], AtomicGraph]) -> str | list[list[int]]:
    """What is refused, or the pairs."""
    try:
        return build().pair_index.tolist()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("spoil", [nan_position, nan_cell, far, onto_another])
@pytest.mark.parametrize("name", ["molecule", "crystal", "large molecule"])
def test_a_builder_refuses_what_build_graph_refuses(spoil: Callable[[Atoms], None], name: str):
    """With the same words, after good structures and before them."""
    atoms, builder = STRUCTURES[name](), GraphBuilder(CUTOFF)
    good = atoms.copy()
    builder.build(good)
    spoil(atoms)
    expected = outcome(lambda: build_graph(atoms, CUTOFF))
    for _ in range(2):
        assert outcome(lambda: builder.build(atoms)) == expected
    np.testing.assert_array_equal(builder.build(good).pair_index, build_graph(good, CUTOFF).pair_index)
