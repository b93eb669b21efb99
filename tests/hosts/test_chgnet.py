"""CHGNet 0.3.0, whose weights are part of the package chgnet."""

import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from host_case import HostCase, rattled

from sigmaff.backbones.hosts.chgnet import CHGNet
from sigmaff.backbones.hosts.reading import contained

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
