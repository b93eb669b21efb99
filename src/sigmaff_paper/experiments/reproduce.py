"""The paper's experiments by name: run one, and write our numbers beside the published ones."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from sigmaff.errors import ConfigError
from sigmaff.files import atomic_write, write_json
from sigmaff.progress import Listener
from sigmaff.runs.jobs import JobFolder, JobResult, Results, run_jobs
from sigmaff.tasks import ClusterConfig
from sigmaff_paper.experiments import costs, figures, locality, md17, qm7x, svgp_dkl
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.experiment import Experiment, Report
from sigmaff_paper.experiments.settings import Scale

EXPERIMENTS: dict[str, Experiment] = {
    **locality.EXPERIMENTS,
    **md17.EXPERIMENTS,
    **qm7x.EXPERIMENTS,
    **svgp_dkl.EXPERIMENTS,
    **costs.EXPERIMENTS,
}
"""``sigmaff audit`` measures Table 1, the desiderata. Tables 8 to 10 are the settings of scale paper."""


def reproduce(
    name: str,
    *,
    scale: Scale,
    folders: tuple[Path, ...],
    output: Path,
    cluster: ClusterConfig,
    listener: Listener,
) -> tuple[Report, Results, list[Path]]:
    """Run the jobs of an experiment that are left, and write its tables and figures to ``output / name``.

    All experiments share the jobs in ``output / "cells"``. Rerun to try failed jobs again. Return the report, the
    results of all jobs and the files.

    Arguments:
        folders: with data sets.
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
    experiment, output = EXPERIMENTS[name], output.resolve()
    data = DataFolders(folders=tuple(folder.resolve() for folder in folders), made=output / "data")
    results = run_jobs(experiment.jobs(scale, data), JobFolder(output / "cells"), listener, cluster)
    report = experiment.present(results, scale)
    return report, results, write_report(output / name, name, scale, report, results)


def without_result(results: Results) -> list[JobResult]:
    return [result for result in results.values() if result.status != "done"]


def write_report(directory: Path, name: str, scale: Scale, report: Report, results: Results) -> list[Path]:
    """Write ``results.json``, ``results.md`` and the figures; replace existing files."""
    for title, figure in report.figures.items():
        with atomic_write(directory / f"{title}.png", force=True) as temporary:
            figures.png(figure, temporary)
        with atomic_write(directory / f"{title}.svg", force=True) as temporary:
            temporary.write_text(figures.svg(figure, title), encoding="utf-8")
    content = {
        "experiment": name,
        "title": EXPERIMENTS[name].title,
        "shows": EXPERIMENTS[name].shows,
        "scale": scale,
        "tables": [table.to_dict() for table in report.tables],
        "notes": report.notes,
        "figures": list(report.figures),
        "data": _data_files(results),
        "cells": [
            {key: value for key, value in asdict(result).items() if key != "content"} for result in results.values()
        ],
    }
    write_json(directory / "results.json", content, force=True)
    with atomic_write(directory / "results.md", force=True) as temporary:
        temporary.write_text(_markdown(name, scale, report, results), encoding="utf-8")
    pictures = [directory / f"{title}.png" for title in report.figures]
    return [directory / "results.md", directory / "results.json", *pictures]


def _markdown(name: str, scale: Scale, report: Report, results: Results) -> str:
    """Tables, figures, differences from the paper, and jobs without a result."""
    experiment, files = EXPERIMENTS[name], _data_files(results)
    parts = [
        f"# {name}: {experiment.title}",
        f"{experiment.shows} of the paper, at scale {scale}. In brackets: the paper's numbers.",
        *(table.markdown() for table in report.tables),
        *(f"![{figure}]({figure}.svg)" for figure in report.figures),
        "## What differs from the paper",
        "\n".join(f"- {note}" for note in report.notes),
        *(["Trained on " + ", ".join(files) + "."] if files else []),
        "## Jobs",
        _jobs_text(results),
    ]
    return "\n\n".join(parts) + "\n"


def _data_files(results: Results) -> list[str]:
    """Folder and name of the training files."""
    paths = [Path(str(result.content["data"])) for result in results.values() if "data" in result.content]
    return sorted({f"{path.parent.name}/{path.name}" for path in paths})


def _jobs_text(results: Results) -> str:
    counts = Counter(result.status for result in results.values())
    minutes = sum(result.seconds for result in results.values()) / 60
    lines = [
        ", ".join(f"{count} {status}" for status, count in counts.items()) + f"; {minutes:.1f} minutes of one thread.",
        *(f"- {result.name} ({result.status}): {result.reason}" for result in without_result(results)),
        *(f"- {result.name}: {warning}" for result in results.values() for warning in result.warnings),
    ]
    return "\n".join(lines)
