"""Options that are made from config classes."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from cli_case import fail, sigmaff, succeed
from sigmaff.cli import commands
from sigmaff.cli.main import COMMANDS, app, load_command
from sigmaff.cli.options import Reading
from sigmaff.config import read_config
from sigmaff.errors import ConfigError
from sigmaff.simulation.md import MDConfig


def options(command: str) -> dict[str, str]:
    """The options of a command with their help texts."""
    context = get_command(app).make_context("sigmaff", [command], resilient_parsing=True)
    return {option: given.help for given in load_command(command).get_params(context) for option in given.opts}


def spelled(field: str) -> str:
    return "--" + field.replace("_", "-")


def test_md_has_an_option_for_every_field() -> None:
    offered = options("md")
    for name, field in MDConfig.model_fields.items():
        assert offered[spelled(name)] == field.description


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "report", "audit"])
def test_commands_share_the_reading_options(command: str) -> None:
    offered = options(command)
    assert {spelled(name) for name in Reading.model_fields} <= set(offered)
    for name, field in Reading.model_fields.items():
        assert offered[spelled(name)] == field.description


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command: str) -> None:
    assert [option for option, text in options(command).items() if option.startswith("--") and not text] == []
    assert "Usage" in succeed(command, "--help")


def test_the_list_of_commands_is_that_of_their_functions() -> None:
    functions = [command.callback for command in commands.app.registered_commands if command.callback is not None]
    assert {function.__name__: inspect.getdoc(function).partition("\n")[0] for function in functions} == COMMANDS
    assert list(COMMANDS) == [function.__name__ for function in functions]  # in this order, too


def test_help_is_cheap() -> None:
    code = "import sys; from sigmaff.cli import main; sys.argv = ['sigmaff', '--help']\n"
    code += "try: main()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout
    loaded = set(done.stdout.split())
    assert "typer" in loaded
    assert not {"torch", "ase", "numpy", "scipy", "pydantic", "rich", "yaml", "matplotlib"} & loaded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timestep", "0"], " --timestep: got 0.0; Input should be greater than 0"),
        (["--false-alarm", "2"], " --false-alarm: got 2.0; Input should be less than 1"),
        (["--stop-above", "-1"], " --stop-above must be above 0 eV/Å"),
        (["--stop-above", "auto"], " --stop-above auto needs --error-above: the force error"),
        (["--thermostat", "bussi", "--ensemble", "npt"], "npt with bussi"),
    ],
)
def test_wrong_values_are_named(arguments: list[str], message: str) -> None:
    assert message in fail("md", "no-model", "no-start", *arguments)


def test_values_of_a_wrong_type_are_a_usage_error() -> None:
    outcome = sigmaff("md", "no-model", "no-start", "--steps", "many")
    assert outcome.code == 2
    assert "--steps" in outcome.err


def test_types_are_no_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "md.yaml").write_text(yaml.safe_dump({"stop_above": "much"}))
    with pytest.raises(ConfigError, match="stop_above: got 'much'; Input should be a valid number"):
        read_config(MDConfig, tmp_path / "md.yaml")
    (tmp_path / "md.yaml").write_text(yaml.safe_dump({"float": 1}))
    with pytest.raises(ConfigError, match="float: unknown key"):
        read_config(MDConfig, tmp_path / "md.yaml")
