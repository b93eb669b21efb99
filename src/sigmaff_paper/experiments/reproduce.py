"""The paper's experiments by name: run what is left of one, and write down what came out beside what was published."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmaff.errors import ConfigError
from sigmaff.files import atomic_write, write_json
from sigmaff.progress import Listener
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments import (
    costs,
    figures,
    force_uncertainty,
    locality,
    md17_accuracy,
    md17_ood,
    qm7x,
    svgp_dkl,
)
from sigmaff_paper.experiments.cell import CellResult, Place, Results
from sigmaff_paper.experiments.experiment import Experiment
from sigmaff_paper.experiments.presentation import Presentation
from sigmaff_paper.experiments.protocols import Scale
from sigmaff_paper.experiments.runner import run_cells
from sigmaff_paper.experiments.sources import Data

EXPERIMENTS: dict[str, Experiment] = {
    "locality": locality.EXPERIMENT,
    "md17-accuracy": md17_accuracy.EXPERIMENT,
    "md17-ood": md17_ood.DETECTION_EXPERIMENT,
    "qm7x-accuracy": qm7x.ACCURACY_EXPERIMENT,
    "qm7x-calibration": qm7x.CALIBRATION_EXPERIMENT,
    "qm7x-ooe": qm7x.DETECTION_EXPERIMENT,
    "dropout-rate": qm7x.DROPOUT_EXPERIMENT,
    "force-uncertainty": force_uncertainty.EXPERIMENT,
    "speed": costs.SPEED_EXPERIMENT,
    "parameters": costs.PARAMETERS_EXPERIMENT,
    "svgp-dkl": svgp_dkl.EXPERIMENT,
    "gmdn": md17_ood.MIXTURE_EXPERIMENT,
}
"""Table 1, of the desiderata, is what ``sigmaff audit`` measures; Tables 8 to 10 are the settings of scale paper."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came out of an experiment, and the files that tell it."""

    name: str
    scale: Scale
    presentation: Presentation
    results: Results
    paths: list[Path]

    @property
    def without_result(self) -> list[CellResult]:
        return [result for result in self.results.values() if result.status != "done"]


def reproduce(
    name: str,
    *,
    scale: Scale,
    folders: tuple[Path, ...],
    output: Path,
    cluster: ClusterConfig,
    listener: Listener,
) -> Reproduction:
    """Do the cells of an experiment that are left, and write its tables and figures to ``output / name``.

    Cells are kept in ``output / "cells"`` and shared by all experiments. Those without a result are told of, and tried
    again at the next call.
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    experiment, output = EXPERIMENTS[name], output.resolve()
    data = Data(folders=tuple(folder.resolve() for folder in folders), made=output / "data")
    results = run_cells(experiment.cells(scale, data), Place(output), cluster, listener)
    presentation = experiment.present(results, scale)
    paths = write_presentation(output / name, name, scale, presentation, results)
    return Reproduction(name=name, scale=scale, presentation=presentation, results=results, paths=paths)


def write_presentation(
    directory: Path, name: str, scale: Scale, presentation: Presentation, results: Results
) -> list[Path]:
    """``results.json``, ``results.md`` and the figures, replaced where they are."""
    pictures = {directory / f"{figure}.png": figure for figure in presentation.figures}
    for path, figure in pictures.items():
        with atomic_write(path, force=True) as temporary:
            figures.png(presentation.figures[figure], temporary)
        with atomic_write(path.with_suffix(".svg"), force=True) as temporary:
            temporary.write_text(figures.svg(presentation.figures[figure], figure), encoding="utf-8")
    write_json(directory / "results.json", _content(name, scale, presentation, results), force=True)
    with atomic_write(directory / "results.md", force=True) as temporary:
        temporary.write_text(markdown(name, scale, presentation, results), encoding="utf-8")
    return [directory / "results.md", directory / "results.json", *pictures]


def _content(name: str, scale: Scale, presentation: Presentation, results: Results) -> dict[str, Any]:
    return {
        "experiment": name,
        "title": EXPERIMENTS[name].title,
        "shows": EXPERIMENTS[name].shows,
        "scale": scale,
        "tables": [table.to_dict() for table in presentation.tables],
        "notes": presentation.notes,
        "figures": list(presentation.figures),
        "data": _data_files(results),
        "cells": [
            {
                "name": result.name,
                "status": result.status,
                "reason": result.reason,
                "seconds": result.seconds,
                "warnings": list(result.warnings),
            }
            for result in results.values()
        ],
    }


def markdown(name: str, scale: Scale, presentation: Presentation, results: Results) -> str:
    """Tables, figures, what differs from the paper, and what has no result."""
    experiment = EXPERIMENTS[name]
    parts = [
        f"# {name}: {experiment.title}",
        f"{experiment.shows} of the paper, at scale {scale}. In brackets: the paper's numbers.",
        *(table.markdown() for table in presentation.tables),
        *(f"![{figure}]({figure}.svg)" for figure in presentation.figures),
        "## What differs from the paper",
        "\n".join(f"- {note}" for note in presentation.notes),
        *(["Trained on " + ", ".join(files) + "."] if (files := _data_files(results)) else []),
        "## Cells",
        _cells_told(results),
    ]
    return "\n\n".join(parts) + "\n"


def _data_files(results: Results) -> list[str]:
    """Folder and name of the files that models were trained on."""
    paths = [Path(str(result.content["data"])) for result in results.values() if "data" in result.content]
    return sorted({f"{path.parent.name}/{path.name}" for path in paths})


def _cells_told(results: Results) -> str:
    counts = Counter(result.status for result in results.values())
    minutes = sum(result.seconds for result in results.values()) / 60
    lines = [
        ", ".join(f"{count} {status}" for status, count in counts.items()) + f"; {minutes:.1f} minutes of one thread.",
        *(f"- {r.name} ({r.status}): {r.reason}" for r in results.values() if r.status != "done"),
        *(f"- {r.name}: {warning}" for r in results.values() for warning in r.warnings),
    ]
    return "\n".join(lines)
