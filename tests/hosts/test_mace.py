"""MACE: small networks that mace-torch makes and saves as it saves any, with random weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator
from host_case import HostCase, built, rattled

from sigmaff.backbones.hosts.mace import MACE
from sigmaff.backbones.hosts.reading import contained
from sigmaff.errors import ConfigError
from sigmaff.graph import build_graph

with contained("mace-torch"):
    pytest.importorskip("mace", reason="mace-torch is not installed")


@contextmanager
def mace_in(dtype: torch.dtype) -> Iterator[None]:
    """mace-torch makes networks in torch's default precision, and its calculator changes this."""
    before = torch.get_default_dtype()
    try:
        with contained("mace-torch"):
            torch.set_default_dtype(dtype)
            yield
    finally:
        torch.set_default_dtype(before)


ELEMENTS = [1, 6, 8, 11, 17]


def saved_model(path: Path, dtype: torch.dtype = torch.float64, heads: tuple[str, ...] = ("Default",), **more) -> str:
    """A network with the parts of the foundation models: two layers, ZBL, Agnesi transform."""
    with mace_in(dtype):
        from e3nn.o3 import Irreps
        from mace import modules

        torch.manual_seed(0)
        energies = np.random.default_rng(0).normal(scale=100, size=(len(heads), len(ELEMENTS)))
        settings = {
            "r_max": 4.5,
            "num_bessel": 6,
            "num_polynomial_cutoff": 5,
            "max_ell": 2,
            "interaction_cls": modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
            "interaction_cls_first": modules.interaction_classes["RealAgnosticInteractionBlock"],
            "num_interactions": 2,
            "num_elements": len(ELEMENTS),
            "hidden_irreps": Irreps("8x0e + 8x1o"),
            "MLP_irreps": Irreps("6x0e"),
            "gate": torch.nn.functional.silu,
            "atomic_energies": energies,
            "avg_num_neighbors": 9.3,
            "atomic_numbers": ELEMENTS,
            "correlation": 2,
            "pair_repulsion": True,
            "distance_transform": "Agnesi",
            "heads": list(heads),
            "atomic_inter_scale": [0.8] * len(heads),
            "atomic_inter_shift": [0.1] * len(heads),
        }
        torch.save(modules.ScaleShiftMACE(**(settings | more)), path)
    return str(path)


class TestMACE(HostCase):
    kind = MACE

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls, tmp_path_factory) -> str:
        return saved_model(tmp_path_factory.mktemp("mace") / "tiny.model")

    @pytest.fixture(scope="class")
    @classmethod
    def calculator(cls, source) -> Calculator:
        with mace_in(torch.float64):
            from mace.calculators import MACECalculator

            return MACECalculator(model_paths=source, device="cpu", default_dtype="float64")

    def molecule(self) -> Atoms:
        return rattled(molecule("CH3CH2OH"))

    def crystal(self) -> Atoms:
        return rattled(bulk("NaCl", "rocksalt", a=5.6))


def test_features_are_the_invariants_of_both_layers(tmp_path):
    reading = MACE.read(saved_model(tmp_path / "m.model"), trust=True)
    assert reading.config.n_features == 16


def test_one_head_of_several(tmp_path):
    """Its reference energies and its energies, which are those of the host with this head."""
    source = saved_model(tmp_path / "two.model", heads=("near", "far"))
    with pytest.raises(ConfigError, match=r"heads are near, far.*two\.model#near"):
        MACE.read(source, trust=True)
    reading = MACE.read(f"{source}#far", trust=True)
    backbone = built(MACE, reading)
    atoms = rattled(molecule("CH3OH"))
    with mace_in(torch.float64):
        from mace.calculators import MACECalculator

        atoms.calc = MACECalculator(model_paths=source, device="cpu", default_dtype="float64", head="far")
    own = backbone(build_graph(atoms, backbone.cutoff, torch.float64))[:, -1].sum().item()
    references = sum(reading.references[z] for z in atoms.numbers)
    assert own + references == pytest.approx(atoms.get_potential_energy(), abs=1e-9)


def test_single_precision_file(tmp_path):
    reading = MACE.read(saved_model(tmp_path / "m.model", torch.float32), trust=True)
    backbone = MACE(reading.config)
    backbone.load_state_dict(reading.tensors)
    assert all(tensor.dtype == torch.float32 for tensor in backbone.state_dict().values() if tensor.is_floating_point())


def test_reading_a_mace_leaves_torch_safe(tmp_path):
    """``import mace`` alone switches off the checks of torch.load for the process."""
    MACE.read(saved_model(tmp_path / "m.model"), trust=True)
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ
    torch.save({"program": print}, tmp_path / "x.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "x.pt")
