"""The program ``sigmaff``: its commands and error handling."""

from importlib import import_module
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from sigmaff import __version__
from sigmaff.cli.adopt import adopt, export, trust
from sigmaff.cli.audit import audit
from sigmaff.cli.check import check, info
from sigmaff.cli.evaluate import calibrate, evaluate, predict, report
from sigmaff.cli.guard import guard, guard_options
from sigmaff.cli.init import init, schema
from sigmaff.cli.learn import learn, select
from sigmaff.cli.md import md, md_options
from sigmaff.cli.messages import in_flags
from sigmaff.cli.options import config_command, reading_command
from sigmaff.cli.progress import errors, say
from sigmaff.cli.relax import relax, relax_options
from sigmaff.cli.train import compare, demo, ensemble, methods, train
from sigmaff.cli.watch import watch
from sigmaff.errors import SigmaffError

PAPER_COMMANDS = {
    "generate": ("sigmaff_paper.qm7x_like.command", "Generate a labelled data set from SMILES."),
    "reproduce": (
        "sigmaff_paper.experiments.command",
        "Run an experiment of the paper and show its numbers beside ours. Rerun the same command to resume.",
    ),
}
"""Commands of the second package: the module whose ``app`` each is, and a summary."""


class PaperCommand(TyperCommand):
    """Imports a command of the second package when it runs, not when ``sigmaff --help`` lists it."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        module, _ = PAPER_COMMANDS[self.name or ""]
        command = typer.main.get_command(import_module(module).app)
        return command.make_context(info_name, args, parent, **extra)


class Commands(TyperGroup):
    """The commands. A ``SigmaffError`` or ``OSError`` is printed without a traceback."""

    def list_commands(self, context: typer.Context) -> list[str]:  # type: ignore[override]
        return [*super().list_commands(context), *PAPER_COMMANDS]

    def get_command(self, context: typer.Context, name: str) -> Any:  # type: ignore[override]
        if name in PAPER_COMMANDS:
            return PaperCommand(name, help=PAPER_COMMANDS[name][1])
        return super().get_command(context, name)

    def invoke(self, context: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise
        except (SigmaffError, OSError) as error:
            message = in_flags(str(error), self._flags(context))
            errors.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt as interrupt:
            errors.print(str(interrupt) or "interrupted", soft_wrap=True)
            raise typer.Exit(130) from None

    def _flags(self, context: typer.Context) -> dict[str, str]:
        """The flags of the command that runs, by the names of its arguments."""
        name = context.invoked_subcommand
        if name is None or name in PAPER_COMMANDS:
            return {}
        parameters = self.get_command(context, name).get_params(context)
        return {option.name: option.opts[0] for option in parameters if option.opts[0].startswith("--")}


app = typer.Typer(
    name="sigmaff",
    cls=Commands,
    help="Molecular force fields that carry their own error bars.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.command(cls=reading_command("format", "energy_unit", "length_unit", "energy_key", "forces_key"))(check)
app.command(cls=reading_command())(init)
app.command()(train)
app.command()(watch)
app.command(cls=reading_command())(adopt)
app.command()(trust)
app.command()(export)
app.command(cls=reading_command())(evaluate)
app.command(cls=reading_command())(calibrate)
app.command(cls=reading_command("format", "length_unit"))(predict)
app.command(cls=reading_command())(report)
app.command()(info)
app.command(cls=config_command(md_options))(md)
app.command(cls=config_command(guard_options))(guard)
app.command(cls=config_command(relax_options))(relax)
app.command()(learn)
app.command(cls=reading_command("format"))(select)
app.command()(methods)
app.command()(schema)
app.command()(compare)
app.command()(ensemble)
app.command(cls=reading_command())(audit)
app.command()(demo)


def main() -> None:
    """Run the program."""
    from sigmaff.allocator import keep_large_blocks

    keep_large_blocks()
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"sigmaff {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...
