"""``sigmaff check``: what a data file contains."""

from dataclasses import asdict

import typer

from sigmaff.cli.options import DataArgument, Force, JsonOption, console, refuse_overwrites
from sigmaff.cli.reading import Reading


def check(context: typer.Context, data: DataArgument, json_output: JsonOption = None, force: Force = False) -> None:
    """Summarize a data file and report problems in it."""
    from sigmaff.cli.tables import findings_table
    from sigmaff.data import check_structures, read_structures
    from sigmaff.files import write_json

    refuse_overwrites([json_output], force)
    findings = check_structures(read_structures(Reading(**context.obj).source(data, labels=())))
    if json_output is not None:
        write_json(json_output, [asdict(finding) for finding in findings], force=force)
    console.print(findings_table(findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
