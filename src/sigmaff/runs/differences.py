"""Differences between methods on the same structures, each with a 95 % interval."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sigmaff.errors import DataError
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.paired import (
    Difference,
    auroc_differences,
    detection_scores,
    differences,
    structure_columns,
)
from sigmaff.files import atomic_write, file_digest
from sigmaff.models import Model
from sigmaff.progress import Listener
from sigmaff.runs.config import OtherStructures
from sigmaff.runs.run import evaluate_other

FILE = "tested.npz"
ERRORS, TEST = "errors", "test"  # sums of errors of test structures; scores of their σ
Tested = dict[str, dict[str, FloatArray]]
"""What a test leaves of each structure: by set, and by measure."""
Differences = dict[str, dict[str, Difference]]
"""By the method that is subtracted, and by measure. An AUROC is named with its set: ``ether/energy_auroc``."""

COLUMNS: tuple[tuple[str, str, int], ...] = (  # label, measure, digits
    ("MAE (eV, eV/Å)", "mae", 5),
    ("NLL (eV, eV/Å)", "nll", 3),
    ("CRPS (eV, eV/Å)", "crps", 5),
    ("Spearman", "spearman", 3),
)
NARROW = "\N{NO-BREAK SPACE}"
"""Keeps an interval on one line."""
NOTE = (
    "The measure minus that of the first method above that has it, on the same structures, with 95 % "
    "intervals (paired bootstrap over structures; AUROC: DeLong). The intervals are for these trained models and take "
    "structures to be independent: another training, or frames close in time, scatter more."
)


def tested(model: Model, path: Path, other: Mapping[str, OtherStructures], listener: Listener) -> Tested:
    """Test a model on its own test structures and on other sets, or read what an earlier call left beside it.

    Arguments:
        path: of the model file.
        other: sets of other structures by name.

    Returns nothing if the test structures are not available.
    """
    kept, digest = path.parent / FILE, file_digest(path)
    if kept.exists() and (found := _read(kept, digest)) is not None:
        return found
    try:
        dataset = dataset_for(model, recorded_structures(model, "test"))
    except DataError as error:
        listener.warn(f"{path}: no differences to other methods, as {error}")
        return {}
    evaluation = evaluate(model, dataset, name="test", listener=listener)
    sets = {ERRORS: structure_columns(evaluation), TEST: detection_scores(evaluation)}
    for name, structures in other.items():
        foreign = evaluate_other(model, name, structures, listener)
        sets[name] = {} if foreign is None else detection_scores(foreign)
    arrays: dict[str, Any] = {f"{name}/{key}": rows for name, columns in sets.items() for key, rows in columns.items()}
    with atomic_write(kept, force=True) as temporary:
        np.savez_compressed(temporary, **arrays, digest=np.array(digest))
    return sets


def _read(path: Path, digest: str) -> Tested | None:
    """``None`` if the model has changed since."""
    sets: Tested = {}
    with np.load(path) as arrays:
        if str(arrays["digest"]) != digest:
            return None
        for name in arrays.files:
            if name != "digest":
                group, _, key = name.rpartition("/")
                sets.setdefault(group, {})[key] = arrays[name]
    return sets


def method_differences(tests: Mapping[str, Tested]) -> dict[str, Differences]:
    """For each method and measure: the difference to the first method that has the measure.

    Arguments:
        tests: by method, in the order of the table.
    """
    found: dict[str, Differences] = {name: {} for name in tests}
    for key, (reference, *others) in _methods_by_measure(tests).items():
        for name in others:
            if (difference := _difference(key, tests[reference], tests[name])) is not None:
                found[name].setdefault(reference, {})[key] = difference
    return found


def _methods_by_measure(tests: Mapping[str, Tested]) -> dict[str, list[str]]:
    """Methods that have each measure, in order."""
    having: dict[str, list[str]] = {}
    for method, sets in tests.items():
        scores = [f"{name}/{key}" for name in sets if name not in (ERRORS, TEST) for key in sets[name]]
        for key in (*sets.get(ERRORS, {}), *scores):
            having.setdefault(key, []).append(method)
    return having


def _difference(key: str, first: Tested, second: Tested) -> Difference | None:
    name, _, measure = key.rpartition("/")
    if not name:
        return differences({key: first[ERRORS][key]}, {key: second[ERRORS][key]}).get(key)
    return auroc_differences(*((sets[TEST], sets[name]) for sets in (first, second))).get(measure)


def difference_rows(found: Mapping[str, Differences], sets: Iterable[str]) -> list[list[str]]:
    """The header, and a row for each method and quantity that differ from another; empty if there is none.

    A column is a measure minus that of another method.

    Arguments:
        found: by method.
        sets: names of out-of-distribution sets.
    """
    measures = [*COLUMNS, *((f"AUROC {name}", f"{name}/auroc", 4) for name in sets)]
    references = dict.fromkeys(reference for by_reference in found.values() for reference in by_reference)
    rows: dict[tuple[str, str], dict[str, str]] = {(m, q): {} for m in found for q in ("energy", "forces")}
    labels = []
    for label, measure, digits in measures:
        for reference in references:
            labels.append(f"{label} − {reference}")
            for (method, quantity), cells in rows.items():
                difference = found[method].get(reference, {}).get(_key(quantity, measure))
                if difference is not None:
                    cells[labels[-1]] = _cell(difference, digits)
    used = [label for label in labels if any(label in cells for cells in rows.values())]
    body = [[*names, *(cells.get(label, "–") for label in used)] for names, cells in rows.items() if cells]
    return [["method", "", *used], *body] if body else []


def _key(quantity: str, measure: str) -> str:
    """``energy_mae`` of mae, ``ether/energy_auroc`` of ether/auroc."""
    name, separator, bare = measure.rpartition("/")
    return f"{name}{separator}{quantity}_{bare}"


def _cell(difference: Difference, digits: int) -> str:
    numbers: Sequence[float | None] = (difference.value, difference.low, difference.high)
    value, *limits = ("?" if number is None else f"{number:+.{digits}f}" for number in numbers)
    interval = f" [{f',{NARROW}'.join(limits)}]" if "?" not in limits else ""
    return f"{value}{interval}".replace("-", "−")
