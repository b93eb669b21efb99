"""``sigmaff audit``: measure the six desiderata of a force field with error bars."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sigmaff.cli.options import Device, Force, JsonOption, OodOption, Seed, console, progress, refuse_overwrites, say
from sigmaff.cli.reading import Reading, warn_of_leakage
from sigmaff.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sigmaff.audit import Audit, Subject
    from sigmaff.data import LabelledStructures


def audit(
    context: typer.Context,
    models: Annotated[list[Path] | None, typer.Argument(help="model files, *.sigmaff", show_default=False)] = None,
    calculator: Annotated[
        list[str] | None,
        typer.Option(help="any ASE calculator, module:factory (repeatable)", show_default=False),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="labelled structures unseen by the models; default: each model's own test set")
    ] = None,
    ood: OodOption = None,
    backbone: Annotated[
        Path | None, typer.Option(help="reference model without σ, for the accuracy and speed ratios")
    ] = None,
    json_output: JsonOption = None,
    html: Annotated[Path | None, typer.Option(help="write a report with plots to this HTML file")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the table and its explanations to this file")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="measure on fewer structures and a shorter MD run")] = False,
    picoseconds: Annotated[float | None, typer.Option(min=0.01, help="ps, length of the NVE run")] = None,
    max_data: Annotated[int, typer.Option(min=1, help="maximum number of structures per file, evenly spaced")] = 500,
    seed: Seed = 0,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Measure the six desiderata of a force field with error bars: of models and of ASE calculators."""
    from sigmaff.audit import FULL, QUICK
    from sigmaff.audit import audit as measure
    from sigmaff.models.file import load

    refuse_overwrites([json_output, html, markdown], force)
    subjects = _subjects(models or [], calculator or [], device)
    reading = Reading(**context.obj)
    labelled = None if data is None else _read(reading, data, max_data, None)
    other = None if ood is None else _read(reading, ood, max_data, ())
    reference = None if backbone is None else load(backbone, device=device)
    changes = {"seed": seed} | ({} if picoseconds is None else {"nve_ps": picoseconds})
    options = (QUICK if quick else FULL).model_copy(update=changes)
    audits = []
    with progress() as terminal:
        for subject in subjects:
            known, tested = (labelled, labelled) if labelled is not None else _own_structures(subject, max_data)
            if subject.model is not None and labelled is not None:
                warn_of_leakage(subject.model, labelled, terminal.warn, subject.name)
            audits.append(
                measure(
                    subject,
                    known.structures,
                    data=tested,
                    ood=other,
                    backbone=reference,
                    options=options,
                    stage=terminal.stage,
                    progress=terminal.advance,
                )
            )
            _write(audits, json_output, html, markdown)  # after each subject: an interruption loses only the next one
    _print_result(audits)
    for path in (json_output, html, markdown):
        if path is not None:
            say(str(path))


def _subjects(models: Sequence[Path], calculators: Sequence[str], device: str) -> list["Subject"]:
    """Load all models and calculators first, so that a wrong name fails before the measurements."""
    from sigmaff.audit import Subject, foreign_subject
    from sigmaff.models.file import load
    from sigmaff.simulation import Calculator

    if not models and not calculators:
        raise ConfigError("nothing to audit: give model files or --calculator module:factory")
    found = []
    for path in models:
        model = load(path, device=device)
        found.append(
            Subject(name=_model_name(path), calculator=Calculator(model, forces_uncertainty="none"), model=model)
        )
    return _with_unique_names([*found, *(foreign_subject(reference) for reference in calculators)])


def _model_name(path: Path) -> str:
    """The file name; for ``model.sigmaff``, as every run writes it, the name of its folder."""
    return path.resolve().parent.name if path.stem == "model" else path.stem


def _with_unique_names(subjects: Sequence["Subject"]) -> list["Subject"]:
    names = [subject.name for subject in subjects]
    return [
        replace(subject, name=f"{subject.name} ({names[: index + 1].count(subject.name)})")
        if names.count(subject.name) > 1
        else subject
        for index, subject in enumerate(subjects)
    ]


def _read(reading: Reading, path: Path, at_most: int, labels: tuple[str, ...] | None) -> "LabelledStructures":
    from sigmaff.data import read_structures

    return _spaced(read_structures(reading.source(path, labels=labels)), at_most)


def _spaced(structures: "LabelledStructures", at_most: int) -> "LabelledStructures":
    n = len(structures)
    return structures if n <= at_most else structures.subset(n * index // at_most for index in range(at_most))


def _own_structures(subject: "Subject", at_most: int) -> tuple["LabelledStructures", "LabelledStructures | None"]:
    """Structures for a model without ``--data``, and labels: its test set; else its training set, without labels."""
    from sigmaff.evaluation.datasets import recorded_structures

    if subject.model is None:
        raise DataError(f"{subject.name}: missing structures to audit it on; give some with --data")
    try:
        test = _spaced(recorded_structures(subject.model, "test"), at_most)
        return test, test
    except DataError:
        pass
    try:
        return recorded_structures(subject.model, "train", labelled=False), None
    except DataError as error:
        raise DataError(f"{subject.name}: {error}; give some with --data") from None


def _write(audits: Sequence["Audit"], json_output: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Write the output files. The command has checked that they may be overwritten."""
    from sigmaff.audit import audit_content, audit_markdown
    from sigmaff.audit.page import write_audit_page
    from sigmaff.files import atomic_write, write_json

    if json_output is not None:
        write_json(json_output, audit_content(audits), force=True)
    if markdown is not None:
        with atomic_write(markdown, force=True) as temporary:
            temporary.write_text(audit_markdown(audits), encoding="utf-8")
    if html is not None:
        title = "Audit of " + ", ".join(audit.name for audit in audits)
        write_audit_page(html, audits, title=title, force=True)


def _print_result(audits: Sequence["Audit"]) -> None:
    """Print the table and the explanations. With more than two columns, cells have no room for numbers."""
    from sigmaff.audit import DESIDERATA, audit_table

    header, *rows = audit_table(audits)
    if len(audits) > 2:
        rows = [[name, *(audit[name].mark for audit in audits)] for name in DESIDERATA]
    table = Table(title="✓ holds   (✓) approximately   ✗ fails   – not applicable", title_justify="left")
    for label in header:
        table.add_column(label, no_wrap=label == header[0], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for audit in audits:
        for finding in audit.findings:
            say(f"{audit.name}, {finding.desideratum.lower()}: {finding.sentence}")
