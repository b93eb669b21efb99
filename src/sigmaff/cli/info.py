"""``sigmaff info``: what a model file contains."""

from typing import Annotated

import typer

from sigmaff.cli.options import ModelArgument, console


def info(
    model: ModelArgument,
    json_output: Annotated[bool, typer.Option("--json", help="print the whole header as JSON")] = False,
) -> None:
    """Show the architecture, training data and calibration of a model."""
    from sigmaff.cli.tables import info_table
    from sigmaff.models.file import load, read_header

    header = read_header(model)
    if json_output:
        console.print_json(header.model_dump_json())
        return
    n_parameters = sum(parameter.numel() for parameter in load(model).parameters())
    console.print(info_table(header, n_parameters))
