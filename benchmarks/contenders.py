"""What competes in a table: LNK heads on one network of ``networks.py``, and the ensemble of all its seeds.

All are calibrated on the same validation structures in the same way. A head is solved on seed 0, or trained on it as
the fixed-LNK of the paper, with the training part of the split in the record of the model; its settings are chosen on
the validation part. Nothing here looks at a test set.

python benchmarks/contenders.py networks --heads "{lnk: {}, plain: {distance_aware: false}}"

prints what each fit chose, and the calibrations.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from machine import describe_machine, prepare, progress
from networks import SETS, config_of, data_of

from sigmaff.config import validated
from sigmaff.data import DataSource, GraphDataset, LabelledStructures, read_structures
from sigmaff.errors import ConfigError
from sigmaff.evaluation import metrics
from sigmaff.evaluation.calibration import CALIBRATION_METHODS
from sigmaff.evaluation.datasets import calibrate
from sigmaff.files import file_digest, write_json
from sigmaff.heads import LNKConfig
from sigmaff.models import Ensemble, Model
from sigmaff.models.file import load, load_potential
from sigmaff.models.prediction import FloatArray
from sigmaff.models.solve import solve_head
from sigmaff.progress import Listener
from sigmaff.runs.run import run

SEEDS = 5
SHARE = 0.4
"""Epochs of a head that is trained, over those of its network."""
PARTS = ("train", "validation", "test")
N_RESAMPLES = 1000
Statistic = Callable[[FloatArray], float]


def command(description: str, output: str) -> argparse.ArgumentParser:
    """The arguments that all commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="of networks.py")
    parser.add_argument(
        "--heads",
        type=heads,
        default="{lnk: {}}",
        help="names and settings of LNK heads: YAML, or a file of it; the first is the one that others differ from",
    )
    parser.add_argument("--calibration", choices=["auto", *CALIBRATION_METHODS], default="auto")
    parser.add_argument("--output", type=Path, default=Path(output), help="gets all numbers, JSON")
    return parser


def heads(text: str) -> dict[str, LNKConfig]:
    """Settings of heads by name."""
    content = yaml.safe_load(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)
    if not isinstance(content, dict) or not content:
        raise argparse.ArgumentTypeError(f"{text}: give names with settings, such as 'lnk: {{}}'")
    try:
        return {str(name): validated(LNKConfig, settings or {}, str(name)) for name, settings in content.items()}
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Contenders:
    """Calibrated models by name, and the structures that they share."""

    models: dict[str, Model]
    ensemble: str | None  # its name; None: fewer than two networks are there
    parts: dict[str, LabelledStructures]  # those of train, validation and test that are not empty
    chosen: dict[str, str]  # for people: settings of each head that the fit chose

    @property
    def first(self) -> Model:
        return next(iter(self.models.values()))

    def pairs(self) -> list[tuple[str, str]]:
        """Whose difference is told: each other head minus the first, and each head minus the ensemble."""
        names = [name for name in self.models if name != self.ensemble]
        others = [(names[0], other) for other in names[1:]]
        return others + ([] if self.ensemble is None else [(self.ensemble, name) for name in names])


def contenders(name: str, options: argparse.Namespace, listener: Listener) -> Contenders | None:
    """Of one data set; ``None`` if it has no network yet."""
    seeds = range(SEEDS)
    paths = [options.folder / name / str(seed) / "model.sigmaff" for seed in seeds]
    if not paths[0].exists():
        return None
    parts = split_parts(paths[0], data_of(name, options.folder))
    potentials = [load_potential(path) for path in paths if path.exists()]
    train, validation = (GraphDataset(own, potentials[0].cutoff) for own in (parts["train"], parts["validation"]))
    models: dict[str, Model] = {}
    chosen = {}
    for head, config in options.heads.items():
        if "solve" not in config.stages:
            models[head] = trained_head(name, head, config, options.folder, listener)
            continue
        listener.stage(f"{name}: solving {head}")
        models[head], fit = solve_head(potentials[0], config, train, validation, listener=listener)
        chosen[head] = str(fit)
    ensemble = f"{len(potentials)} networks" if len(potentials) > 1 else None
    if ensemble is not None:
        models[ensemble] = Ensemble(potentials).eval().requires_grad_(False)
    for model in models.values():
        calibrate(model, validation, options.calibration, listener)
    return Contenders(models=models, ensemble=ensemble, parts=parts, chosen=chosen)


def trained_head(name: str, head: str, config: LNKConfig, folder: Path, listener: Listener) -> Model:
    """On the frozen network of seed 0. Rerun to resume."""
    network = config_of(name, 0, folder)
    training = network.training.model_copy(
        update={"max_epochs": round(SHARE * network.training.max_epochs), "compile": "auto"}
    )
    changes = {
        "model": network.model.model_copy(update={"head": config}),
        "backbone_from": network.output / "model.sigmaff",
        "head_training": training,
        "calibration": "none",
        "test_forces_std": False,
        "output": folder / name / head,
    }
    made = run(network.model_copy(update=changes), listener)
    assert made is not None
    return load(made.model_path)


def split_parts(model: Path, data: Path) -> dict[str, LabelledStructures]:
    """The data of a network by the split of its record, without empty parts."""
    record = load(model).record
    if record.split is None or file_digest(data) != record.data_sha256:
        raise SystemExit(f"{data} is not what {model} was trained on")
    structures = read_structures(DataSource(path=data))
    indices = {part: getattr(record.split, part) for part in PARTS}
    return {part: structures.subset(index) for part, index in indices.items() if len(index)}


# --- statistics: each is a function of rows, and a row is what was drawn independently


@dataclass(frozen=True)
class Measure:
    """A statistic of rows of sums, one row for each structure or scan."""

    rows: FloatArray  # (n, …)
    statistic: Statistic

    def grouped(self, group: npt.NDArray[np.int64]) -> "Measure":
        """With the sum of rows of each group as a row, (n,) numbers of groups."""
        rows = np.zeros((int(group.max()) + 1, self.rows.shape[1]))
        np.add.at(rows, group, self.rows)
        return Measure(rows, self.statistic)

    def found(self) -> dict[str, Any]:
        """Value and 95 % interval; rows that are NaN throughout are not drawn."""
        rows = self.rows[~np.isnan(self.rows).all(axis=1)]
        low, high = metrics.bootstrap(self.statistic, rows, n_resamples=N_RESAMPLES) if len(rows) else (np.nan, np.nan)
        return {"value": known(self.statistic(self.rows)), "interval": [known(low), known(high)]}

    def minus(self, other: "Measure") -> dict[str, Any]:
        """Difference and its 95 % interval, by paired bootstrap: both have the same rows in the same order."""

        def difference(own: FloatArray, others: FloatArray) -> float:
            return self.statistic(own) - self.statistic(others)

        low, high = metrics.bootstrap(difference, self.rows, other.rows, n_resamples=N_RESAMPLES)
        return {"value": known(difference(self.rows, other.rows)), "interval": [known(low), known(high)]}


def known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def shown(found: Mapping[str, Any] | None, style: str = ".2f", *, interval: bool = True) -> str:
    """A value with its interval, for a table."""
    if found is None or found["value"] is None:
        return "–"
    low, high = found["interval"]
    reach = f" ({low:{style}} to {high:{style}})" if interval and low is not None and high is not None else ""
    return f"{found['value']:{style}}{reach}"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def finish(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Write all numbers."""
    settings = {name: config.model_dump(mode="json") for name, config in options.heads.items()}
    write_json(options.output, {"heads": settings, "calibration": options.calibration} | content, force=True)


class Measured(NamedTuple):
    """Of one set."""

    numbers: dict[str, Any]
    tables: str
    remark: str = ""  # after its name


def each_set(options: argparse.Namespace, measure: Callable[[str, Contenders, Listener], Measured]) -> None:
    """Let the contenders of each of ``options.sets`` be measured, print their tables and write all numbers."""
    prepare()
    everything: dict[str, Any] = {}
    print(f"{describe_machine()}\n")
    for name in options.sets:
        with progress() as terminal:
            found = contenders(name, options, terminal)
            measured = None if found is None else measure(name, found, terminal)
        if found is None or measured is None:
            print(f"## {name}: no network yet\n")
            continue
        everything[name] = measured.numbers
        print(f"## {name}{measured.remark}\n")
        print("\n".join(f"{head}: {chosen}" for head, chosen in found.chosen.items()) + "\n")
        print(measured.tables + "\n", flush=True)
        finish(options, everything)


def main() -> None:
    options = command(__doc__.splitlines()[0], "contenders.json").parse_args()
    prepare()
    content = {}
    for name in SETS:
        with progress() as terminal:
            found = contenders(name, options, terminal)
        if found is not None:
            content[name] = {"chosen": found.chosen}
            for contender, model in found.models.items():
                print(f"{name}, {contender}: {found.chosen.get(contender, '')}")
                print("".join(f"  {q}: {c}\n" for q, c in model.calibrations._asdict().items() if c is not None))
    finish(options, content)


if __name__ == "__main__":
    main()
