"""ANI-1x: torchani downloads its weights, so they are not here unless TORCHANI_DATA_DIR has them (ani_weights.py)."""

import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator
from host_case import HostCase, rattled

from sigmaff.backbones.hosts.ani import ANI
from sigmaff.backbones.hosts.reading import contained
from sigmaff.errors import ConfigError

with contained("torchani"):
    torchani = pytest.importorskip("torchani", reason="torchani is not installed")
    from torchani.paths import data_dir

WEIGHTS = data_dir() / "StateDicts" / "ani1x_state_dict.pt"


@pytest.mark.skipif(not WEIGHTS.is_file(), reason=f"the weights of ANI-1x are not at {WEIGHTS}")
class TestANI(HostCase):
    kind = ANI
    needs_trust = False

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls) -> str:
        return "1x/3"

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls) -> Calculator:
        return torchani.models.ANI1x(model_index=3).double().ase()

    def molecule(self) -> Atoms:
        return rattled(molecule("CH3CONH2"))

    def crystal(self) -> Atoms:
        """A box of water smaller than the sphere of neighbours."""
        atoms = Atoms("OH2OH2", cell=[4.2, 4.4, 4.0], pbc=True)
        atoms.positions[:3] = [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]
        atoms.positions[3:] = atoms.positions[:3, ::-1] + [2.1, 2.2, 2.0]
        return rattled(atoms)

    def test_reading_asks_for_trust(self, source):
        """The weights are tensors alone: there is nothing to trust."""
        assert ANI.read(source, trust=False).tensors


def test_weights_that_are_not_there_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHANI_DATA_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no weights at .*downloads them with.*ANI2x"):
        ANI.read("2x", trust=True)
    assert not any(tmp_path.rglob("*.pt"))


def test_weights_that_are_more_than_tensors_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHANI_DATA_DIR", str(tmp_path))
    (tmp_path / "StateDicts").mkdir()
    torch.save({"weights": print}, tmp_path / "StateDicts" / "ani1x_state_dict.pt")
    with pytest.raises(ConfigError, match="more than tensors"):
        ANI.read("1x", trust=False)
