"""SevenNet-0, whose weights are part of the package sevenn."""

import pytest
from ase import Atoms
from ase.build import bulk, molecule
from host_case import HostCase, rattled

from sigmaff.backbones.hosts.sevennet import SevenNet

pytest.importorskip("sevenn", reason="sevenn is not installed")


class TestSevenNet(HostCase):
    kind = SevenNet
    needs_trust = False

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls) -> str:
        return "7net-0"

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls, source):
        from sevenn.calculator import SevenNetCalculator

        return SevenNetCalculator(source, device="cpu")

    def molecule(self) -> Atoms:
        return rattled(molecule("CH3CH2OH"))

    def crystal(self) -> Atoms:
        return rattled(bulk("NaCl", "rocksalt", a=5.6))
