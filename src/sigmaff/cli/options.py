"""What the commands share: where they print, and the arguments that several of them take."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

console = Console(highlight=False, markup=False, emoji=False)  # texts hold paths of users: nothing in them is a command
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)

ModelArgument = Annotated[Path, typer.Argument(help="a model file, *.sigmaff", show_default=False)]
DataArgument = Annotated[Path, typer.Argument(help="labelled structures", show_default=False)]
FormatOption = Annotated[str, typer.Option(help="layout of the data files; auto goes by their ending")]
EnergyUnit = Annotated[str | None, typer.Option(help="unit of energies in the data files, if not the layout's own")]
LengthUnit = Annotated[str | None, typer.Option(help="unit of lengths in the data files")]
EnergyKey = Annotated[str | None, typer.Option(help="name of the energy in the data files")]
ForcesKey = Annotated[str | None, typer.Option(help="name of the forces in the data files")]
EnergiesOnly = Annotated[bool, typer.Option("--energies-only", help="the data file needs no forces")]
OodOption = Annotated[Path | None, typer.Option(help="structures unlike the training set, to be told apart by σ")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Force = Annotated[bool, typer.Option("--force", help="replace existing files")]
ForcesStdOption = Annotated[
    Literal["auto", "exact", "sampled", "none"], typer.Option("--forces-std", help="how σ of forces is computed")
]
BatchSize = Annotated[int, typer.Option(min=1, help="structures at once, at most")]
