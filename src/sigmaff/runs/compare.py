"""Compare methods: the same structures, backbone, training loop and measures for all, one directory each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sigmaff.errors import ConfigError
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.files import atomic_write, write_json
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.models.record import RunRecord
from sigmaff.progress import Listener
from sigmaff.report import write_table_page
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data
from sigmaff.runs.jobs import JobFolder, run_jobs
from sigmaff.runs.methods import METHODS, ensemble_members
from sigmaff.runs.model_jobs import method_jobs
from sigmaff.timing import median_seconds
from sigmaff.units import KCAL_PER_MOL

TIMED_STRUCTURES = 8
ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The record of a method's model, or the reason why there is none."""

    method: str
    title: str
    record: RunRecord
    n_parameters: int = 0
    training_seconds: float = 0.0  # including backbones of other methods
    fit_seconds: float = 0.0
    milliseconds: dict[str, float]  # per structure of a batch; none: with σ of energies, auto: with every σ
    failed: str | None = None


def compare(config: RunConfig, names: Iterable[str], listener: Listener, *, force: bool = False) -> list[MethodResult]:
    """Train or fit methods, each in its own directory within ``config.output``. Finished methods are kept.

    Methods share one backbone where they can; it is the first member of the ensemble. A method that fails is reported,
    and the others continue.

    Arguments:
        names: of methods, or ``all``.
        force: train the named methods again.
    """
    chosen = _in_order(set(names))
    assert METHODS["ensemble"].ensemble is not None
    methods = METHODS | ensemble_members(METHODS["ensemble"].ensemble.size)
    jobs = method_jobs(methods, chosen, lambda method: method.settings(config), force=chosen if force else ())
    folder = JobFolder(config.output)
    results = run_jobs(jobs, folder, listener)
    models = {name: load(folder.model(name)) for name in chosen if results[name].status == "done"}
    listener.stage("timing")
    milliseconds = _milliseconds(models, config, listener)
    return [
        _result(name, models[name], milliseconds[name], folder)
        if name in models
        else MethodResult(
            method=name, title=METHODS[name].title, record=RunRecord(), milliseconds={}, failed=results[name].reason
        )
        for name in chosen
    ]


def _in_order(names: set[str]) -> list[str]:
    """The named methods in the order of the registry."""
    if unknown := sorted(names - METHODS.keys() - {"all"}):
        raise ConfigError(f"there is no method {unknown[0]!r}; known: all, {', '.join(METHODS)}")
    return [name for name in METHODS if "all" in names or name in names]


def _milliseconds(models: Mapping[str, Model], config: RunConfig, listener: Listener) -> dict[str, dict[str, float]]:
    """Medians over rounds, per structure of one batch of validation structures."""
    structures = load_data(config).validation.structures.subset(range(TIMED_STRUCTURES))
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, model in models.items():
        graph, _ = dataset_for(model, structures).batch(range(len(structures)))
        calls[name, "none"] = partial(model.predict, graph, forces_std="none")
        calls[name, "auto"] = partial(model.predict, graph, forces_std="auto")
    seconds = median_seconds(calls, ROUNDS, listener.advance)
    return {name: {mode: 1e3 * seconds[name, mode] / len(structures) for mode in ("none", "auto")} for name in models}


def _result(name: str, model: Model, milliseconds: dict[str, float], folder: JobFolder) -> MethodResult:
    record = model.record
    parts = [record, *record.members]
    if METHODS[name].takes_backbone:
        parts.append(load(folder.model("backbone")).record)
    trainings = [training for part in parts for training in (part.training, part.head_training) if training is not None]
    return MethodResult(
        method=name,
        title=METHODS[name].title,
        record=record,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        training_seconds=sum(training.seconds for training in trainings),
        fit_seconds=0.0 if record.fit is None else record.fit.seconds,
        milliseconds=milliseconds,
    )


Value = Callable[[MethodResult], float | None]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure of all methods: of energies and of forces, or of the whole model."""

    label: str
    values: tuple[Value, ...]
    digits: int = 3

    def text(self, result: MethodResult) -> str:
        numbers = [None if result.failed is not None else value(result) for value in self.values]
        if all(number is None for number in numbers):
            return "–"
        return " / ".join("–" if number is None else f"{number:.{self.digits}f}" for number in numbers)


def _metrics(key: str, scale: float = 1.0) -> tuple[Value, ...]:
    """Of energies, and of forces."""

    def value(result: MethodResult, quantity: str) -> float | None:
        number = (result.record.metrics or {}).get(f"{quantity}_{key}")
        return scale * number if isinstance(number, float | int) else None

    return partial(value, quantity="energy"), partial(value, quantity="forces")


def _auroc(name: str) -> tuple[Value, ...]:
    """By energy σ per atom, and by force σ."""
    return (
        lambda result: result.record.ood.get(name, {}).get("energy_auroc"),
        lambda result: result.record.ood.get(name, {}).get("forces_auroc"),
    )


def columns(results: Sequence[MethodResult]) -> list[Column]:
    """Return all measures, energies / forces, in kcal/mol and Å as in the literature."""
    sets = dict.fromkeys(name for result in results for name in result.record.ood)
    return [
        Column(label="MAE (kcal/mol, /Å)", values=_metrics("mae", 1.0 / KCAL_PER_MOL), digits=4),
        Column(label="calibration, raw", values=_metrics("calibration_raw")),
        Column(label="calibration", values=_metrics("calibration")),
        Column(label="NLL (eV, eV/Å)", values=_metrics("nll"), digits=2),
        Column(label="CRPS (kcal/mol, /Å)", values=_metrics("crps", 1.0 / KCAL_PER_MOL), digits=4),
        Column(label="Spearman", values=_metrics("spearman")),
        *(Column(label=f"AUROC {name}", values=_auroc(name), digits=4) for name in sets),
        Column(
            label="ms: with energy σ / every σ",
            values=(lambda result: result.milliseconds.get("none"), lambda result: result.milliseconds.get("auto")),
            digits=2,
        ),
        Column(label="training (min)", values=(lambda result: result.training_seconds / 60,), digits=1),
        Column(label="fit (s)", values=(lambda result: result.fit_seconds,), digits=0),
        Column(label="parameters", values=(lambda result: result.n_parameters,), digits=0),
    ]


def write_comparison(directory: Path, results: Sequence[MethodResult]) -> list[Path]:
    """Write ``comparison.json``, ``.md`` and ``.html``; replace existing files."""
    paths = [directory / f"comparison.{ending}" for ending in ("json", "md", "html")]
    measures = columns(results)
    rows = [
        ["method", *(column.label for column in measures)],
        *([result.method, *(column.text(result) for column in measures)] for result in results),
    ]
    failures = {result.method: result.failed for result in results if result.failed is not None}
    write_json(paths[0], [_content(result) for result in results], force=True)
    with atomic_write(paths[1], force=True) as temporary:
        temporary.write_text(_markdown(rows, failures), encoding="utf-8")
    write_table_page(paths[2], "Methods compared", rows, notes=failures, force=True)
    return paths


def _content(result: MethodResult) -> dict[str, Any]:
    """Without the split, which every model file contains."""
    return asdict(result) | {"record": result.record.model_dump(mode="json", exclude={"split"})}


def _markdown(rows: list[list[str]], failures: Mapping[str, str]) -> str:
    header, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
    lines += [f"\n{method}: {reason}" for method, reason in failures.items()]
    return "\n".join(lines) + "\n"
