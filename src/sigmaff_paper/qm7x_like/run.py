"""A directory of generated structures: one file per molecule, so that what is done stays done."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ase.io
from ase import Atoms

from sigmaff.errors import ConfigError, DataError
from sigmaff.files import atomic_write, folder_lock, holds_files, write_json
from sigmaff.progress import Listener
from sigmaff.tasks import Outcome, run_tasks
from sigmaff_paper.qm7x_like.config import GenerateConfig
from sigmaff_paper.qm7x_like.conformers import require_rdkit
from sigmaff_paper.qm7x_like.structures import EQUILIBRIUM, NONEQUILIBRIUM, Failure, Product, make_structures

if TYPE_CHECKING:
    from distributed import Client

Counts = dict[str, int]

LIMITS: dict[str, Any] = {"time_limit": True, "geometry": {"time_limit"}, "engine": {"time_limit"}}
"""Settings that decide what is given up, not what is made."""


def generate(
    directory: Path,
    smiles: Sequence[str],
    config: GenerateConfig,
    client: "Client",
    listener: Listener | None = None,
) -> Counts:
    """Structures of all molecules, or those that lack after an interruption, into the directory.

    equilibrium.extxyz and nonequilibrium.extxyz hold them in the order of the SMILES; failures.json what failed.
    """
    require_rdkit()
    listener = listener or Listener()
    with folder_lock(directory, wait=False):
        _claim(directory, smiles, config)
        failures = _read_failures(directory)
        missing = [index for index, text in enumerate(smiles) if not _is_done(directory, index, text, failures)]
        done = len(smiles) - len(missing)
        listener.advance(done, len(smiles))
        task, pieces = partial(make_structures, config=config), [smiles[index] for index in missing]
        for outcome in run_tasks(task, pieces, client, time_limit=config.time_limit):
            product = _product(outcome, pieces[outcome.index])
            failures = [old for old in failures if old.smiles != pieces[outcome.index]] + list(product.failures)
            write_json(directory / "failures.json", [asdict(failure) for failure in failures], force=True)
            if product.structures:
                _write(_molecule_file(directory, missing[outcome.index]), product.structures)
            done += 1
            listener.advance(done, len(smiles))
        return _gather(directory, smiles, config, failures)


def _product(outcome: Outcome[Product], smiles: str) -> Product:
    if outcome.value is not None:
        return outcome.value
    failure = Failure(smiles=smiles, conformer=None, stage="worker", reason=outcome.error or "")
    return Product(structures=(), failures=(failure,))


def _is_done(directory: Path, index: int, smiles: str, failures: Sequence[Failure]) -> bool:
    """There is a file, or there will never be one. Failures are written first, so a file's are always known."""
    hopeless = any(failure.smiles == smiles and failure.conformer is None for failure in failures)
    return hopeless or _molecule_file(directory, index).exists()


def _gather(directory: Path, smiles: Sequence[str], config: GenerateConfig, failures: Sequence[Failure]) -> Counts:
    write_json(directory / "failures.json", [asdict(failure) for failure in failures], force=True)
    structures = list(_read_all(directory, len(smiles)))
    counts = {"molecules": len({atoms.info["smiles"] for atoms in structures})}
    for kind in (EQUILIBRIUM, NONEQUILIBRIUM):
        chosen = [atoms for atoms in structures if atoms.info["kind"] == kind]
        counts[kind] = len(chosen)
        if chosen:
            _write(directory / f"{kind}.extxyz", chosen)
    counts["failures"] = len(failures)
    write_json(directory / "generate.json", _record(smiles, config) | {"counts": counts}, force=True)
    return counts


def _read_all(directory: Path, n_molecules: int) -> Iterator[Atoms]:
    for index in range(n_molecules):
        if (path := _molecule_file(directory, index)).exists():
            yield from ase.io.read(path, ":")


def _write(path: Path, structures: Sequence[Atoms]) -> None:
    with atomic_write(path, force=True) as temporary:
        ase.io.write(temporary, structures, format="extxyz")


def _molecule_file(directory: Path, index: int) -> Path:
    return directory / "molecules" / f"{index:05d}.extxyz"


def _read_failures(directory: Path) -> list[Failure]:
    path = directory / "failures.json"
    return [Failure(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def _record(smiles: Sequence[str], config: GenerateConfig) -> dict[str, Any]:
    packages = ("sigmaff", "ase", "numpy", "rdkit", "tblite")
    return {
        "settings": config.model_dump(mode="json"),
        "versions": {name: version(name) for name in packages},
        "molecules": list(smiles),
    }


def _claim(directory: Path, smiles: Sequence[str], config: GenerateConfig) -> None:
    """The directory is this generation's own, from now on or since before."""
    path = directory / "generate.json"
    if not path.exists():
        if holds_files(directory):
            raise ConfigError(f"{directory} is not empty, and nothing was generated there; choose another directory")
        write_json(path, _record(smiles, config))
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        settings, molecules = GenerateConfig.model_validate(before["settings"]), before["molecules"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not the record of a generation; choose another directory") from None
    changes = _changes(settings, config)
    if molecules != list(smiles):
        changes.append(f"molecules: were {len(molecules)}, now {len(smiles)} and not the same")
    if changes:
        raise ConfigError(f"{directory} was generated in another way ({'; '.join(changes)}); choose another directory")


def _changes(before: GenerateConfig, now: GenerateConfig) -> list[str]:
    old, new = map(_settings, (before, now))
    return [f"{name}: was {old[name]}, now {new[name]}" for name in old if old[name] != new[name]]


def _settings(config: GenerateConfig) -> dict[str, Any]:
    """By name; those of an engine with its name before."""
    values = config.model_dump(mode="json", exclude=LIMITS)
    for part in ("geometry", "engine"):
        values |= {f"{part}.{name}": value for name, value in values.pop(part).items()}
    return values
