"""What the documents tell a reader to type works: every command, every script, every configuration, every link.

Blocks of a document run in order in one folder with small files of the names that the documents use. Not run, but
looked up, are ``make`` targets, benchmarks and the configurations in ``examples/``; ``bash no-test`` marks blocks that
need the network. Scripts on artefacts run in ``models/test_export.py``, which makes one.
"""

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from cli_case import Workspace, sigmaff, write_config, write_files
from sigmaff.cli.main import COMMANDS
from sigmaff.config import read_config
from sigmaff.learning import CampaignConfig
from sigmaff.runs.config import RunConfig

pytest_plugins = ["cli_fixtures"]

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, *sorted((ROOT / "docs").glob("*/**/*.md"))]
"""With tables that commands wrote."""
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=")
NOT_RUN = ("make", "pip", "git")
LONG = ("reproduce", "generate", "init", "export")
"""Commands of minutes or hours, which have tests of their own: here only their options are looked up."""
ADOPTED: dict[tuple[str, ...], bytes] = {}
"""Model files by the command that made them: several documents adopt the same network."""


class Block(NamedTuple):
    language: str
    remark: str
    text: str


def blocks(document: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(document.read_text(encoding="utf-8"))]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block as lists of words; in a console block those after a prompt."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if command := list(dropwhile(ASSIGNMENT.match, words)):
            yield command


def all_commands() -> list[list[str]]:
    shells = [block for document in DOCUMENTS for block in blocks(document) if block.language in ("bash", "console")]
    return [words for block in shells for words in commands(block)]


def run(words: list[str]) -> None:
    program, *arguments = words
    if program in NOT_RUN or program == "python" or arguments[:1] == ["demo"]:
        return  # looked up by the other tests of this file; the demonstration has its own
    assert program == "sigmaff", f"{shlex.join(words)}: a document should tell how to run sigmaff"
    if arguments[1:] and arguments[1].startswith(("examples/", "runs/")):  # minutes of training, and what follows on it
        return
    if arguments[0] == "adopt" and (kept := ADOPTED.get(tuple(arguments))):
        Path(arguments[arguments.index("-o") + 1]).write_bytes(kept)  # the same command on the same file
        return
    asked_for_help = ["--help"] if arguments[0] in LONG and arguments[1] != "list" else []
    outcome = sigmaff(*arguments, *asked_for_help)
    assert outcome.code == 0, f"{shlex.join(words)}: {outcome.err}"
    if arguments[0] == "adopt":
        ADOPTED[tuple(arguments)] = Path(arguments[arguments.index("-o") + 1]).read_bytes()


@pytest.mark.filterwarnings("ignore::sigmaff.errors.UndeterminedEnergyWarning")  # of in.extxyz, as it should
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_it_says_can_be_typed(
    document: Path, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    for name in ("model.sigmaff", "another.sigmaff"):
        shutil.copy(workspace.model, tmp_path / name)
    write_config(tmp_path / "run.yaml", ("training.max_epochs", 3))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document):
        if block.language in ("bash", "console") and "no-test" not in block.remark:
            for words in commands(block):
                run(words)
        elif block.language == "python" and "no-test" not in block.remark and "model.pt2" not in block.text:
            exec(compile(block.text, f"{document.name} (python)", "exec"), names)
        elif block.language == "yaml":
            (tmp_path / "documented.yaml").write_text(block.text)
            read_config(RunConfig, tmp_path / "documented.yaml")


def test_make_targets_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {target for words in all_commands() if words[0] == "make" for target in words[1:]}
    wanted |= {target for path in DOCUMENTS for target in re.findall(r"`make ([\w-]+)`", path.read_text())}
    assert wanted >= {"demo", "test"}
    assert wanted <= targets


def benchmarks() -> list[str]:
    in_blocks = {words[1] for words in all_commands() if words[0] == "python" and words[1:]}
    in_text = {name for path in DOCUMENTS for name in re.findall(r"\bpython (\S+\.py)", path.read_text())}
    return sorted(in_blocks | in_text | {f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py")})


@pytest.mark.parametrize("name", benchmarks())
def test_scripts_are_there_and_explain_themselves(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    compile(text, name, "exec")
    if "argparse" in text:
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(path), run_name="__main__")
        assert left.value.code == 0
        assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_configurations(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGMAFF_DATA", "/data")
    monkeypatch.setenv("MOLECULE", "ethanol")
    is_campaign = path.name.startswith("campaign_")
    config = read_config(CampaignConfig, path) if is_campaign else read_config(RunConfig, path)
    content = yaml.safe_load(path.read_text())
    assert config.training.max_epochs == content["training"]["max_epochs"]
    assert isinstance(config, CampaignConfig) or config.data.source.path.is_relative_to("/data")


def test_examples_that_documents_name_are_there() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"examples/[\w./-]+\.yaml", path.read_text())}
    assert {name for name in named if not (ROOT / name).is_file()} == set()


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_sections_lead_to_sections(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    targets = [(document.parent / path if path else document, section) for path, section in links]
    assert [(path.name, section) for path, section in targets if section not in sections(path)] == []


def sections(document: Path) -> set[str]:
    """Names of the headings, as links have them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_command_is_documented() -> None:
    """In some document, by its name."""
    text = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert {name for name in COMMANDS if f"sigmaff {name}" not in text and f"make {name}" not in text} == set()
