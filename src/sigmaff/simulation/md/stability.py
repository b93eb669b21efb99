"""The stability test: short runs at constant energy from structures that the model has not seen.

One run of each start tells three things: when a σ leaves its range, when something breaks, and whether the total energy
is conserved. A σ above its limit does not end a run. Bonds are looked at in the frames of the trajectory.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ase.io
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols, covalent_radii
from ase.neighborlist import neighbor_list
from pydantic import ConfigDict, Field

from sigmaff.config import Settings
from sigmaff.data import LabelledStructures
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation.stability import Stability, StabilityRun
from sigmaff.inputs import Structures, settings_of, spaced, structures_of
from sigmaff.models.prediction import ForceStdMethod, Predictor
from sigmaff.progress import Listener
from sigmaff.simulation.limits import FACTOR, NAMES, Limits, range_limits
from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.connectivity import APART, BONDED
from sigmaff.simulation.md.integrator import temperature_of
from sigmaff.simulation.md.output import LOG
from sigmaff.simulation.md.run import MDResult, run_md, start_problem

TEMPERATURE_KEYS = ("temperature", "temperature_K", "Temperature", "T")
"""Names of the temperature in ``atoms.info``."""
DEFAULT_TEMPERATURE = 300.0
BREAKS = {
    "overlap": "atoms overlap",
    "not finite": "not finite",
    "temperature": "overheats",
    "isolated": "an atom leaves",
}
"""Endings of runs that could not go on."""
MIN_ROWS = 5
"""Lines of the log from which on there is a drift."""


class StabilityConfig(Settings):
    """Settings of a stability test. K, ps, fs."""

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: float | None = Field(
        default=None,
        gt=0,
        description="K, of the velocities; null: as in the data (velocities, or the key temperature), else 300",
    )
    picoseconds: float = Field(default=2.0, gt=0, description="length of each run")
    starts: int = Field(default=5, ge=1, description="runs, from evenly spaced structures of the data")
    timestep: float = Field(default=0.5, gt=0, description="fs")
    every: int = Field(default=10, ge=1, description="steps between looks at σ and at bonds")
    forces_std: ForceStdMethod = Field(default="auto", description="how force σ is computed")
    seed: int = Field(default=0, ge=0, description="seed of velocities")


def stability(
    model: Predictor,
    structures: Structures,
    config: StabilityConfig | Mapping[str, Any] | Path | str | None = None,
    *,
    directory: Path | str,
    listener: Listener | None = None,
) -> Stability:
    """Run short dynamics at constant energy from held-out structures: how long is σ small, and the structure whole?

    Arguments:
        model: a loaded model.
        structures: unseen by the model; labels are not needed.
        config: ``temperature`` (K), ``picoseconds``, ``starts``, ``timestep`` (fs), ...
        directory: of the runs, as of ``sf.run_md``; call it again with the same one to resume.
        listener: callbacks for progress; the default is silent.

    Returns for each run the times (fs) until σ leaves its range on the calibration structures, until bonds change and
    until it breaks, and the drift of the total energy (eV/atom/ps).

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> found = sf.stability(model, "test.extxyz", {"picoseconds": 0.01, "starts": 2}, directory="stability")
        >>> print(found.headline)
    """
    settings, listener = settings_of(StabilityConfig, {} if config is None else config), listener or Listener()
    given = structures_of(structures, labels=())
    temperature = _temperature(given, settings.temperature)
    if settings.temperature is None:
        listener.tell(f"stability test at {temperature.value:.0f} K: {temperature.origin}")
    limits = Limits()
    try:
        limits = range_limits(model)
    except ConfigError as error:
        listener.warn(f"the stability test does not watch σ: {error}")
    dynamics = _dynamics(settings, temperature.value, limits)
    chosen = _starts(given, model, dynamics, settings.starts)
    listener.stage("stability test")
    result = run_md(model, chosen.structures, dynamics, Path(directory), listener)
    log = _log(result)
    return Stability(
        name=Path(given.source).stem,
        temperature=temperature.value,
        temperature_from=temperature.origin,
        length=dynamics.steps * dynamics.timestep,
        timestep=dynamics.timestep,
        limits=_limits_in_words(limits),
        runs=[_found(result, number, chosen, log[number], dynamics) for number in range(len(chosen))],
    )


class _Temperature(NamedTuple):
    value: float  # K
    origin: str


def _temperature(structures: LabelledStructures, given: float | None) -> _Temperature:
    if given is not None:
        return _Temperature(given, "as given")
    moving = [atoms for atoms in structures.structures if len(atoms) > 1 and atoms.get_momenta().any()]
    if moving:
        value = float(np.mean([temperature_of(atoms) for atoms in moving]))
        return _Temperature(value, f"mean of the velocities of {len(moving)} structures")
    for key in TEMPERATURE_KEYS:
        values = [atoms.info[key] for atoms in structures.structures if key in atoms.info]
        known = [float(value) for value in values if isinstance(value, int | float | np.number) and value > 0]
        if known:
            return _Temperature(float(np.mean(known)), f"mean of {key} of {len(known)} structures")
    text = "the data do not say at which temperature they were made; --temperature (temperature) sets it"
    return _Temperature(DEFAULT_TEMPERATURE, text)


def _dynamics(settings: StabilityConfig, temperature: float, limits: Limits) -> MDConfig:
    if settings.forces_std == "none":
        limits = Limits(energy=limits.energy)
    return MDConfig(
        ensemble="nve",
        temperature=(temperature,),
        timestep=settings.timestep,
        steps=max(1, round(1000 * settings.picoseconds / settings.timestep)),
        seed=settings.seed,
        forces_std=settings.forces_std,
        check_every=settings.every,
        drift_every=settings.every,
        every=settings.every,
        stop_above=limits.forces,
        stop_above_energy=limits.energy or "off",
        stop_above_atom=limits.atom or "off",
        on_crossing="continue" if any(vars(limits).values()) else "stop",
    )


def _starts(structures: LabelledStructures, model: Predictor, config: MDConfig, n: int) -> LabelledStructures:
    """Evenly spaced ones of those that can move."""
    problems = [start_problem(atoms, model, config) for atoms in structures.structures]
    able = [index for index, problem in enumerate(problems) if problem is None]
    if not able:
        raise DataError(f"{structures.source}: no run can start from these structures: {problems[0]}")
    return spaced(structures.subset(able), n)


def _limits_in_words(limits: Limits) -> str:
    words = [f"{name} {limit:.3g} {unit}" for of, (name, unit) in NAMES.items() if (limit := getattr(limits, of))]
    return f"{', '.join(words)}: {FACTOR:g} times the largest of the calibration structures" if words else ""


def _log(result: MDResult) -> list[np.ndarray]:
    """Of each run: time (fs), total energy (eV) and temperature (K), a row each."""
    rows: list[list[list[float]]] = [[] for _ in result.records]
    with (result.directory / LOG).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values = [float(row[name]) for name in ("time_fs", "total_energy", "temperature")]
            rows[int(row["replica"])].append(values)
    return [np.array(values).reshape(-1, 3) for values in rows]


def _found(
    result: MDResult, number: int, starts: LabelledStructures, log: np.ndarray, config: MDConfig
) -> StabilityRun:
    record, atoms = result.records[number], starts.structures[number]
    assert record.ended_at is not None
    length = record.ended_at * config.timestep
    first = next((frame for frame in result.crossings if frame.info["replica"] == number), None)
    changed = _first_change(atoms, result.trajectory(number))
    is_enough = len(log) >= MIN_ROWS
    return StabilityRun(
        frame=int(starts.frame_index[number]),
        length=length,
        crossed_at=None if first is None else float(first.info["time_fs"]),
        crossed="" if first is None else NAMES[first.info["crossed"]][0],
        bonds_at=None if changed is None else changed[0],
        bonds="" if changed is None else changed[1],
        broke_at=length if record.ending in BREAKS else None,
        broke=BREAKS.get(record.ending or "", ""),
        drift=1000 * float(np.polyfit(log[:, 0], log[:, 1], 1)[0]) / len(atoms) if is_enough else None,
        temperature=float(log[:, 2].mean()) if is_enough else None,
    )


def _first_change(start: Atoms, trajectory: Path) -> tuple[float, str] | None:
    """Time (fs) and name of the first bond that is broken or new."""
    bonded, near = _pairs(start, BONDED), _pairs(start, APART)
    for frame in ase.io.iread(trajectory, ":", format="extxyz"):
        lost, new = bonded - _pairs(frame, APART), _pairs(frame, BONDED) - near
        for pairs, word in ((lost, "broken"), (new, "new")):
            if pairs:
                first, second = min(pairs)[:2]
                symbols = [f"{chemical_symbols[start.numbers[index]]}{index}" for index in (first, second)]
                return float(frame.info["time_fs"]), f"{'–'.join(symbols)} {word}"
    return None


def _pairs(atoms: Atoms, factor: float) -> set[tuple[int, ...]]:
    """Atoms closer than so many sums of covalent radii, with the cell of the second, each pair once."""
    radii = factor * covalent_radii[atoms.numbers]
    first, second, cell = neighbor_list("ijS", atoms, radii)
    found = zip(first.tolist(), second.tolist(), cell.tolist(), strict=True)
    return {(i, j, *shift) for i, j, shift in found if (i, j) <= (j, i)}
