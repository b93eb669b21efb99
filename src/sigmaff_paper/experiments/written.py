"""The files of an experiment: ``results.md``, ``results.json`` and its figures."""

from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

from sigmaff.files import atomic_write, write_json
from sigmaff.runs.jobs import Results
from sigmaff.runs.model_jobs import ModelJob
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.experiment import Report
from sigmaff_paper.experiments.reproduce import Plan, PlannedCell, without_result


def write_report(plan: Plan, report: Report, results: Results) -> list[Path]:
    """Write all files to ``plan.directory``; replace existing ones."""
    directory = plan.directory
    for title, figure in report.figures.items():
        with atomic_write(directory / f"{title}.png", force=True) as temporary:
            figures.png(figure, temporary)
        with atomic_write(directory / f"{title}.svg", force=True) as temporary:
            temporary.write_text(figures.svg(figure, title), encoding="utf-8")
    content = {
        "experiment": plan.name,
        "title": plan.experiment.title,
        "shows": plan.experiment.shows,
        "scale": plan.setup.scale,
        "hours": plan.setup.hours if plan.setup.scale == "hour" else None,
        "n_seeds": plan.setup.n_seeds,
        "tables": [table.to_dict() for table in report.tables],
        "notes": report.notes,
        "figures": list(report.figures),
        "data": _data_files(results),
        "cells": [
            {key: value for key, value in asdict(result).items() if key != "content"} for result in results.values()
        ],
        "left_out": [{"name": cell.name, "hours": cell.hours} for cell in plan.left_out()],
    }
    write_json(directory / "results.json", content, force=True)
    with atomic_write(directory / "results.md", force=True) as temporary:
        temporary.write_text(_markdown(plan, report, results), encoding="utf-8")
    pictures = [directory / f"{title}.png" for title in report.figures]
    return [directory / "results.md", directory / "results.json", *pictures]


def hours_text(hours: float) -> str:
    """Return hours of one core, for people."""
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def left_out_text(plan: Plan, cells: list[PlannedCell]) -> str:
    """Return how many cells were left out, and what it takes to run them; empty if there are none."""
    if not cells:
        return ""
    total = sum(cell.hours or 0.0 for cell in cells)
    time = "" if plan.setup.scale == "quick" else f", about {hours_text(total)} hours of one core"
    return f"{len(cells)} cells are left out{time}: {plan.command}"


def _markdown(plan: Plan, report: Report, results: Results) -> str:
    """Tables, figures, differences from the paper, and jobs without a result."""
    experiment = plan.experiment
    parts = [
        f"# {plan.name}: {experiment.title}",
        f"{experiment.shows} of the paper, at {plan.setup.title}. In brackets: the paper's numbers.",
        *(table.markdown() for table in report.tables),
        *(f"![{figure}]({figure}.svg)" for figure in report.figures),
        "## What differs from the paper",
        "\n".join(f"- {note}" for note in report.notes),
        *_data_text(plan, results),
        "## Jobs",
        _jobs_text(results),
        *_left_out(plan),
    ]
    return "\n\n".join(parts) + "\n"


def _data_files(results: Results) -> list[str]:
    """Folder and name of the training files."""
    paths = [Path(str(result.content["data"])) for result in results.values() if "data" in result.content]
    return sorted({f"{path.parent.name}/{path.name}" for path in paths})


def _data_text(plan: Plan, results: Results) -> list[str]:
    """How many structures trained and validated models, and the files that they are of."""
    files = defaultdict[tuple[int, int], set[str]](set)
    for job in (*plan.chosen, *plan.others):
        if isinstance(job, ModelJob) and job.name in results and results[job.name].status == "done":
            split, paths = job.config.data.split, [source.path for source in job.config.data.sources]
            files[split.n_train or 0, split.n_validation].update(f"{path.parent.name}/{path.name}" for path in paths)
    return [
        f"Trained on {n_train} and validated on {n_validation} structures of {', '.join(sorted(names))}."
        for (n_train, n_validation), names in files.items()
    ]


def _jobs_text(results: Results) -> str:
    counts = Counter(result.status for result in results.values())
    minutes = sum(result.seconds for result in results.values()) / 60
    lines = [
        ", ".join(f"{count} {status}" for status, count in counts.items()) + f"; {minutes:.1f} minutes of one thread.",
        *(f"- {result.name} ({result.status}): {result.reason}" for result in without_result(results)),
        *(f"- {result.name}: {warning}" for result in results.values() for warning in result.warnings),
    ]
    return "\n".join(lines)


def _left_out(plan: Plan) -> list[str]:
    """What was not run, by data and backbone, with the command that runs it."""
    cells = plan.left_out()
    if not cells:
        return []
    groups = defaultdict[str, list[PlannedCell]](list)
    for cell in cells:
        groups[cell.name.rpartition("/")[0]].append(cell)
    lines = []
    for group, members in groups.items():
        methods = ", ".join(member.name.rpartition("/")[2] for member in members)
        known = [member.hours for member in members if member.hours is not None]
        lines.append(f"- {group}: {methods}" + (f" ({hours_text(sum(known))} hours)" if known else ""))
    head, _, command = left_out_text(plan, cells).rpartition(": ")
    return ["## Left out", f"{head}, by estimate. For all of them:", f"```bash\n{command}\n```", "\n".join(lines)]
