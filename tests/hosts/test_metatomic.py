"""Models of metatomic: a small PET that metatrain trains for one epoch and exports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.io import write
from host_case import HostCase, built, rattled

from sigmaff.backbones.hosts.metatomic import Metatomic
from sigmaff.backbones.hosts.reading import contained
from sigmaff.errors import ConfigError, ModelFileError

with contained("metatrain"):
    pytest.importorskip("metatrain", reason="metatrain is not installed")

OPTIONS = """
seed: 1
architecture:
  name: pet
  model: {cutoff: 4.0, d_pet: 16, d_node: 16, d_head: 16, d_feedforward: 16, num_heads: 2, num_attention_layers: 1,
          num_gnn_layers: 2}
  training: {num_epochs: 1, batch_size: 4}
training_set: {systems: data.xyz, targets: {energy: {key: energy, unit: eV, forces: {key: forces}}}}
validation_set: 0.2
test_set: 0.1
"""


def trained_model(folder: Path) -> Path:
    frames = [rattled(molecule("CH3CH2OH"), seed=seed) for seed in range(10)]
    for atoms in frames:
        energies = EMT()
        atoms.info["energy"] = energies.get_potential_energy(atoms)
        atoms.arrays["forces"] = energies.get_forces(atoms)
    write(folder / "data.xyz", frames)
    (folder / "options.yaml").write_text(OPTIONS)
    command = [sys.executable, "-m", "metatrain", "train", "options.yaml", "-o", "tiny.pt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "tiny.pt"


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    return trained_model(tmp_path_factory.mktemp("metatomic"))


class TestMetatomic(HostCase):
    kind = Metatomic
    dtype = torch.float32
    invariant = False  # PET learns rotations from data

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls, file) -> str:
        return str(file)

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls, source) -> Calculator:
        with contained("metatomic-ase"):
            from metatomic_ase import MetatomicCalculator

            return MetatomicCalculator(source, device="cpu")

    def molecule(self) -> Atoms:
        return rattled(molecule("CH3CH2OH"))

    def crystal(self) -> Atoms:
        return rattled(bulk("C"), seed=5)

    def slab(self) -> Atoms:
        """Periodic in the plane; the third vector of the cell has no neighbours along it."""
        atoms = rattled(bulk("C", cubic=True)[[0, 1, 2, 3]])
        atoms.center(vacuum=6, axis=2)
        atoms.pbc = (True, True, False)
        return atoms

    def structures(self) -> list[Atoms]:
        return [self.slab(), self.molecule(), self.crystal()]


def test_a_model_refers_to_the_file_and_takes_no_other(file, tmp_path):
    copy = tmp_path / "copy.pt"
    copy.write_bytes(file.read_bytes())
    reading = Metatomic.read(str(copy), trust=True)
    assert reading.config.origin.weights == "referenced"
    assert not built(Metatomic, reading).state_dict()
    copy.write_bytes(file.read_bytes() + b"more")
    with pytest.raises(ModelFileError, match="SHA-256 differs"):
        Metatomic(reading.config)


def test_another_file_is_an_error(tmp_path):
    (tmp_path / "x.pt").write_text("not a program")
    with pytest.raises(ConfigError, match="not a model of metatomic"):
        Metatomic.read(str(tmp_path / "x.pt"), trust=True)
