"""Consoles, and the arguments and options that several commands share."""

from collections.abc import Callable, Collection
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

if TYPE_CHECKING:
    from sigmaff.cli.progress import Terminal

console = Console(highlight=False, markup=False, emoji=False)  # no markup: printed text contains paths of the user
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)

ModelArgument = Annotated[Path, typer.Argument(help="model file, *.sigmaff", show_default=False)]
DataArgument = Annotated[Path, typer.Argument(help="file of labelled structures", show_default=False)]
ConfigArgument = Annotated[Path, typer.Argument(help="YAML file", show_default=False)]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="override a key of the file: section.key=value (repeatable)")
]
OodOption = Annotated[Path | None, typer.Option(help="structures unlike the training set, for the AUROC of σ")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Force = Annotated[bool, typer.Option("--force", help="overwrite existing files")]
Seed = Annotated[int, typer.Option(min=0, help="random seed")]
ForcesStdOption = Annotated[
    Literal["auto", "exact", "sampled", "none"], typer.Option("--forces-std", help="how to compute σ of the forces")
]
BatchSize = Annotated[int, typer.Option(min=1, help="maximum number of structures per batch")]


def config_command(load: Callable[[], type[BaseModel]], only: Collection[str] | None = None) -> type[TyperCommand]:
    """A command class that adds an option for each field of a config class.

    The command finds the given values in ``context.obj``, a dict that the config class can validate.

    Arguments:
        load: returns the config class. It is called when the options are parsed or shown, so that
            ``sigmaff --help`` need not import the class.
        only: the fields that become options; ``None``: all.
    """

    class ConfigCommand(TyperCommand):
        @cached_property
        def config_options(self) -> list[Any]:
            fields = load().model_fields
            return _options({name: field for name, field in fields.items() if only is None or name in only})

        def get_params(self, ctx: Any) -> list[Any]:
            *own, help_option = super().get_params(ctx)
            return [*own, *self.config_options, help_option]

        def invoke(self, ctx: Any) -> Any:
            values = {option.name: ctx.params.pop(option.name) for option in self.config_options}
            ctx.obj = {name: value for name, value in values.items() if _is_given(ctx, name)}
            return super().invoke(ctx)

    return ConfigCommand


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _options(fields: dict[str, FieldInfo]) -> list[Any]:
    """Options with the names, types, defaults and descriptions of the fields."""

    def no_command() -> None: ...

    parameters = []
    for name, field in fields.items():
        option = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
        kind, default = Annotated[_option_type(field.annotation), option], field.get_default()
        default = list(default) if isinstance(default, tuple) else default
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    no_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(no_command)
    return list(typer.main.get_command(app).params)


def _option_type(annotation: Any) -> Any:
    """The type that typer parses a text to. A union of several types stays a text, which pydantic parses."""
    if get_origin(annotation) is tuple:
        return list[get_args(annotation)[0]]  # type: ignore[misc]
    is_union = type(None) in get_args(annotation)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if is_union else [annotation]
    kind = kinds[0] if len(kinds) == 1 else str
    return kind | None if is_union else kind


def progress() -> "Terminal":
    """Progress on the console, to use in a ``with`` block."""
    from sigmaff.cli.progress import Terminal

    return Terminal(console)


def refuse_overwrites(paths: Collection[Path | None], force: bool) -> None:
    """Raise an error before the work if an output file exists already."""
    from sigmaff.files import refuse_overwrite

    for path in paths:
        if path is not None:
            refuse_overwrite(path, force)


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


def warn(text: str) -> None:
    errors.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)
