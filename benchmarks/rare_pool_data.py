"""Pools of candidates with something rare in them, and the structures to test on, for ``rare_pools.py``.

| pool | common part | rare part | sources |
|---|---|---|---|
| acac | acetylacetone at 300 K | at 600 K | ``acac/`` of SIGMAFF_DATA |
| 3bpa | 3BPA at 300 K | at 600 K and 1200 K | ``3bpa/`` of SIGMAFF_DATA |
| qm7x | displaced molecules of C, H, N, O | those with a triple bond | ``qm7x/`` of SIGMAFF_DATA |
| reactive | ethanol at 500 K, 2,000 frames | ethanol with one bond stretched by 0.3 to 1.5 Å | made by GFN2-xTB, once |

Test structures are fixed; start and pool are drawn anew for every seed from all others. In qm7x the test molecules are
not those of the pool. A bond of C or N shorter than 1.24 Å is a triple bond.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.neighborlist import build_neighbor_list, natural_cutoffs
from scipy.sparse.csgraph import connected_components
from xtb_ethanol import ENGINE, data_file

from sigmaff.data.labelling import label
from sigmaff.errors import DataError, SigmaffError
from sigmaff.files import atomic_write

N_START, N_COMMON, N_RARE, N_TEST = 30, 300, 30, 150
N_THERMAL = 2000
"""Common frames of the reactive pool."""
TEMPERATURE = 500.0  # K
STRETCH = (0.3, 1.5)  # Å
TRIPLE = 1.24  # Å


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Labelled structures: the start, the candidates, and those to test on."""

    start: list[Atoms]
    candidates: list[Atoms]
    is_rare: np.ndarray  # of each candidate
    tests: dict[str, list[Atoms]]  # common, rare, and paths with energies alone

    def labelled(self, picked: Sequence[int]) -> list[Atoms]:
        return [*self.start, *(self.candidates[index] for index in picked)]


@dataclass(frozen=True, kw_only=True)
class Source:
    """All structures of a pool."""

    common: list[Atoms]  # to draw start and candidates from
    rare: list[Atoms]
    tests: dict[str, list[Atoms]]
    n_common: int = N_COMMON

    def drawn(self, seed: int) -> Pool:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.common))[: N_START + self.n_common]
        common = [self.common[index] for index in order]
        rare = [self.rare[index] for index in rng.permutation(len(self.rare))[:N_RARE]]
        is_rare = np.arange(self.n_common + N_RARE) >= self.n_common
        shuffled = rng.permutation(len(is_rare))
        candidates = [*common[N_START:], *rare]
        return Pool(
            start=common[:N_START],
            candidates=[candidates[index] for index in shuffled],
            is_rare=is_rare[shuffled],
            tests=self.tests,
        )


@cache
def source(name: str, folder: Path) -> Source:
    """Arguments: name of a pool; folder for files that are made once."""
    return {"acac": _acac, "3bpa": _3bpa, "qm7x": _qm7x}[name]() if name != "reactive" else _reactive(folder)


def _read(path: str) -> list[Atoms]:
    if "SIGMAFF_DATA" not in os.environ:
        raise SystemExit("set SIGMAFF_DATA to the folder of reference data")
    return ase.io.read(Path(os.environ["SIGMAFF_DATA"]) / path, ":")


def _some(frames: list[Atoms], n: int, seed: int = 0) -> tuple[list[Atoms], list[Atoms]]:
    """n drawn at random, and the others."""
    order = np.random.default_rng(seed).permutation(len(frames))
    return [frames[index] for index in order[:n]], [frames[index] for index in order[n:]]


def _acac() -> Source:
    names = {"common": "test_MD_300K", "rare": "test_MD_600K"}
    tests = {part: _some(_read(f"acac/{name}.extxyz"), N_TEST)[0] for part, name in names.items()}
    paths = {"dihedral": _read("acac/test_dihedral.extxyz"), "H transfer": _read("acac/test_H_transfer.extxyz")}
    return Source(common=_read("acac/train_300K.extxyz"), rare=_read("acac/train_600K.extxyz"), tests=tests | paths)


def _3bpa() -> Source:
    test_common, common = _some(_read("3bpa/train_300K.extxyz"), N_TEST)
    test_rare, rare = _some(_read("3bpa/hot_600K.extxyz") + _read("3bpa/hot_1200K.extxyz"), N_TEST)
    return Source(common=common, rare=rare, tests={"common": test_common, "rare": test_rare})


def _qm7x() -> Source:
    frames = [atoms for atoms in _read("qm7x/qm7x_250x10.extxyz") if set(atoms.numbers) <= {1, 6, 7, 8}]
    molecules: dict[int, list[Atoms]] = {}
    for atoms in frames:
        molecules.setdefault(int(atoms.info["mol_id"]), []).append(atoms)
    kinds: dict[bool, list[list[Atoms]]] = {False: [], True: []}
    for _, found in sorted(molecules.items()):
        kinds[bool(np.mean([_has_triple_bond(atoms) for atoms in found]) > 0.5)].append(found)
    parts = {}
    for rare, found in kinds.items():
        order = np.random.default_rng(0).permutation(len(found))
        n_test = len(found) // (2 if rare else 3)
        test, others = ([f for k in part for f in found[k]] for part in (order[:n_test], order[n_test:]))
        parts[rare] = (_some(test, N_TEST)[0], others)
    tests = {"common": parts[False][0], "rare": parts[True][0]}
    return Source(common=parts[False][1], rare=parts[True][1], tests=tests)


def _has_triple_bond(atoms: Atoms) -> bool:
    heavy = atoms[np.isin(atoms.numbers, (6, 7))]
    distances = heavy.get_all_distances()
    return bool((distances[np.triu_indices(len(heavy), 1)] < TRIPLE).any())


def _reactive(folder: Path) -> Source:
    """Frames of one trajectory for start and pool, of another for tests; stretched ones from each of them."""
    thermal = {"pool": N_START + N_THERMAL, "test": N_TEST}
    stretched = {"pool": 10 * N_RARE, "test": N_TEST}
    frames, broken = {}, {}
    for seed, part in enumerate(thermal):
        frames[part] = ase.io.read(data_file(folder / f"{part}.extxyz", [TEMPERATURE], thermal[part], seed), ":")
        path = folder / f"{part}-stretched.extxyz"
        if not path.exists():
            made = _stretched(frames[part], stretched[part], np.random.default_rng(seed))
            with atomic_write(path) as temporary:
                ase.io.write(temporary, made, format="extxyz")
        broken[part] = ase.io.read(path, ":")
    tests = {"common": frames["test"], "rare": broken["test"]}
    return Source(common=frames["pool"], rare=broken["pool"], tests=tests, n_common=N_THERMAL)


def _stretched(frames: list[Atoms], n: int, rng: np.random.Generator) -> list[Atoms]:
    """Labelled frames, each with one bond stretched; those without a valid label are drawn again."""
    found: list[Atoms] = []
    while len(found) < n:
        atoms = frames[rng.integers(len(frames))]
        try:
            found.append(label(stretch(Atoms(atoms.numbers, atoms.positions), rng), ENGINE))
        except SigmaffError:
            continue
    return found


def stretch(atoms: Atoms, rng: np.random.Generator) -> Atoms:
    """Move the two parts of a molecule apart along a bond drawn at random.

    Atoms that meet in a hot molecule may look bonded and close a ring: its bonds are not drawn.
    """
    neighbours = build_neighbor_list(atoms, natural_cutoffs(atoms, mult=1.2), self_interaction=False)
    bonds = neighbours.get_connectivity_matrix(sparse=False)
    for first, second in rng.permutation(np.transpose(bonds.nonzero())):
        kept = bonds.copy()
        kept[first, second] = kept[second, first] = 0
        n_parts, part = connected_components(kept, directed=False)
        if n_parts >= 2:
            break
    else:
        raise DataError("every bond is part of a ring")
    direction = atoms.positions[second] - atoms.positions[first]
    moved = atoms.copy()
    moved.positions[part == part[second]] += rng.uniform(*STRETCH) * direction / np.linalg.norm(direction)
    return moved
