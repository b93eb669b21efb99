"""``sigmaff check`` and ``info``: what a data file and what a model file contain."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer

import sigmaff as sf
from sigmaff.cli.options import DataArgument, Force, JsonOption, ModelArgument, Reading, claim_outputs
from sigmaff.cli.progress import console, say
from sigmaff.files import write_json


def check(context: typer.Context, data: DataArgument, json_output: JsonOption = None, force: Force = False) -> None:
    """Summarize a data file and report problems in it."""
    from sigmaff.cli.tables import findings_table
    from sigmaff.data import check_structures, read_structures

    claim_outputs([json_output], force)
    findings = check_structures(read_structures(Reading(**context.obj).unlabelled(data)))
    if json_output is not None:
        write_json(json_output, [asdict(finding) for finding in findings], force=force)
    console.print(findings_table(findings))
    counts = Counter(finding.severity for finding in findings)
    if not counts["error"] + counts["warning"]:
        say("no problems found")
    if counts["error"]:
        raise typer.Exit(1)


def info(
    model: ModelArgument,
    json_output: Annotated[bool, typer.Option("--json", help="print the whole header as JSON")] = False,
) -> None:
    """Show the architecture, training data and calibration of a model."""
    from sigmaff.cli.tables import info_table
    from sigmaff.models.export import ENDING, model_file_in
    from sigmaff.models.file import read_header

    with model_file_in(model) if model.suffix == ENDING else nullcontext(model) as path:
        header = read_header(path)
        if json_output:
            console.print_json(header.model_dump_json())
            return
        n_parameters = sum(parameter.numel() for parameter in sf.load(path).parameters())
    console.print(info_table(header, n_parameters))
