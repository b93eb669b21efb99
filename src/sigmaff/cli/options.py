"""Arguments and options that several commands share."""

from collections.abc import Callable, Collection
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from sigmaff.cli.main import outputs
from sigmaff.config import Settings, validated
from sigmaff.files import output_lock, refuse_overwrite

if TYPE_CHECKING:
    from sigmaff.data import DataSource

ModelArgument = Annotated[Path, typer.Argument(help="model file, *.sigmaff", show_default=False)]
DataArgument = Annotated[Path, typer.Argument(help="file of labelled structures", show_default=False)]
ConfigFile = Annotated[Path, typer.Argument(help="YAML file", show_default=False)]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="override a key of the file: section.key=value (repeatable)")
]
OodOption = Annotated[
    Path | None, typer.Option(help="structures unlike the training set: errors, coverage and AUROC of σ")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Force = Annotated[bool, typer.Option("--force", help="overwrite existing files")]
SkipChecks = Annotated[bool, typer.Option("--skip-checks", help="do not check the data first, as 'sigmaff check' does")]
Trust = Annotated[bool, typer.Option("--trust", help="run the programs that the file names; see docs/learning.md")]
Seed = Annotated[int, typer.Option(min=0, help="random seed")]
ForcesStd = Annotated[
    Literal["auto", "exact", "sampled", "energy", "none"],
    typer.Option("--forces-std", help="how to compute σ of the forces"),
]
BatchSize = Annotated[int, typer.Option(min=1, help="maximum number of structures per batch")]


def config_command(load: Callable[[], type[BaseModel]], only: Collection[str] | None = None) -> type[TyperCommand]:
    """A command class that adds an option for each field of a config class but its sections.

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
            return _options(
                {
                    name: field
                    for name, field in fields.items()
                    if (only is None or name in only) and not _is_section(field)
                }
            )

        def get_params(self, ctx: Any) -> list[Any]:
            *own, help_option = super().get_params(ctx)
            return [*own, *self.config_options, help_option]

        def invoke(self, ctx: Any) -> Any:
            values = {option.name: ctx.params.pop(option.name) for option in self.config_options}
            sources = {name: ctx.get_parameter_source(name) for name in values}
            ctx.obj = {
                name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"
            }
            return super().invoke(ctx)

    return ConfigCommand


def _options(fields: dict[str, FieldInfo]) -> list[Any]:
    """Options with the names, types, defaults and descriptions of the fields."""

    def no_command() -> None: ...

    parameters = []
    for name, field in fields.items():
        option = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
        default = Parameter.empty if field.is_required() else field.get_default()
        default = list(default) if isinstance(default, tuple) else default
        kind: Any = Annotated[_option_type(field.annotation), option]
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    no_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(no_command)
    return list(typer.main.get_command(app).params)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _option_type(annotation: Any) -> Any:
    """The type that typer parses a text to. A union of several types stays a text, which pydantic parses."""
    if get_origin(annotation) is tuple:
        return list[get_args(annotation)[0]]  # type: ignore[misc]
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if is_union else [annotation]
    kind = kinds[0] if len(kinds) == 1 else str
    return kind | None if type(None) in get_args(annotation) else kind


def claim_outputs(paths: Collection[Path | None], force: bool) -> None:
    """Raise an error before the work if an output file exists already, or if another command is about to write it."""
    for path in paths:
        if path is not None:
            refuse_overwrite(path, force)
            outputs.enter_context(output_lock(path))


OWN_UNIT = "default: the unit that the data files or their format state"


class Reading(Settings):
    """The reading options of a command. ``None``: as the file or its format says."""

    format: str = Field("auto", description="format of the data files; auto: by file extension")
    energy_unit: str | None = Field(None, description=f"eV, kcal/mol, kJ/mol, Hartree, ...; {OWN_UNIT}")
    length_unit: str | None = Field(None, description=f"Angstrom, Bohr or nm; {OWN_UNIT}")
    energy_key: str | None = Field(None, description="name of the energy in the files; default: energy, REF_energy")
    forces_key: str | None = Field(None, description="name of the forces in the files; default: forces, REF_forces")
    energies_only: bool = Field(False, description="accept data files without forces")

    def labelled(self, path: Path) -> "DataSource":
        """A file of structures that all have energies and, unless ``energies_only``, forces."""
        return self._source(path, ("energy",) if self.energies_only else ("energy", "forces"))

    def unlabelled(self, path: Path) -> "DataSource":
        """A file of structures; labels are optional."""
        return self._source(path, ())

    def _source(self, path: Path, labels: tuple[str, ...]) -> "DataSource":
        from sigmaff.data import DataSource

        content = self.model_dump(exclude={"energies_only"}) | {"path": path, "labels": labels}
        return validated(DataSource, content, str(path))


def reading_command(*only: str) -> type[TyperCommand]:
    """A command class with the reading options; their values are in ``context.obj``."""
    return config_command(lambda: Reading, only or None)
