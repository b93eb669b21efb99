"""AIMNet2 from a TorchScript file, as the package Auto3D has one; SIGMAFF_AIMNET2 is its path."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator, all_changes
from host_case import HostCase, built, rattled

from sigmaff.backbones.hosts.aimnet2 import AIMNet2
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.graph import build_graph

FILE = os.environ.get("SIGMAFF_AIMNET2", "")
needs_file = pytest.mark.skipif(not FILE, reason="SIGMAFF_AIMNET2 does not name a .jpt file of AIMNet2")


class Script(Calculator):
    """Energies and forces as the file itself computes them; its authors' calculator does the same."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012

    def __init__(self, file: str) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.network = torch.jit.load(file, map_location="cpu")

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        coord = torch.tensor(atoms.positions, dtype=torch.float32)[None].requires_grad_()
        data = {"coord": coord, "numbers": torch.tensor(atoms.numbers)[None], "charge": torch.zeros(1)}
        energy = self.network(data)["energy"]
        (gradient,) = torch.autograd.grad(energy.sum(), coord)
        self.results = {"energy": energy.item(), "forces": -gradient[0].numpy()}


@needs_file
class TestAIMNet2(HostCase):
    kind = AIMNet2
    periodic = False
    dtype = torch.float32
    energy_tolerance = 2e-3  # the file adds 4000 eV of reference energies in float32

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls) -> str:
        return FILE

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls) -> Calculator:
        return Script(FILE)

    def molecule(self) -> Atoms:
        return rattled(molecule("CH3CH2OH"))

    def test_a_crystal_is_an_error(self, backbone):
        with pytest.raises(DataError, match="periodic"):
            backbone(build_graph(bulk("Si"), backbone.cutoff))


@needs_file
def test_a_model_refers_to_the_file_and_takes_no_other(tmp_path):
    copy = Path(shutil.copy(FILE, tmp_path / "network.jpt"))
    reading = AIMNet2.read(str(copy), trust=True)
    assert reading.config.origin.weights == "referenced"
    assert not built(AIMNet2, reading).state_dict()
    copy.write_bytes(copy.read_bytes() + b"more")
    with pytest.raises(ModelFileError, match=r"network\.jpt.*SHA-256 differs"):
        AIMNet2(reading.config)
    copy.unlink()
    with pytest.raises(ModelFileError, match="no such file"):
        AIMNet2(reading.config)


def test_another_file_is_an_error(tmp_path):
    (tmp_path / "x.jpt").write_text("not a program")
    with pytest.raises(ConfigError, match="not a TorchScript file of AIMNet2"):
        AIMNet2.read(str(tmp_path / "x.jpt"), trust=True)
