"""What adapters share. No host is needed here."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from cli_case import fail, succeed
from sigmaff.backbones.hosts import read_host
from sigmaff.backbones.hosts.reading import (
    UNSAFE_LOADING,
    Outside,
    contained,
    origin_of,
    referenced_file,
    trusted_file,
    trusted_program,
)
from sigmaff.backbones.hosts.trust import trust_file, trusted_list
from sigmaff.errors import ConfigError, ModelFileError

HOSTS = {"mace": "mace", "sevennet": "sevenn", "ani": "torchani", "chgnet": "chgnet", "metatomic": "metatomic"}


def careless_import() -> None:
    os.environ[UNSAFE_LOADING] = "1"  # as import mace does
    warnings.simplefilter("always")
    print("Welcome to some-host!")
    raise RuntimeError("of the host")


@pytest.mark.parametrize("before", [None, "1", "0"])
def test_what_a_host_changes_for_the_process_is_undone(monkeypatch, before, capsys):
    if before is None:
        monkeypatch.delenv(UNSAFE_LOADING, raising=False)
    else:
        monkeypatch.setenv(UNSAFE_LOADING, before)
    filters = list(warnings.filters)
    with pytest.raises(RuntimeError, match="of the host"), contained("some-host"):
        careless_import()
    assert os.environ.get(UNSAFE_LOADING) == before
    assert warnings.filters == filters
    assert capsys.readouterr().out == ""


def test_torch_load_is_safe_after_it(tmp_path, monkeypatch):
    """A pickle that runs a program is refused again."""
    monkeypatch.delenv(UNSAFE_LOADING, raising=False)
    torch.save({"program": print}, tmp_path / "x.pt")
    with contained("some-host"):
        assert torch.load(tmp_path / "x.pt")["program"] is print
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "x.pt")


def test_a_host_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="pip install some-host"), contained("some-host"):
        import no_such_package  # noqa: F401


def test_trust_is_asked_for_by_name(tmp_path):
    file = tmp_path / "x.model"
    file.touch()
    with pytest.raises(ConfigError, match=r"x\.model.*can run programs.*--trust"):
        trusted_file(str(file), trust=False)
    assert trusted_file(str(file), trust=True) == file


def test_no_host_is_imported_before_it_is_needed():
    adapters = "; ".join(f"import sigmaff.backbones.hosts.{adapter}" for adapter in HOSTS)
    code = f"import sys; {adapters}; assert not {set(HOSTS.values())} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("adapter", HOSTS)
def test_an_unknown_source_is_an_error_for_people(adapter, tmp_path):
    """Whether the host is installed or not."""
    with pytest.raises(ConfigError, match=r"pip install|no such file|is not known"):
        read_host(f"{adapter}:{tmp_path}/nothing.model", trust=True)


class TestReferencedFiles:
    @pytest.fixture(autouse=True)
    def own_settings(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))

    @pytest.fixture
    def program(self, tmp_path):
        path = tmp_path / "program.jpt"
        path.write_bytes(b"some program")
        return path

    def origin(self, path):
        return origin_of(f"aimnet2:{path}", "torch", path, shipped=False, weights="referenced")

    def test_a_model_cannot_vouch_for_the_program_that_it_runs(self, program):
        """Another user, or another machine: path and content are right, and the list does not have it."""
        with pytest.raises(ModelFileError, match="sigmaff trust"):
            referenced_file(self.origin(program))
        trust_file(program)
        assert referenced_file(self.origin(program)) == program

    def test_adopting_with_trust_puts_it_on_the_list_once(self, program):
        with pytest.raises(ConfigError, match="--trust"):
            trusted_program(str(program), trust=False)
        assert not trusted_list().exists()
        for _ in range(2):
            trusted_program(str(program), trust=True)
        assert len(trusted_list().read_text().splitlines()) == 1
        assert referenced_file(self.origin(program)) == program

    def test_another_content_is_refused(self, program):
        trust_file(program)
        origin = self.origin(program)
        program.write_bytes(b"another program")
        trust_file(program)
        with pytest.raises(ModelFileError, match="SHA-256 differs"):
            referenced_file(origin)
        program.unlink()
        with pytest.raises(ModelFileError, match="no such file"):
            referenced_file(origin)

    def test_the_command(self, program):
        assert "SHA-256" in succeed("trust", program)
        assert referenced_file(self.origin(program)) == program
        assert "no such file" in fail("trust", program.parent / "nothing")


def test_a_network_outside_follows_its_inputs_and_moves_only_then():
    class Counting(torch.nn.Linear):
        n_moves = 0

        def to(self, *args, **kwargs):
            self.n_moves += 1
            return super().to(*args, **kwargs)

    outside, meta = Outside(Counting(2, 1)), torch.device("meta")
    assert outside.on(torch.device("cpu")).n_moves == 0
    assert outside.on(meta).weight.device == outside.on(meta).bias.device == meta
    assert outside.on(meta).n_moves == 1
