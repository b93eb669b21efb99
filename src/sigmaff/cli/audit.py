"""The command that measures the six desiderata."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sigmaff.cli.options import (
    Device,
    EnergiesOnly,
    EnergyKey,
    EnergyUnit,
    Force,
    ForcesKey,
    FormatOption,
    LengthUnit,
    OodOption,
    console,
)
from sigmaff.cli.reading import Reading
from sigmaff.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sigmaff.audit import Audit, Subject
    from sigmaff.cli.progress import Terminal
    from sigmaff.data import LabelledStructures


def audit(
    models: Annotated[list[Path] | None, typer.Argument(help="model files, *.sigmaff", show_default=False)] = None,
    calculator: Annotated[
        list[str] | None,
        typer.Option(help="another program's ASE calculator, module:factory (may be repeated)", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="labelled structures that no model was trained on; else each model's own test set"),
    ] = None,
    ood: OodOption = None,
    backbone: Annotated[
        Path | None, typer.Option(help="the model without σ to hold accuracy and speed against")
    ] = None,
    json_output: Annotated[Path | None, typer.Option("--json", help="write all numbers here")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with plots here")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the table here, with a sentence on each cell")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer structures, copies and rounds, a shorter run")] = False,
    picoseconds: Annotated[float | None, typer.Option(min=0.01, help="length of the run at constant energy")] = None,
    max_data: Annotated[int, typer.Option(min=1, help="structures of each data file, evenly spaced, at most")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="of all that is random")] = 0,
    format: FormatOption = "auto",
    energy_unit: EnergyUnit = None,
    length_unit: LengthUnit = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    energies_only: EnergiesOnly = False,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Measure the six desiderata of a force field with error bars, on models and on ASE calculators."""
    from sigmaff.audit import FULL, QUICK
    from sigmaff.audit import audit as measure
    from sigmaff.cli.progress import Terminal
    from sigmaff.files import refuse_overwrite
    from sigmaff.models.file import load

    for path in (json_output, html, markdown):
        if path is not None:
            refuse_overwrite(path, force)
    subjects = _subjects(models or [], calculator or [], device)
    reading = Reading(format, energy_unit, length_unit, energy_key, forces_key, energies_only)
    labelled = None if data is None else _read(reading, data, max_data, None)
    other = None if ood is None else _read(reading, ood, max_data, ())
    reference = None if backbone is None else load(backbone, device=device)
    changes = {"seed": seed} | ({} if picoseconds is None else {"nve_ps": picoseconds})
    options = (QUICK if quick else FULL).model_copy(update=changes)
    audits = []
    with Terminal(console) as terminal:
        for subject in subjects:
            known, tested = (labelled, labelled) if labelled is not None else _own_structures(subject, max_data)
            _warn_of_leakage(subject, labelled, terminal)
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
            _write(audits, json_output, html, markdown)  # after each: minutes of measurement are not lost by a kill
    _show(audits, [path for path in (json_output, html, markdown) if path is not None])


def _subjects(models: Sequence[Path], calculators: Sequence[str], device: str) -> list["Subject"]:
    """Everything that can fail by a wrong name fails here, before minutes of measurement."""
    from sigmaff.audit import Subject, foreign_subject
    from sigmaff.models.file import load
    from sigmaff.simulation import Calculator

    if not models and not calculators:
        raise ConfigError("there is nothing to audit; give model files, or --calculator module:factory")
    found = []
    for path in models:
        model = load(path, device=device)
        found.append(
            Subject(name=_model_name(path), calculator=Calculator(model, forces_uncertainty="none"), model=model)
        )
    return _with_own_names([*found, *(foreign_subject(reference) for reference in calculators)])


def _model_name(path: Path) -> str:
    """A run's model is called after its folder: every one of them is in a file of the same name."""
    return path.resolve().parent.name if path.stem == "model" else path.stem


def _with_own_names(subjects: Sequence["Subject"]) -> list["Subject"]:
    from dataclasses import replace

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
    """Structures that a model knows, and labelled ones that it was not trained on: its own test set, if it has one."""
    from sigmaff.evaluation.datasets import recorded_structures

    if subject.model is None:
        raise DataError(f"{subject.name}: say on which structures it is to be audited, with --data")
    try:
        test = _spaced(recorded_structures(subject.model, "test"), at_most)
        return test, test
    except DataError:
        pass
    try:
        return recorded_structures(subject.model, "train", labelled=False), None
    except DataError as error:
        raise DataError(f"{subject.name}: {error}; give some with --data") from None


def _warn_of_leakage(subject: "Subject", data: "LabelledStructures | None", terminal: "Terminal") -> None:
    from sigmaff.evaluation.datasets import leaked_structures

    if subject.model is None or data is None:
        return
    if n_leaked := leaked_structures(subject.model, data):
        terminal.warn(
            f"{subject.name} was trained on {n_leaked} of these {len(data)} structures: errors will look too small"
        )


def _write(audits: Sequence["Audit"], json_output: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Replace what is there: whether that may be was asked before."""
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


def _show(audits: Sequence["Audit"], paths: Sequence[Path]) -> None:
    """The marks alone where there are many columns: the sentences below have the numbers."""
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
            console.print(f"{audit.name}, {finding.desideratum.lower()}: {finding.sentence}", soft_wrap=True)
    for path in paths:
        console.print(str(path), soft_wrap=True)
