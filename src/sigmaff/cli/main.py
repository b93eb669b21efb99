"""The program ``sigmaff``: its list of commands and error handling.

``sigmaff --help`` imports nothing but this: a command is imported when it runs.
"""

import signal
import sys
from contextlib import ExitStack
from importlib import import_module
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sigmaff.cli.messages import in_flags
from sigmaff.errors import SigmaffError, in_words

COMMANDS = {
    "check": "Summarize a data file and report problems in it.",
    "init": "Write a configuration for 'sigmaff train' from the data, with a network that trains in the given time.",
    "train": "Train, calibrate and test a model. Rerun the same command to resume.",
    "watch": "Show the learning curve, errors and time left of a training. End it with Ctrl-C; the training goes on.",
    "adopt": "Give a potential of another program a calibrated σ, with a few labelled structures.",
    "trust": "Allow the program in a file to run, or that a campaign names. It is remembered by content, for you.",
    "export": "Compile a model for this machine: the same numbers to rounding, faster. It takes minutes.",
    "evaluate": "Compute the errors of a model on labelled structures, and metrics of its σ.",
    "calibrate": "Calibrate the σ of a model on held-out structures and save the calibration in the model file.",
    "predict": "Predict energies, forces and their σ, and write them to a file: sigmaff_energy, sigmaff_forces.",
    "report": "Write an HTML report on the errors and the σ of a model on labelled structures.",
    "info": "Show the architecture, training data and calibration of a model.",
    "md": "Run MD and stop a replica when a σ of it exceeds its limit. Rerun the same command to resume.",
    "guard": "Make labelled pilot runs. Find the limit on σ that bounds the share of MD runs with a large force error.",
    "relax": "Relax structures. Stop each at its last good step when a σ leaves its range on calibration structures.",
    "learn": "Run active learning: explore, select, label, train. Rerun the same command to resume.",
    "select": "Select the structures whose labels would improve a model most, in this order.",
    "methods": "List the uncertainty methods with their cost and properties.",
    "schema": "Print the JSON schema of a YAML file, by which an editor completes and checks it.",
    "compare": "Train several uncertainty methods on the same data and compare them. Rerun the same command to resume.",
    "ensemble": "Combine models into an ensemble, with σ from their disagreement. Calibrate it before use.",
    "audit": "Measure the six desiderata of a force field with error bars: of models and of ASE calculators.",
    "demo": "Label ethanol with GFN2-xTB, train and calibrate a model, test it on an unseen molecule. Takes minutes.",
}
"""Commands and what each does: the first lines of their functions in ``commands``."""

PAPER_COMMANDS = {
    "generate": ("sigmaff_paper.qm7x_like.command", "Generate a labelled data set from SMILES."),
    "reproduce": (
        "sigmaff_paper.experiments.command",
        "Run an experiment of the paper and show its numbers beside ours. Rerun the same command to resume.",
    ),
}
"""Commands of the second package: the module whose ``app`` each is, and a summary."""


INTERRUPTED = 130
"""The exit code after Ctrl-C."""

received: list[int] = []
"""Signals that were to end the command."""

outputs = ExitStack()
"""Locks on the files that a command will write, until it ends."""


def load_command(name: str) -> Any:
    """Import a command, with its arguments and options."""
    if name in PAPER_COMMANDS:
        return typer.main.get_command(import_module(PAPER_COMMANDS[name][0]).app)
    group: Any = typer.main.get_command(import_module("sigmaff.cli.commands").app)
    return group.commands[name]


class LaterCommand(TyperCommand):
    """Name and summary of a command. It is imported when it runs, not when ``sigmaff --help`` lists it."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load_command(self.name or "").make_context(info_name, args, parent, **extra)


class Commands(TyperGroup):
    """The commands. A ``SigmaffError`` or ``OSError`` is printed without a traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        summaries = COMMANDS | {name: summary for name, (_, summary) in PAPER_COMMANDS.items()}
        self.commands = {name: LaterCommand(name, help=summary) for name, summary in summaries.items()}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Plain text: rich takes longer to import than all the rest."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.commands.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            with outputs:
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except KeyboardInterrupt as interrupt:
            _print(str(interrupt) or "interrupted; run the same command again")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if received:  # compiled code turns an interruption into any error
                _print("interrupted; run the same command again")
                raise typer.Exit(INTERRUPTED) from None
            if not isinstance(error, SigmaffError | OSError):
                raise
            from rich.text import Text

            message = in_flags(in_words(error), _flags(ctx))
            _print(Text.assemble(("error: ", "bold red"), message))
            raise typer.Exit(1) from None


def _flags(context: Any) -> dict[str, str]:
    """The flags of the command that runs, by the names of its arguments."""
    name = context.invoked_subcommand
    if name is None or name in PAPER_COMMANDS:
        return {}
    parameters = load_command(name).get_params(context)
    return {option.name: option.opts[0] for option in parameters if option.opts[0].startswith("--")}


def _print(text: Any) -> None:
    from sigmaff.cli.progress import errors

    errors.print(text, soft_wrap=True)


app = typer.Typer(
    name="sigmaff",
    cls=Commands,
    help="Molecular force fields that carry their own error bars.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the program. SIGTERM and SIGHUP, where it is not ignored, end it as Ctrl-C does."""
    from sigmaff.allocator import keep_large_blocks

    try:
        keep_large_blocks()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)
        sys.unraisablehook = _ignored
        app()
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        sys.exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    received.append(number)
    raise KeyboardInterrupt


def _ignored(lost: Any) -> None:
    """Called where Python ignores an exception, as in a destructor. An interruption comes again in a moment."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(lost)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sigmaff import __version__

        typer.echo(f"sigmaff {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...
