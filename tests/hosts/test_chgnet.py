"""CHGNet 0.3.0, whose weights are part of the package chgnet."""

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from host_case import HostCase, built, rattled

from sigmaff.backbones.hosts.chgnet import CHGNet
from sigmaff.backbones.hosts.reading import contained
from sigmaff.graph import build_graph

with contained("chgnet"):
    pytest.importorskip("chgnet", reason="chgnet is not installed")


class TestCHGNet(HostCase):
    kind = CHGNet
    needs_trust = False

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls) -> str:
        return "0.3.0"

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls, source) -> Calculator:
        with contained("chgnet"):
            from chgnet.model.dynamics import CHGNetCalculator

            return CHGNetCalculator(use_device="cpu")

    def molecule(self) -> Atoms:
        """In a box, which the calculator of the host asks for; it is larger than the cutoff."""
        atoms = rattled(molecule("CH3CH2OH"))
        atoms.center(vacuum=6.5)
        atoms.pbc = True
        return atoms

    def crystal(self) -> Atoms:
        return rattled(bulk("NaCl", "rocksalt", a=5.6))


def test_a_file_of_a_user(tmp_path):
    """As the trainer of chgnet saves it; without reference energies."""
    with contained("chgnet"):
        from chgnet.model import CHGNet as Network

        torch.manual_seed(0)
        network = Network(atom_fea_dim=8, bond_fea_dim=8, angle_fea_dim=8, n_conv=2, composition_model=None)
        torch.save({"model": network.as_dict()}, tmp_path / "mine.pth.tar")
    reading = CHGNet.read(str(tmp_path / "mine.pth.tar"), trust=True)
    assert set(reading.references.values()) == {0.0}
    assert reading.config.origin.licence is None
    backbone = built(CHGNet, reading)
    assert backbone(build_graph(bulk("Si"), backbone.cutoff, torch.float64)).isfinite().all()
