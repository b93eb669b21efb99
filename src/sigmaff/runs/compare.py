"""Compare methods: the same structures, backbone, training loop and measures for all, one directory each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from sigmaff.backbones import AdoptConfig
from sigmaff.data import LabelledStructures
from sigmaff.errors import ConfigError, SigmaffError
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.files import atomic_write, folder_lock, write_json
from sigmaff.models import Model
from sigmaff.models.file import load
from sigmaff.models.record import Figures, RunRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data, settled
from sigmaff.runs.differences import NOTE, Differences, difference_rows, method_differences, tested
from sigmaff.runs.jobs import JobFolder, run_jobs
from sigmaff.runs.methods import METHODS, methods_of
from sigmaff.runs.model_jobs import method_jobs
from sigmaff.timing import median_seconds

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
    differences: Differences = field(default_factory=dict)


def compare(
    config: RunConfig, names: Iterable[str], listener: Listener, *, force: bool = False, skip_checks: bool = False
) -> list[MethodResult]:
    """Train or fit methods, each in its own directory within ``config.output``. Finished methods are kept.

    Methods share one backbone where they can; it is the first member of the ensemble. A method that fails is reported,
    and the others continue. An adopted network is not trained: methods that would train are left out.

    Arguments:
        names: of methods, or ``all``.
        force: train the named methods again.
        skip_checks: do not check the structures first.
    """
    with folder_lock(config.output, wait=False):
        return _compare(config, names, listener, force=force, skip_checks=skip_checks)


def compare_and_write(
    config: RunConfig, names: Iterable[str], listener: Listener, *, force: bool = False, skip_checks: bool = False
) -> tuple[list[MethodResult], list[Path]]:
    """The same, and the paths of its tables in ``config.output``. Raise ``SigmaffError`` if no method has a result."""
    with folder_lock(config.output, wait=False):
        results = _compare(config, names, listener, force=force, skip_checks=skip_checks)
        if all(result.failed is not None for result in results):
            raise SigmaffError(f"{config.output}: no method has a result, so no comparison is written; see above why")
        return results, write_comparison(config.output, results)


def _compare(
    config: RunConfig, names: Iterable[str], listener: Listener, *, force: bool, skip_checks: bool
) -> list[MethodResult]:
    """By the one process that is at work in the folder."""
    chosen = _in_order(set(names))
    config = settled(config)
    reasons = _left_out(config, chosen, listener)
    made = [name for name in chosen if name not in reasons]
    structures = load_data(config, listener, skip_checks=skip_checks).validation.structures
    jobs = method_jobs(methods_of(config), made, lambda method: method.settings(config), force=made if force else ())
    folder = JobFolder(config.output)
    results = run_jobs(jobs, folder, listener)
    models = {name: load(folder.model(name)) for name in made if results[name].status == "done"}
    listener.stage("timing")
    timed = structures.subset(range(min(TIMED_STRUCTURES, len(structures))))
    milliseconds = _milliseconds(models, timed, listener)
    reasons |= {name: results[name].reason for name in made}
    compared = [_result(name, folder, models.get(name), milliseconds.get(name, {}), reasons[name]) for name in chosen]
    return _with_differences(compared, models, folder, config, listener)


def _with_differences(
    results: list[MethodResult], models: Mapping[str, Model], folder: JobFolder, config: RunConfig, listener: Listener
) -> list[MethodResult]:
    """Methods that were tested on the same structures, with their differences."""
    tests = {}
    for name, model in models.items():
        listener.stage(f"testing {name} beside the others")
        if model.record.split == next(iter(models.values())).record.split:
            tests[name] = tested(model, folder.model(name), config.ood, listener)
    found = method_differences(tests)
    return [replace(result, differences=found.get(result.method, {})) for result in results]


def _left_out(config: RunConfig, names: Sequence[str], listener: Listener) -> dict[str, str | None]:
    """Methods that cannot be compared on an adopted network, with the reason."""
    if not isinstance(config.model.backbone, AdoptConfig):
        return {}
    trained = {name: METHODS[name].trains for name in names}
    found = {name: f"left out: {what}, and an adopted network is not" for name, what in trained.items() if what}
    if found:
        listener.tell(f"left out, as an adopted network is not trained: {', '.join(found)}")
    return dict(found)


def _in_order(names: set[str]) -> list[str]:
    """The named methods in the order of the registry."""
    if unknown := sorted(names - METHODS.keys() - {"all"}):
        raise ConfigError(f"there is no method {unknown[0]!r}; known: all, {', '.join(METHODS)}")
    return [name for name in METHODS if "all" in names or name in names]


def _milliseconds(
    models: Mapping[str, Model], structures: LabelledStructures, listener: Listener
) -> dict[str, dict[str, float]]:
    """Medians over rounds, per structure of one batch."""
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, model in models.items():
        graph, _ = dataset_for(model, structures).batch(range(len(structures)))
        calls[name, "none"] = partial(model.predict, graph, forces_std="none")
        calls[name, "auto"] = partial(model.predict, graph, forces_std="auto")
    seconds = median_seconds(calls, ROUNDS, listener.advance)
    return {name: {mode: 1e3 * seconds[name, mode] / len(structures) for mode in ("none", "auto")} for name in models}


def _result(
    name: str, folder: JobFolder, model: Model | None, milliseconds: dict[str, float], failed: str | None
) -> MethodResult:
    title = METHODS[name].title
    if model is None:
        return MethodResult(method=name, title=title, record=RunRecord(), milliseconds={}, failed=failed)
    record = model.record
    parts = [record, *record.members]
    if METHODS[name].takes_backbone:
        parts.append(load(folder.model("backbone")).record)
    trainings = [training for part in parts for training in (part.training, part.head_training) if training is not None]
    return MethodResult(
        method=name,
        title=title,
        record=record,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        training_seconds=sum(training.seconds for training in trainings),
        fit_seconds=0.0 if record.fit is None else record.fit.seconds,
        milliseconds=milliseconds,
    )


RAW = "calibration, raw"
RAW_NOTE = (
    "¹ before calibration, but the fit of this method scales σ to errors of the validation structures, which the other "
    "methods do not see: compare methods after calibration."
)
METRICS: tuple[tuple[str, str, int], ...] = (  # label, measure, digits
    ("MAE (eV, eV/Å)", "mae", 5),
    (RAW, "calibration_raw", 3),
    ("calibration", "calibration", 3),
    ("NLL (eV, eV/Å)", "nll", 2),
    ("CRPS (eV, eV/Å)", "crps", 5),
    ("Spearman", "spearman", 3),
)
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # heading, explanation, beginnings of labels
    (
        "Errors and error bars",
        "Energies / forces of the test structures. Calibration: distance of reached from promised coverage, 0 is "
        "perfect. NLL and CRPS: lower is better. Spearman: how well σ ranks errors, 1 is perfect.",
        ("MAE", "calibration", "NLL", "CRPS", "Spearman"),
    ),
    (
        "Structures of another kind",
        "AUROC by energy σ per atom / by force σ: the chance that a new structure has a larger σ than a familiar one, "
        "0.5 is chance.",
        ("AUROC",),
    ),
    (
        "Cost",
        "Milliseconds for a structure of a batch. Training includes the shared backbone.",
        ("ms", "training", "fit", "parameters"),
    ),
)


def comparison_rows(results: Sequence[MethodResult]) -> list[dict[str, str]]:
    """A row for each method, by label: energies / forces, in eV and Å."""
    sets = dict.fromkeys(name for result in results for name in result.record.ood)
    return [_row(result, sets) for result in results]


def comparison_differences(results: Sequence[MethodResult]) -> list[list[str]]:
    """The header and the rows of the table of differences; empty if nothing can be compared."""
    sets = dict.fromkeys(name for result in results for name in result.record.ood)
    return difference_rows({result.method: result.differences for result in results}, sets)


def _row(result: MethodResult, sets: Iterable[str]) -> dict[str, str]:
    def text(digits: int, *numbers: object) -> str:
        shown = [f"{number:.{digits}f}" if isinstance(number, float | int) else "–" for number in numbers]
        return "–" if result.failed is not None or set(shown) == {"–"} else " / ".join(shown)

    def pair(figures: Figures, measure: str, digits: int) -> str:
        return text(digits, *(figures.get(f"{quantity}_{measure}") for quantity in ("energy", "forces")))

    metrics, ood, milliseconds = result.record.metrics or {}, result.record.ood, result.milliseconds
    measured = {label: pair(metrics, measure, digits) for label, measure, digits in METRICS}
    if METHODS[result.method].is_scaled and measured[RAW] != "–":
        measured[RAW] += " ¹"
    return {
        "method": result.method,
        **measured,
        **{f"AUROC {name}": pair(ood.get(name, {}), "auroc", 4) for name in sets},
        "ms: with energy σ / every σ": text(2, milliseconds.get("none"), milliseconds.get("auto")),
        "training (min)": text(1, result.training_seconds / 60),
        "fit (s)": text(0, result.fit_seconds),
        "parameters": text(0, result.n_parameters),
    }


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the comparison that fits on a page: a table under a heading."""

    title: str
    lead: str
    rows: list[list[str]]  # the first is the header


def comparison_sections(results: Sequence[MethodResult]) -> list[Section]:
    """The comparison in tables by topic, and its differences."""
    rows, sections = comparison_rows(results), []
    for title, lead, beginnings in SECTIONS:
        labels = ["method", *(label for label in rows[0] if label.startswith(beginnings))]
        if len(labels) > 1:
            sections.append(Section(title=title, lead=lead, rows=[labels, *([row[x] for x in labels] for row in rows)]))
    sections += _difference_sections(comparison_differences(results))
    return sections


def _difference_sections(rows: list[list[str]]) -> list[Section]:
    """Differences of errors and error bars, and those of detection."""
    parts = (("Differences", False, NOTE), ("Differences in detection", True, "As above, of the AUROCs."))
    sections = []
    for title, is_detection, lead in parts:
        columns = [i for i, label in enumerate(rows[0] if rows else []) if label.startswith("AUROC") == is_detection]
        columns = list(dict.fromkeys([0, 1, *columns]))
        if rows and len(columns) > 2:
            chosen = [[row[i] for i in columns] for row in rows]
            kept = [row for row in chosen if set(row[2:]) != {"–"}]
            sections.append(Section(title=f"{title} [95 % interval]", lead=lead, rows=kept))
    return sections


def write_comparison(directory: Path, results: Sequence[MethodResult]) -> list[Path]:
    """Write ``comparison.json``, ``.md`` and ``.html``; replace existing files."""
    paths = [directory / f"comparison.{ending}" for ending in ("json", "md", "html")]
    split = {"split"}  # every model file contains it
    contents = [asdict(r) | {"record": r.record.model_dump(mode="json", exclude=split)} for r in results]
    write_json(paths[0], contents, force=True)
    sections, notes = comparison_sections(results), _notes(results)
    with atomic_write(paths[1], force=True) as temporary:
        temporary.write_text(_markdown(sections, notes), encoding="utf-8")
    from sigmaff.report import write_table_page

    write_table_page(paths[2], "Methods compared", sections, notes=notes, force=True)
    return paths


def _notes(results: Sequence[MethodResult]) -> list[str]:
    """What a reader of the tables must know."""
    is_scaled = any(result.failed is None and METHODS[result.method].is_scaled for result in results)
    notes = [RAW_NOTE] if is_scaled else []
    return notes + [f"{result.method}: {result.failed}" for result in results if result.failed is not None]


def _markdown(sections: list[Section], notes: list[str]) -> str:
    blocks = []
    for section in sections:
        header, *body = section.rows
        lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
        blocks += [f"## {section.title}", section.lead, "\n".join(lines)]
    return "\n\n".join([*blocks, *notes]) + "\n"
