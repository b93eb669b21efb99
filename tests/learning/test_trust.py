"""A campaign file that names a program runs it only if the user says so: typed, with --trust, or by the user's list."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign_case import SETTINGS
from cli_case import fail, succeed
from sigmaff.backbones.hosts.trust import is_trusted, trust_file, trusted_list
from sigmaff.data.labelling import EngineConfig
from sigmaff.errors import ConfigError
from sigmaff.factory import import_factory
from sigmaff.inputs import settings_of
from sigmaff.learning import CampaignConfig
from sigmaff.runs.config import RunConfig

NAME = "somebodys_engine:make"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of trusted files, and the module that a campaign names, which leaves a trace when it is imported."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebodys_engine.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\nfrom tblite.ase import TBLite as make\n"
    )


def campaign(folder: Path, **engine: Any) -> Path:
    path = folder / "campaign.yaml"
    content = SETTINGS | {"engine": engine or {"calculator": NAME}, "output": str(folder / "campaign")}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("options", [(), ("--trust",)], ids=["not trusted", "trusted"])
def test_a_campaign_that_names_a_command_runs_nothing(options: tuple[str, ...], tmp_path: Path):
    """Trusted, the campaign begins; what is no factory of calculators is still not called."""
    path = campaign(tmp_path, calculator="os:system", arguments={"command": f"touch {tmp_path / 'ran'}"})
    told = fail("learn", path, *options)
    assert not (tmp_path / "ran").exists()
    if not options:
        assert "os:system is a program, and this file would run it" in told
        assert f"sigmaff trust {path}" in told.replace("\n", " ")
        assert not (tmp_path / "campaign").exists()


def test_a_file_does_not_make_anybody_import(tmp_path: Path):
    told = fail("learn", campaign(tmp_path))
    assert "--trust" in told
    assert "trust=True" not in told
    assert not (tmp_path / "imported").exists()


def test_trust_is_remembered_by_content(tmp_path: Path):
    """So that the same command resumes; one changed byte is another file."""
    path = campaign(tmp_path)
    with pytest.raises(ConfigError, match="is a program"):
        settings_of(CampaignConfig, path)
    assert settings_of(CampaignConfig, path, trust=True).engine.calculator == NAME
    assert settings_of(CampaignConfig, str(path)).engine.calculator == NAME
    path.write_text(path.read_text() + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a program"):
        settings_of(CampaignConfig, path)
    succeed("trust", path)
    assert settings_of(CampaignConfig, path).engine.calculator == NAME


def test_a_list_that_a_kill_has_cut_goes_on(tmp_path: Path):
    """In the middle of a line, and of the letter é."""
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_text(path.name)
    trust_file(one)
    with trusted_list().open("ab") as file:
        file.write(b"0123456789abcdef  /home/\xc3")
    assert is_trusted(trust_file(other))
    assert is_trusted(trust_file(one))


def test_what_names_no_program_needs_no_trust_and_gets_none(tmp_path: Path):
    path = campaign(tmp_path, calculator="gfn2-xtb")
    settings_of(CampaignConfig, path, trust=True)
    assert not trusted_list().exists()


def test_what_the_user_typed_is_the_users(tmp_path: Path):
    """On the command line, or in a program of the user: a mapping, an object."""
    path = campaign(tmp_path, calculator="gfn2-xtb")
    typed = settings_of(CampaignConfig, path, [f"engine.calculator={NAME}"])
    assert typed.engine == EngineConfig(calculator=NAME)
    assert settings_of(CampaignConfig, typed) is typed
    assert settings_of(CampaignConfig, yaml.safe_load(campaign(tmp_path).read_text())).engine.is_factory
    assert not trusted_list().exists()


def test_the_working_folder_shadows_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the standard library that nobody has imported is the right one."""
    (tmp_path / "sched.py").write_text("raise SystemExit('a module from the data')\n")
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert import_factory("sched:scheduler").__module__ == "sched"
    assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize("kind", [RunConfig, CampaignConfig])
def test_a_file_does_not_vouch_for_a_network(kind: type[RunConfig | CampaignConfig], tmp_path: Path):
    """``trust: true`` in a file is the word of whoever wrote it; typed, it is the user's."""
    adopted = {"backbone": {"adopt": "mace:somebodys.model", "trust": True}, "head": {"name": "lnk"}}
    run = {"data": {"source": {"path": "data.extxyz"}}, "output": "out"}
    campaign = {"start": SETTINGS["start"], "engine": {"calculator": "gfn2-xtb"}, "output": "out"}
    content = (run if kind is RunConfig else campaign) | {"model": adopted}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mace:somebodys\.model is a program"):
        settings_of(kind, path)
    assert settings_of(kind, content).model.backbone.trust
    assert settings_of(kind, path, ["model.backbone.trust=true"]).model.backbone.trust
    assert settings_of(kind, path, trust=True).model.backbone.trust
    assert settings_of(kind, path).model.backbone.trust
