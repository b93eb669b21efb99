"""Molecules as SMILES: the shipped list, or a file."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from sigmaff.errors import ConfigError, DataError


def shipped_molecules() -> tuple[str, ...]:
    """Return neutral closed-shell molecules of up to seven heavy atoms C, N, O, S, Cl, from small to large."""
    return tuple(files("sigmaff_paper.qm7x_like").joinpath("molecules.smi").read_text(encoding="utf-8").split())


def read_molecules(path: Path) -> tuple[str, ...]:
    """Read the first word of each line, each molecule once."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file of SMILES, one on each line") from None
    smiles = tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
    if not smiles:
        raise DataError(f"{path} holds no SMILES")
    return smiles


def draw_molecules(smiles: Sequence[str], n: int, seed: int) -> tuple[str, ...]:
    """Draw n molecules at random; keep their order."""
    if n > len(smiles):
        raise ConfigError(f"{n} molecules were asked for, and the list has {len(smiles)}")
    drawn = np.random.default_rng(seed).choice(len(smiles), n, replace=False)
    return tuple(smiles[index] for index in np.sort(drawn))
