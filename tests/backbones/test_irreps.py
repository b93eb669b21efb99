"""Wigner 3j symbols and spherical harmonics against e3nn, and the table against the script that writes it."""

import runpy
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from sigmaff.backbones import irreps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from e3nn import o3

ROOT = Path(__file__).parents[2]
TRIPLES = [(a, b, c) for a, b, c in product(range(4), repeat=3) if abs(a - b) <= c <= a + b]


@pytest.mark.parametrize("degrees", TRIPLES, ids=lambda degrees: "{}{}{}".format(*degrees))
def test_wigner_3j_symbols_are_those_of_e3nn(degrees: tuple[int, int, int]) -> None:
    theirs = o3.wigner_3j(*degrees, dtype=torch.float64).numpy()
    np.testing.assert_allclose(irreps.wigner_3j(*degrees), theirs, rtol=0, atol=1e-12)


def test_spherical_harmonics_are_those_of_e3nn() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(20, 3, dtype=torch.float64), dim=-1)
    ours = irreps.spherical_harmonics(vectors, [torch.tensor(irreps.ladder(degree)) for degree in (2, 3)])
    theirs = o3.spherical_harmonics([1, 2, 3], vectors, normalize=True, normalization="component")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_script_writes_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "tools" / "tabulate_wigner_3j.py"), run_name="__main__")
    shipped = (ROOT / "src" / "sigmaff" / "backbones" / "wigner_3j.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == shipped
