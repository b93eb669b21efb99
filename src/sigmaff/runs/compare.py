"""Methods side by side: the same structures, backbone, loop and measures for all, one directory each."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.models.record import RunRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data
from sigmaff.runs.methods import METHODS
from sigmaff.runs.run import RunResult, run, run_with
from sigmaff.runs.stages import joining, sampling

TIMED_STRUCTURES = 8
ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method of a comparison: the record of its model, or why there is none."""

    method: str
    title: str
    record: RunRecord
    n_parameters: int = 0
    training_seconds: float = 0.0  # of all that it needs, backbones of other methods included
    fit_seconds: float = 0.0
    milliseconds: dict[str, float]  # for each structure of a batch: with σ of energies, with every σ
    failed: str | None = None


def chosen_methods(names: Sequence[str]) -> list[str]:
    """Names of methods, or ``all``, in the order of the registry."""
    if unknown := sorted(set(names) - METHODS.keys() - {"all"}):
        raise ConfigError(f"there is no method {unknown[0]!r}; known: all, {', '.join(METHODS)}")
    return [name for name in METHODS if "all" in names or name in names]


def compare(config: RunConfig, names: Sequence[str], listener: Listener, *, force: bool = False) -> list[Cell]:
    """Train or fit every method in ``config.output``, each in a directory of its own; finished ones are kept.

    One backbone serves all that can share it, and is the first member of the ensemble. A method that fails is told of,
    and the others go on.
    """
    chosen = chosen_methods(names)
    paths: dict[str, Path | str] = {}
    for name in chosen:
        listener.stage(f"{name}: {METHODS[name].title}")
        try:
            paths[name] = _run_method(name, config, listener, force=force)
        except SigmaffError as error:
            listener.warn(f"{name} has no result: {error}")
            paths[name] = str(error)
    models = {name: load(path) for name, path in paths.items() if isinstance(path, Path)}
    listener.stage("timing")
    milliseconds = _milliseconds(models, config, listener)
    return [_cell(name, paths[name], models, milliseconds, config) for name in chosen]


def _run_method(name: str, config: RunConfig, listener: Listener, *, force: bool) -> Path:
    """The model file of a method."""
    method = METHODS[name]
    settings = method.settings(config).model_copy(update={"output": config.output / name})
    if method.sampled_from is not None:
        source = _run_method(method.sampled_from, config, listener, force=False)
        return _finished(run_with(sampling(source), settings, listener, force=force))
    if method.ensemble is not None:
        members = _members(method.ensemble.size, config, listener)
        return _finished(run_with(joining(members), settings, listener, force=force))
    if method.takes_backbone:
        backbone = _run_method("backbone", config, listener, force=False)
        settings = settings.model_copy(update={"backbone_from": backbone})
    return _finished(run(settings, listener, force=force))


def _members(size: int, config: RunConfig, listener: Listener) -> list[Path]:
    """Backbones from different seeds; the first is the one that other methods use."""
    paths = [_run_method("backbone", config, listener, force=False)]
    for number in range(1, size):
        listener.stage(f"member {number + 1} of {size}")
        changes = {"output": config.output / f"member-{number}", "seed": config.seed + number, "ood": {}}
        settings = METHODS["backbone"].settings(config).model_copy(update=changes)
        paths.append(_finished(run(settings, listener)))
    return paths


def _finished(result: RunResult | None) -> Path:
    if result is None:
        raise ConfigError("methods are compared in one process: set training.devices to 1")
    return result.model_path


def _milliseconds(models: dict[str, Model], config: RunConfig, listener: Listener) -> dict[str, dict[str, float]]:
    """Medians of alternating rounds over one batch of test structures."""
    structures = load_data(config).validation.structures.subset(range(TIMED_STRUCTURES))
    graphs = {name: dataset_for(model, structures).batch(range(len(structures)))[0] for name, model in models.items()}
    seconds: dict[str, dict[str, list[float]]] = {name: {"none": [], "auto": []} for name in models}
    for round_ in range(ROUNDS + 1):
        for name, model in models.items():
            for how, found in seconds[name].items():
                began = time.perf_counter()
                model.predict(graphs[name], forces_std="none" if how == "none" else "auto")
                if round_ > 0:  # the first one warms up
                    found.append(time.perf_counter() - began)
        listener.advance(round_ + 1, ROUNDS + 1)
    return {
        name: {how: 1e3 * statistics.median(found) / len(structures) for how, found in ways.items()}
        for name, ways in seconds.items()
    }


def _cell(
    name: str,
    path: Path | str,
    models: dict[str, Model],
    milliseconds: dict[str, dict[str, float]],
    config: RunConfig,
) -> Cell:
    title = METHODS[name].title
    if isinstance(path, str):
        return Cell(method=name, title=title, record=RunRecord(), milliseconds={}, failed=path)
    record = models[name].record
    parts = (record, *record.members)
    trained = [found for part in parts for found in (part.training, part.head_training) if found is not None]
    if METHODS[name].takes_backbone:
        backbone = load(config.output / "backbone" / "model.sigmaff").record.training
        trained += [] if backbone is None else [backbone]
    return Cell(
        method=name,
        title=title,
        record=record,
        n_parameters=sum(parameter.numel() for parameter in models[name].parameters()),
        training_seconds=sum(found.seconds for found in trained),
        fit_seconds=0.0 if record.fit is None else record.fit.seconds,
        milliseconds=milliseconds[name],
    )
