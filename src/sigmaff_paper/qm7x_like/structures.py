"""Structures of one molecule: relaxed conformers, each displaced along its normal modes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from ase import Atoms
from ase.optimize import BFGS

from sigmaff.data.labelling import LabelError, engine_failures, label, make_calculator, origin_of
from sigmaff.errors import DataError
from sigmaff_paper.qm7x_like.config import GenerateConfig
from sigmaff_paper.qm7x_like.conformers import distinct, embed, has_bonds_of, parse
from sigmaff_paper.qm7x_like.modes import FloatArray, Modes, force_constants, normal_modes, thermal_displacements

if TYPE_CHECKING:
    from rdkit.Chem import Mol

A = TypeVar("A")
B = TypeVar("B")

Stage = Literal["embedding", "relaxation", "modes", "label", "worker"]

EQUILIBRIUM, NONEQUILIBRIUM = "equilibrium", "nonequilibrium"

SPARE = 0.9
"""Relax to this times fmax, because forces of a new calculation differ slightly."""

IMAGINARY = 10.0
"""cm⁻¹. An imaginary mode beyond it is a saddle point; below it, noise of finite differences along a soft mode."""

PUSHES = (0.2, 0.4)
"""Å: largest displacement of an atom off a saddle point, in the first and the second attempt."""

AFTER_PUSH = 0.1
"""Times fmax: forces beside a saddle point are small, and do not mean convergence."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A structure that could not be made."""

    smiles: str
    conformer: int | None  # None: the whole molecule failed
    stage: Stage
    reason: str


@dataclass(frozen=True, kw_only=True)
class Product:
    """Structures of a molecule. Their ``info`` holds smiles, conformer, kind and relative_energy."""

    structures: tuple[Atoms, ...]
    failures: tuple[Failure, ...]


def make_structures(smiles: str, config: GenerateConfig) -> Product:
    """Make all structures of a molecule. They depend on the SMILES and the settings only."""
    seed = int.from_bytes(sha256(f"{config.seed} {smiles}".encode()).digest()[:4], "big") >> 1
    record = _Record(smiles=smiles)
    try:
        molecule = parse(smiles)
        starts = dict(enumerate(embed(molecule, config.conformers, seed)))
    except DataError as error:
        return record.nothing("embedding", str(error))
    relaxed = record.each("relaxation", starts, lambda start: relax(start, molecule, config, config.fmax))
    candidates = {number: relaxed[number] for number in _distinct_numbers(relaxed)}
    settled = record.each("modes", candidates, lambda atoms: settle(atoms, molecule, config))
    if not settled:
        return record.nothing(
            "modes" if relaxed else "relaxation", f"none of {len(starts)} conformers could be relaxed to a minimum"
        )
    generator = np.random.default_rng(seed)
    structures = []
    for number in _distinct_numbers({number: minimum for number, (minimum, _) in settled.items()}):
        minimum, modes = settled[number]
        shifts = thermal_displacements(modes, config.temperature, config.displaced, generator, softest=config.softest)
        structures += _labelled(minimum, shifts, number, config, record)
    if not structures:
        return record.nothing("label", f"none of {len(settled)} relaxed conformers has a label")
    _set_relative_energies(structures)
    return Product(structures=tuple(structures), failures=tuple(record.failures))


def relax(start: Atoms, molecule: "Mol", config: GenerateConfig, fmax: float) -> Atoms:
    """Relax a structure and label it. Raise ``LabelError`` if it fails or the bonds change."""
    atoms = start.copy()
    atoms.calc = make_calculator(atoms, config.geometry)
    with engine_failures(config.geometry):
        converged = BFGS(atoms, logfile=None).run(fmax=SPARE * fmax, steps=config.max_steps)
    if not converged:
        raise LabelError(f"forces are still above {fmax:g} eV/Å after {config.max_steps} steps")
    if not has_bonds_of(atoms, molecule):
        raise LabelError("it became another molecule: its bonds are not those of the SMILES")
    return label(atoms, config.geometry)


def settle(atoms: Atoms, molecule: "Mol", config: GenerateConfig) -> tuple[Atoms, Modes]:
    """Return a minimum and its modes. A saddle point is displaced along its imaginary mode and relaxed again."""
    modes = vibrations(atoms, config)
    for push in PUSHES:
        if modes.lowest_wavenumber > -IMAGINARY:
            break
        direction = modes.displacements[0]
        pushed = atoms.copy()
        pushed.positions += push * direction / np.linalg.norm(direction, axis=1).max()
        atoms = relax(pushed, molecule, config, AFTER_PUSH * config.fmax)
        modes = vibrations(atoms, config)
    if modes.lowest_wavenumber < -IMAGINARY:
        raise LabelError(f"it is not a minimum: a mode has {-modes.lowest_wavenumber:.0f}i cm⁻¹")
    return atoms, modes


def vibrations(atoms: Atoms, config: GenerateConfig) -> Modes:
    """Return the normal modes at the level of the relaxation."""
    atoms = atoms.copy()
    atoms.calc = make_calculator(atoms, config.geometry)
    with engine_failures(config.geometry):
        return normal_modes(atoms, force_constants(atoms))


@dataclass(frozen=True, kw_only=True)
class _Record:
    """Collects failures."""

    smiles: str
    failures: list[Failure] = field(default_factory=list)

    def add(self, conformer: int | None, stage: Stage, reason: str) -> None:
        self.failures.append(Failure(smiles=self.smiles, conformer=conformer, stage=stage, reason=reason))

    def nothing(self, stage: Stage, reason: str) -> Product:
        self.add(None, stage, reason)
        return Product(structures=(), failures=tuple(self.failures))

    def each(self, stage: Stage, pieces: Mapping[int, A], function: Callable[[A], B]) -> dict[int, B]:
        """function(piece) of each conformer that does not fail."""
        done = {}
        for number, piece in pieces.items():
            try:
                done[number] = function(piece)
            except LabelError as error:
                self.add(number, stage, str(error))
        return done


def _labelled(minimum: Atoms, shifts: FloatArray, number: int, config: GenerateConfig, record: _Record) -> list[Atoms]:
    """A relaxed conformer and its displacements; nothing if the relaxed one has no label."""
    structures: list[Atoms] = []
    for index, shift in enumerate((np.zeros_like(minimum.positions), *shifts)):
        atoms = Atoms(minimum.numbers, minimum.positions + shift)
        try:
            labelled = label(atoms, config.engine)
        except LabelError as error:
            record.add(number, "label", str(error))
            if index == 0:
                break
            continue
        kind = NONEQUILIBRIUM if index else EQUILIBRIUM
        labelled.info = {"smiles": record.smiles, "conformer": number, "kind": kind} | origin_of(config.engine)
        structures.append(labelled)
    return structures


def _distinct_numbers(minima: Mapping[int, Atoms]) -> list[int]:
    numbers, structures = list(minima), list(minima.values())
    energies = np.array([atoms.get_potential_energy() for atoms in structures])
    return [numbers[index] for index in distinct(structures, energies)]


def _set_relative_energies(structures: list[Atoms]) -> None:
    """In eV above the lowest minimum of the molecule."""
    lowest = min(atoms.get_potential_energy() for atoms in structures if atoms.info["kind"] == EQUILIBRIUM)
    for atoms in structures:
        atoms.info["relative_energy"] = atoms.get_potential_energy() - lowest
