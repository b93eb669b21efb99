"""From SMILES to labelled structures: normal modes and thermal draws against closed forms, files against the engine."""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.morse import MorsePotential
from ase.vibrations import Vibrations
from rdkit import Chem
from rdkit.Chem.Descriptors import NumRadicalElectrons
from scipy import stats
from tblite.ase import TBLite
from typer.testing import CliRunner

from dask_case import running_scheduler
from sigmaff import tasks
from sigmaff.data import read_structures
from sigmaff.data.labelling import EngineConfig, label
from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.files import folder_lock
from sigmaff.progress import Listener
from sigmaff_paper.qm7x_like import (
    GenerateConfig,
    draw_molecules,
    generate,
    make_structures,
    read_molecules,
    shipped_molecules,
)
from sigmaff_paper.qm7x_like.command import app
from sigmaff_paper.qm7x_like.conformers import distinct, embed, has_bonds_of, parse
from sigmaff_paper.qm7x_like.modes import Modes, force_constants, normal_modes, thermal_displacements

if TYPE_CHECKING:
    from distributed import Client

SMALL = GenerateConfig(conformers=2, displaced=3)
UNCONVERGED = {"arguments": {"max_iterations": 1}}


@pytest.fixture(scope="module")
def client() -> Iterator["Client"]:
    with running_scheduler(1) as client:
        yield client


def xtb(atoms: Atoms) -> Atoms:
    copy = atoms.copy()
    copy.calc = TBLite(method="GFN2-xTB", verbosity=0)
    return copy


def test_the_shipped_molecules_are_what_they_should_be() -> None:
    smiles = shipped_molecules()
    assert len(set(smiles)) == len(smiles) >= 450
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools/enumerate_molecules.py"))
    assert list(smiles) == tool["enumerate_molecules"]()
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    assert [Chem.MolToSmiles(found) for found in molecules] == list(smiles)
    assert {atom.GetSymbol() for found in molecules for atom in found.GetAtoms()} == {"C", "N", "O", "S", "Cl"}
    for text, found in zip(smiles, molecules, strict=True):
        assert found.GetNumHeavyAtoms() <= 7, text
        assert all(atom.GetFormalCharge() == 0 for atom in found.GetAtoms()), text
        assert NumRadicalElectrons(found) == 0, text
        assert "." not in text


def test_lists_of_molecules(tmp_path: Path) -> None:
    path = tmp_path / "mine.smi"
    path.write_text("CCO ethanol\n\nO water\nCCO again\nN\n")
    assert read_molecules(path) == ("CCO", "O", "N")
    drawn = draw_molecules(shipped_molecules(), 50, seed=1)
    assert drawn == draw_molecules(shipped_molecules(), 50, seed=1) != draw_molecules(shipped_molecules(), 50, seed=2)
    assert list(drawn) == [text for text in shipped_molecules() if text in drawn]
    with pytest.raises(ConfigError, match="4 molecules were asked for, and the list has 3"):
        draw_molecules(read_molecules(path), 4, seed=0)
    path.write_text("\n")
    with pytest.raises(DataError, match=r"mine\.smi holds no SMILES"):
        read_molecules(path)


def test_a_diatomic_molecule_has_the_one_mode_of_its_spring() -> None:
    """A Morse potential ε (e^{-2a(r-r0)} - 2 e^{-a(r-r0)}) with a = ρ0/r0 has the force constant 2 ε a²."""
    epsilon, rho, length = 4.5, 2.2, 1.3
    atoms = Atoms("CO", [[0, 0, 0], [length / 3**0.5] * 3])
    atoms.calc = MorsePotential(epsilon=epsilon, rho0=rho, r0=length, rcut1=8.0, rcut2=9.0)
    modes = normal_modes(atoms, force_constants(atoms))
    carbon, oxygen = atoms.get_masses()
    omega = np.sqrt(2 * epsilon * (rho / length) ** 2 * (1 / carbon + 1 / oxygen))
    energy = units._hbar * 1e10 / np.sqrt(units._e * units._amu) * omega
    np.testing.assert_allclose(modes.wavenumbers, [energy / units.invcm], rtol=1e-3)
    along = modes.displacements[0] @ np.ones(3) / 3**0.5
    np.testing.assert_allclose(along[0] / along[1], -oxygen / carbon, rtol=1e-6)


def test_wavenumbers_of_water_are_those_of_ase(tmp_path: Path) -> None:
    (water,) = make_structures("O", GenerateConfig(displaced=0)).structures
    atoms = xtb(water)
    found = normal_modes(atoms, force_constants(atoms)).wavenumbers
    reference = Vibrations(xtb(water), name=str(tmp_path / "modes"), delta=0.01)
    reference.run()
    np.testing.assert_allclose(found, reference.get_frequencies().real[-3:], atol=2.0)


@pytest.fixture
def harmonic() -> tuple[Atoms, np.ndarray, Modes]:
    """Methanol with springs drawn at random, stiff enough for no mode to be soft."""
    atoms = molecule("CH3OH")
    root = np.random.default_rng(4).normal(size=(18, 18))
    constants = root @ root.T + 5 * np.eye(18)
    return atoms, constants, normal_modes(atoms, constants)


def test_thermal_draws_have_the_energies_of_a_classical_harmonic_molecule(
    harmonic: tuple[Atoms, np.ndarray, Modes],
) -> None:
    """½ xᵀHx / kT of a molecule with n modes follows a gamma distribution of shape n/2: n kT/2 in the mean."""
    atoms, constants, modes = harmonic
    assert modes.displacements.shape == (12, 6, 3)
    generator = np.random.default_rng(0)
    shifts = thermal_displacements(modes, 1500.0, 4000, generator, softest=50.0).reshape(4000, -1)
    energies = np.einsum("ni,ij,nj->n", shifts, constants, shifts) / 2 / (units.kB * 1500.0)
    assert energies.mean() == pytest.approx(6.0, abs=5 * np.sqrt(6.0 / 4000))
    assert stats.kstest(energies, stats.gamma(6.0).cdf).pvalue > 1e-3
    weighted = shifts.reshape(-1, 6, 3) * atoms.get_masses()[:, None]
    np.testing.assert_allclose(weighted.sum(1), 0.0, atol=1e-9)
    arms = atoms.positions - atoms.get_center_of_mass()
    np.testing.assert_allclose(np.cross(arms, weighted).sum(1), 0.0, atol=1e-9)


def test_soft_modes_move_no_further_than_the_softest_allowed(harmonic: tuple[Atoms, np.ndarray, Modes]) -> None:
    _, _, modes = harmonic
    softest = float(modes.wavenumbers[5])
    shifts = thermal_displacements(modes, 300.0, 4000, np.random.default_rng(0), softest=softest)
    amplitudes = shifts.reshape(4000, -1) @ np.linalg.pinv(modes.displacements.reshape(12, -1))
    expected = np.sqrt(units.kB * 300.0 / np.maximum(modes.squared_frequencies, modes.squared_frequencies[5]))
    np.testing.assert_allclose(amplitudes.std(0), expected, rtol=0.06)


def test_conformers_are_told_apart_and_renumbered_or_mirrored_ones_are_not() -> None:
    gauche, anti = embed(parse("CCCC"), 2, seed=1)[::-1]
    mirrored = gauche.copy()
    mirrored.positions *= [-1.0, 1.0, 1.0]
    mirrored.rotate(40, "y")
    hydrogens = np.flatnonzero(gauche.numbers == 1)
    order = np.arange(len(gauche))
    order[hydrogens] = np.random.default_rng(0).permutation(hydrogens)
    structures = [gauche, mirrored[order], anti]
    assert distinct(structures, np.array([0.04, 0.0401, 0.0])) == [2, 0]
    assert distinct(structures, np.array([0.04, 0.0800, 0.0])) == [2, 0, 1]


def test_bonds_are_those_of_the_smiles_until_one_breaks() -> None:
    ethanol = parse("CCO")
    (atoms, *_) = embed(ethanol, 1, seed=0)
    assert has_bonds_of(atoms, ethanol)
    atoms.set_distance(1, 2, 2.2, fix=0)
    assert not has_bonds_of(atoms, ethanol)


def test_methanol_at_rest_and_displaced() -> None:
    product = make_structures("CO", SMALL)
    assert product.failures == ()
    (minimum, *displaced) = product.structures
    at_rest = label(minimum, SMALL.geometry)
    assert np.linalg.norm(at_rest.get_forces(), axis=1).max() < SMALL.fmax  # on the surface that it was relaxed on
    assert 0.05 < np.linalg.norm(minimum.get_forces(), axis=1).max() < 2.0  # and not on that of its label
    assert [atoms.info["kind"] for atoms in product.structures] == ["equilibrium", *["nonequilibrium"] * 3]
    for atoms in product.structures:
        fresh = xtb(atoms)
        assert atoms.get_potential_energy() == fresh.get_potential_energy()
        np.testing.assert_array_equal(atoms.get_forces(), fresh.get_forces())
        rise = atoms.get_potential_energy() - minimum.get_potential_energy()
        assert atoms.info["relative_energy"] == pytest.approx(rise, abs=1e-9)
        assert (atoms.info["smiles"], atoms.info["conformer"]) == ("CO", 0)
    assert all(0.1 < atoms.info["relative_energy"] < 6.0 for atoms in displaced)  # 12 modes: 0.8 eV in the mean
    again, other = make_structures("CO", SMALL), make_structures("CO", SMALL.model_copy(update={"seed": 1}))
    np.testing.assert_array_equal(again.structures[1].positions, displaced[0].positions)
    assert np.abs(other.structures[1].positions - displaced[0].positions).max() > 0.01


def test_a_saddle_point_is_left() -> None:
    """Eclipsed ethane comes to rest by symmetry, and is no minimum."""
    from sigmaff_paper.qm7x_like.structures import relax, settle

    ethane = parse("CC")
    (start,) = embed(ethane, 1, seed=0)
    carbon, other = start.positions[:2]
    turning = [index for index in range(2, 8) if np.linalg.norm(start.positions[index] - other) < 1.3]
    group = start[turning]
    group.rotate(60, other - carbon, center=other)
    start.positions[turning] = group.positions
    at_rest = relax(start, ethane, SMALL, SMALL.fmax)
    minimum, modes = settle(at_rest, ethane, SMALL)
    assert modes.lowest_wavenumber > 100
    assert 0.05 < at_rest.get_potential_energy() - minimum.get_potential_energy() < 0.2  # 0.12 eV by experiment


@pytest.mark.parametrize(
    ("smiles", "engines", "stages", "reason"),
    [
        ("C(", {}, [(None, "embedding")], "not the SMILES"),
        ("C1#CC1", {}, [(None, "embedding")], "RDKit found no place"),
        ("O", {"geometry": UNCONVERGED}, [(0, "relaxation"), (None, "relaxation")], "converge"),
        (
            "O",
            {"geometry": {"calculator": "ase.calculators.lj:LennardJones", "arguments": {"sigma": 2.0, "rc": 20.0}}},
            [(0, "relaxation"), (None, "relaxation")],
            "became another molecule",
        ),
        ("O", {"engine": {"max_force": 1.0}}, [(0, "label")], "more than max_force"),
        ("O", {"engine": UNCONVERGED}, [(0, "label"), (None, "label")], "converge"),
    ],
    ids=["no SMILES", "no geometry", "not converged", "falls apart", "absurd", "no label"],
)
def test_what_fails_is_told(
    smiles: str, engines: dict[str, Any], stages: list[tuple[int | None, str]], reason: str
) -> None:
    config = GenerateConfig.model_validate({"conformers": 1, "displaced": 1, **engines})
    product = make_structures(smiles, config)
    assert [(failure.conformer, failure.stage) for failure in product.failures] == stages
    assert reason in product.failures[0].reason
    assert len(product.structures) == (stages[-1][0] is not None)


class KilledError(Exception):
    pass


class Seen(Listener):
    """Keeps the progress, and may die at a point of it."""

    def __init__(self, *, dies_at: int | None = None) -> None:
        self.dies_at = dies_at
        self.states: list[tuple[int, int]] = []

    def advance(self, done: int, total: int, note: str = "") -> None:
        self.states.append((done, total))
        if done == self.dies_at:
            raise KilledError


def test_resume_of_a_killed_generation(client: "Client", tmp_path: Path) -> None:
    """With one worker molecules end in their order: water is done, then the program dies."""
    smiles, folder = ["O", "C(", "CO"], tmp_path / "set"
    with pytest.raises(KilledError):
        generate(folder, smiles, SMALL, lambda: client, Seen(dies_at=1))
    (water,) = (folder / "molecules").iterdir()
    assert not (folder / "equilibrium.extxyz").exists()
    before = water.stat().st_mtime_ns
    seen = Seen()
    counts = generate(folder, smiles, SMALL, lambda: client, seen)
    assert counts == {"molecules": 2, "equilibrium": 2, "nonequilibrium": 6, "failures": 1}
    assert seen.states == [(1, 3), (2, 3), (3, 3)]
    assert water.stat().st_mtime_ns == before
    assert json.loads((folder / "failures.json").read_text())[0]["smiles"] == "C("
    _check_files(folder, smiles)
    assert generate(folder, smiles, SMALL, no_workers, seen) == counts
    assert seen.states[3:] == [(3, 3)]
    assert water.stat().st_mtime_ns == before
    _check_other_settings(folder, client)


def _check_files(folder: Path, smiles: list[str]) -> None:
    """The same as of an unbroken run, and as a fresh calculation gives."""
    expected = [atoms for text in smiles for atoms in make_structures(text, SMALL).structures]
    for kind in ("equilibrium", "nonequilibrium"):
        wanted = [atoms for atoms in expected if atoms.info["kind"] == kind]
        found = ase.io.read(folder / f"{kind}.extxyz", ":")
        assert [atoms.info["smiles"] for atoms in found] == [atoms.info["smiles"] for atoms in wanted]
        for atoms, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(atoms.positions, other.positions, atol=1e-7)
            np.testing.assert_allclose(atoms.get_forces(), xtb(atoms).get_forces(), atol=1e-5)
            assert atoms.get_potential_energy() == pytest.approx(xtb(atoms).get_potential_energy(), abs=1e-6)
        assert len(read_structures(folder / f"{kind}.extxyz")) == len(wanted)
    assert json.loads((folder / "generate.json").read_text())["settings"]["displaced"] == 3


def _check_other_settings(folder: Path, client: "Client") -> None:
    def again(smiles: list[str], **changes: object) -> None:
        generate(folder, smiles, SMALL.model_copy(update=changes), lambda: client)

    again(["O", "C(", "CO"], time_limit=5.0)  # decides nothing about what is made
    with pytest.raises(ConfigError, match=r"set belongs to another run \(displaced: was 3, now 4; seed: was 0"):
        again(["O", "C(", "CO"], displaced=4, seed=1)
    with pytest.raises(ConfigError, match=r"engine\.calculator: was gfn2-xtb, now gfn1-xtb"):
        again(["O", "C(", "CO"], engine=EngineConfig(calculator="gfn1-xtb"))
    with pytest.raises(ConfigError, match="n_molecules: was 3, now 1; molecules changed"):
        again(["O"])


def no_workers(*_: object) -> "Client":
    raise AssertionError("nobody has work for them")


def test_a_directory_in_use_is_refused_before_workers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "workers", no_workers)
    with folder_lock(tmp_path), pytest.raises(SigmaffError, match="another process is at work"):
        CliRunner().invoke(app, ["qm7x-like", "--output", str(tmp_path), "--molecules", "1"], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_a_directory_of_something_else(client: "Client", tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"holds other files and no generate\.json"):
        generate(tmp_path, ["O"], SMALL, lambda: client)
    (tmp_path / "generate.json").write_text("[]")
    with pytest.raises(DataError, match=r"generate\.json is damaged or not written by sigmaff"):
        generate(tmp_path, ["O"], SMALL, lambda: client)


def test_the_command(client: "Client", tmp_path: Path) -> None:
    (tmp_path / "mine.smi").write_text("O\nN\nS\n")
    address = client.scheduler_info()["address"]
    options = f"--output {tmp_path / 'set'} --smiles {tmp_path / 'mine.smi'} --displaced 1 --scheduler {address}"
    done = CliRunner().invoke(app, ["qm7x-like", *options.split(), "--molecules", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "2 molecules, 2 equilibrium, 2 nonequilibrium, 0 failures" in done.output
    assert len(ase.io.read(tmp_path / "set" / "nonequilibrium.extxyz", ":")) == 2
    with pytest.raises(ConfigError, match=r"generate: engine: .* no engine 'none'"):
        CliRunner().invoke(app, ["qm7x-like", *options.split(), "--engine", "none"], catch_exceptions=False)
