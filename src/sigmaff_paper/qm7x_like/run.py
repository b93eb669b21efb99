"""A directory of generated structures: one file per molecule, so that what is done stays done."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ase.io
from ase import Atoms
from pydantic import Field

from sigmaff.extras import require
from sigmaff.files import RunFile, RunFolder, atomic_write, write_json
from sigmaff.progress import Listener
from sigmaff.tasks import Outcome, run_tasks
from sigmaff_paper.qm7x_like.config import GenerateConfig
from sigmaff_paper.qm7x_like.structures import EQUILIBRIUM, NONEQUILIBRIUM, Failure, Product, make_structures

if TYPE_CHECKING:
    from distributed import Client

Counts = dict[str, int]


class GenerateFile(RunFile):
    """``generate.json``: how the structures of a directory are made."""

    settings: GenerateConfig
    versions: dict[str, str] = Field(
        default_factory=lambda: {name: version(name) for name in ("sigmaff", "ase", "numpy", "rdkit", "tblite")}
    )
    molecules: tuple[str, ...]  # SMILES
    counts: Counts | None = None  # None: not finished

    def identity(self) -> dict[str, Any]:
        """Without the time limits, which decide what is given up, not what is made."""
        limits: dict[str, bool | set[str]] = {"time_limit": True, "geometry": {"time_limit"}, "engine": {"time_limit"}}
        settings = self.settings.model_dump(mode="json", exclude=limits)
        digest = hashlib.sha256("\n".join(self.molecules).encode()).hexdigest()
        return settings | {"n_molecules": len(self.molecules), "molecules": digest}


def generate(
    directory: Path,
    smiles: Sequence[str],
    config: GenerateConfig,
    workers: Callable[[], "Client"],
    listener: Listener | None = None,
) -> Counts:
    """Write structures of all molecules to the directory. Call it again to resume.

    ``equilibrium.extxyz`` and ``nonequilibrium.extxyz`` hold them in the order of the SMILES, ``failures.json`` what
    failed.

    Arguments:
        directory: of the data set; one process at a time.
        smiles: of the molecules.
        config: what is made of each.
        workers: gives a client of them. It is called if the directory is free and a molecule is missing.
        listener: progress callbacks; ``None`` is silent.
    """
    require("making molecules from SMILES", "rdkit")
    listener = listener or Listener()
    folder = RunFolder(directory, "generate.json", "choose another directory")
    with folder.lock():
        run = folder.claim(GenerateFile(settings=config, molecules=tuple(smiles)))
        failures = _read_failures(directory)
        missing = [index for index, text in enumerate(smiles) if not _is_done(directory, index, text, failures)]
        done = len(smiles) - len(missing)
        listener.advance(done, len(smiles))
        task, pieces = partial(make_structures, config=config), [smiles[index] for index in missing]
        for outcome in run_tasks(task, pieces, workers(), time_limit=config.time_limit) if pieces else ():
            product = _product(outcome, pieces[outcome.index])
            failures = [old for old in failures if old.smiles != pieces[outcome.index]] + list(product.failures)
            write_json(directory / "failures.json", [asdict(failure) for failure in failures], force=True)
            if product.structures:
                _write(_molecule_file(directory, missing[outcome.index]), product.structures)
            done += 1
            listener.advance(done, len(smiles))
        counts = _gather(directory, len(smiles), failures)
        folder.write(run.model_copy(update={"settings": config, "counts": counts}))
        return counts


def _product(outcome: Outcome[Product], smiles: str) -> Product:
    if outcome.value is not None:
        return outcome.value
    failure = Failure(smiles=smiles, conformer=None, stage="worker", reason=outcome.error or "")
    return Product(structures=(), failures=(failure,))


def _is_done(directory: Path, index: int, smiles: str, failures: Sequence[Failure]) -> bool:
    """There is a file, or there will never be one. Failures are written first, so a file's are always known."""
    hopeless = any(failure.smiles == smiles and failure.conformer is None for failure in failures)
    return hopeless or _molecule_file(directory, index).exists()


def _gather(directory: Path, n_molecules: int, failures: Sequence[Failure]) -> Counts:
    write_json(directory / "failures.json", [asdict(failure) for failure in failures], force=True)
    files = (_molecule_file(directory, index) for index in range(n_molecules))
    structures = [atoms for path in files if path.exists() for atoms in ase.io.read(path, ":")]
    counts = {"molecules": len({atoms.info["smiles"] for atoms in structures})}
    for kind in (EQUILIBRIUM, NONEQUILIBRIUM):
        chosen = [atoms for atoms in structures if atoms.info["kind"] == kind]
        counts[kind] = len(chosen)
        if chosen:
            _write(directory / f"{kind}.extxyz", chosen)
    counts["failures"] = len(failures)
    return counts


def _write(path: Path, structures: Sequence[Atoms]) -> None:
    with atomic_write(path, force=True) as temporary:
        ase.io.write(temporary, structures, format="extxyz")


def _molecule_file(directory: Path, index: int) -> Path:
    return directory / "molecules" / f"{index:05d}.extxyz"


def _read_failures(directory: Path) -> list[Failure]:
    path = directory / "failures.json"
    return [Failure(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
