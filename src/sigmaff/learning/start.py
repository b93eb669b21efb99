"""The structures that a campaign labels first."""

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from sigmaff.data import DataSource, ElectronicState, read_structures, require_state
from sigmaff.data.check.gate import require_sound
from sigmaff.data.electrons import NOT_STATED
from sigmaff.errors import ConfigError, DataError
from sigmaff.learning.config import CampaignConfig, StartConfig
from sigmaff.progress import Listener
from sigmaff.simulation import bare_copy


def start_structures(config: StartConfig, rng: np.random.Generator, state: ElectronicState = NOT_STATED) -> list[Atoms]:
    """``config.n_labels`` structures in random order; with their labels in a calculator if ``config.use_labels``.

    A structure that states another charge or spin than ``state``, that of the engine, is an error.
    """
    frames = _labelled(config, rng, state) if config.use_labels else _unlabelled(config, rng, state)
    return [frames[index] for index in rng.permutation(len(frames))]


def check_sources(config: CampaignConfig, listener: Listener | None) -> None:
    """Check the files that a campaign starts from and is tested on, before the first label is computed."""
    if (source := config.start.source) is not None:
        require_sound(read_structures(source if config.start.use_labels else _without_labels(source)), listener)
    if config.test is not None:
        require_sound(read_structures(config.test), listener)


def _without_labels(source: DataSource) -> DataSource:
    return source.model_copy(update={"labels": ()})


def _unlabelled(config: StartConfig, rng: np.random.Generator, state: ElectronicState) -> list[Atoms]:
    known = _known(config, state)
    if len(known) >= config.n_labels:
        drawn = np.sort(rng.permutation(len(known))[: config.n_labels])
        return [_from(known[index], "start") for index in drawn]
    copies = [_from(known[index % len(known)], "displaced") for index in range(config.n_labels - len(known))]
    for copy in copies:
        copy.positions += rng.normal(0.0, config.displacement, copy.positions.shape)
    return [_from(atoms, "start") for atoms in known] + copies


def _labelled(config: StartConfig, rng: np.random.Generator, state: ElectronicState) -> list[Atoms]:
    assert config.source is not None
    structures = read_structures(config.source)
    require_state(structures, state, of="the engine")
    if structures.energy is None or structures.forces is None:
        raise DataError(f"{config.source.path}: start.use_labels needs energies and forces of all structures")
    if len(structures) < config.n_labels:
        raise ConfigError(
            f"start.n_labels is {config.n_labels}, but {config.source.path} has {len(structures)} labelled structures"
        )
    drawn = np.sort(rng.permutation(len(structures))[: config.n_labels])
    frames = [_from(structures.structures[index], "given") for index in drawn]
    for index, atoms in zip(drawn, frames, strict=True):
        atoms.calc = SinglePointCalculator(atoms, energy=structures.energy[index], forces=structures.forces[index])
    return frames


def _known(config: StartConfig, state: ElectronicState) -> list[Atoms]:
    if config.source is not None:
        structures = read_structures(_without_labels(config.source))
        require_state(structures, state, of="the engine")
        return list(structures.structures)
    found = []
    for name in config.molecules:
        try:
            found.append(molecule(name))
        except (KeyError, NotImplementedError):
            raise ConfigError(f"start.molecules: ASE knows no molecule {name!r}; give a file of structures") from None
    return found


def _from(atoms: Atoms, origin: str) -> Atoms:
    copy = bare_copy(atoms)
    copy.info["origin"] = origin
    return copy
