"""``sigmaff audit``: measure the six desiderata of a force field with error bars."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

import sigmaff as sf
from sigmaff.cli.options import Device, Force, JsonOption, OodOption, Reading, Seed, claim_outputs
from sigmaff.cli.progress import console, progress, say
from sigmaff.errors import ConfigError
from sigmaff.extras import require
from sigmaff.files import atomic_write, write_json

if TYPE_CHECKING:
    from ase.calculators.calculator import BaseCalculator

    from sigmaff.audit import Audit
    from sigmaff.progress import Listener

ModelsArgument = Annotated[list[Path] | None, typer.Argument(help="model files, *.sigmaff", show_default=False)]
Calculators = Annotated[
    list[str] | None, typer.Option(help="any ASE calculator, module:factory (repeatable)", show_default=False)
]
Data = Annotated[
    Path | None, typer.Option(help="labelled structures unseen by the models; default: each model's own test set")
]
Backbone = Annotated[
    Path | None,
    typer.Option(
        help="reference model without σ, for the accuracy and speed ratios; default: that of the run beside the model"
    ),
]


def audit(
    context: typer.Context,
    models: ModelsArgument = None,
    calculator: Calculators = None,
    data: Data = None,
    ood: OodOption = None,
    backbone: Backbone = None,
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
    from sigmaff.data import read_structures

    claim_outputs([json_output, html, markdown], force)
    if html is not None:
        require("--html", "jinja2", "matplotlib")
    subjects = _subjects(models or [], calculator or [], device)
    reading, audits = Reading(**context.obj), []
    known = None if data is None else read_structures(reading.labelled(data))
    other = None if ood is None else read_structures(reading.unlabelled(ood))
    reference = None if backbone is None else sf.load(backbone, device=device)
    measure = partial(sf.audit, ood=other, quick=quick, picoseconds=picoseconds, max_data=max_data, seed=seed)
    with progress() as terminal:
        for name, subject in subjects:
            own = reference if reference is not None else _backbone_beside(subject, device, terminal)
            audits.append(measure(subject, known, name=name, backbone=own, listener=terminal))
            _write(audits, json_output, html, markdown)  # after each subject: an interruption loses only the next one
    _print_result(audits)
    for path in (json_output, html, markdown):
        if path is not None:
            say(str(path))


def _subjects(
    models: Sequence[Path], calculators: Sequence[str], device: str
) -> list[tuple[str, "sf.Model | BaseCalculator"]]:
    """Load all models and calculators first, so that a wrong name fails before the measurements."""
    from sigmaff.audit import foreign_subject

    if not models and not calculators:
        raise ConfigError("nothing to audit: give model files or --calculator module:factory")
    loaded = [sf.load(path, device=device) for path in models]
    foreign = [foreign_subject(reference) for reference in calculators]
    names = _unique([_model_name(path) for path in models] + [subject.name for subject in foreign])
    return list(zip(names, [*loaded, *(subject.calculator for subject in foreign)], strict=True))


def _backbone_beside(subject: "sf.Model | BaseCalculator", device: str, listener: "Listener") -> "sf.Model | None":
    """The backbone that the run of a model left beside it, or beside the other methods of a comparison."""
    from sigmaff.runs.stages import backbone_beside

    if not isinstance(subject, sf.Model) or (path := backbone_beside(subject)) is None:
        return None
    listener.tell(f"reference for accuracy and speed: {path}; another one by --backbone")
    return sf.load(path, device=device)


def _model_name(path: Path) -> str:
    """The file name; for ``model.sigmaff``, as every run writes it, the name of its folder."""
    return path.resolve().parent.name if path.stem == "model" else path.stem


def _unique(names: list[str]) -> list[str]:
    """Number names that occur several times."""
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _write(audits: Sequence["Audit"], json_output: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Write the output files. The command has checked that they may be overwritten."""
    from sigmaff.audit import audit_content, audit_markdown

    if json_output is not None:
        write_json(json_output, audit_content(audits), force=True)
    if markdown is not None:
        with atomic_write(markdown, force=True) as temporary:
            temporary.write_text(audit_markdown(audits), encoding="utf-8")
    if html is not None:
        from sigmaff.audit.page import write_audit_page

        title = "Audit of " + ", ".join(audit.name for audit in audits)
        write_audit_page(html, audits, title=title, force=True)


def _print_result(audits: Sequence["Audit"]) -> None:
    """Print the table and the explanations. With more than two columns, cells have no room for numbers."""
    from sigmaff.audit import DESIDERATA, audit_table

    header, *rows = audit_table(audits)
    if len(audits) > 2:
        rows = [[name, *(audit[name].mark for audit in audits)] for name in DESIDERATA]
    columns = [Column(label, no_wrap=label == header[0], overflow="fold") for label in header]
    table = Table(*columns, title="✓ holds   (✓) approximately   ✗ fails   – not applicable", title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for audit in audits:
        for finding in audit.findings:
            say(f"{audit.name}, {finding.desideratum.lower()}: {finding.sentence}")
