"""Files are written whole or not at all, and nothing is replaced that should stay."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sigmaff.errors import ConfigError, DataError, SigmaffError
from sigmaff.files import (
    TEMPORARY,
    RunFile,
    RunFolder,
    atomic_write,
    changes,
    folder_lock,
    holds_files,
    naming,
    output_lock,
    refuse_overwrite,
    remove_leftovers,
    write_json,
)


def write_half(path: Path, error: type[BaseException]) -> None:
    with atomic_write(path, force=True) as temporary:
        temporary.write_text("half of it")
        raise error


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existed", [False, True])
def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, error: type[BaseException], existed: bool) -> None:
    path = tmp_path / "out.txt"
    if existed:
        path.write_text("old")
    with pytest.raises(error):
        write_half(path, error)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == (
        [("out.txt", "old")] if existed else []
    )


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with atomic_write(path, force=True) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a move within one file system is atomic
        assert temporary.suffix == path.suffix  # by which writers choose a format
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(SigmaffError, match=r"out\.txt exists already; use --force"), atomic_write(path):
        raise AssertionError("the work was begun")
    assert path.read_text() == "old"
    refuse_overwrite(path, force=True)
    refuse_overwrite(tmp_path / "another", force=False)


def test_folders_are_made(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "out.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a" / "b" / "out.txt").read_text() == "new"


def test_only_files_are_replaced(tmp_path: Path) -> None:
    with pytest.raises(SigmaffError, match="it is a folder"):
        refuse_overwrite(tmp_path, force=True)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SigmaffError, match="not a regular file"):
        refuse_overwrite(tmp_path / "pipe", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(SigmaffError, match="a file is in its way"), atomic_write(tmp_path / "file" / "b" / "out.txt"):
        raise AssertionError("the work was begun")


def test_links_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link, force=True) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_json(tmp_path / "a.json", {})
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    write_json(path, [1])
    assert json.loads(path.read_text()) == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": value})
    assert list(tmp_path.iterdir()) == []


STAYS = """
import sys
from pathlib import Path
from typing import Any
from sigmaff.files import folder_lock

with folder_lock(Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""

COUNTS = """
import sys
from pathlib import Path
from typing import Any
from sigmaff.files import folder_lock

directory = Path(sys.argv[1])
for _ in range(100):
    with folder_lock(directory / "folder"):
        count = directory / "count"
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_a_folder_in_use_is_refused_until_its_user_ends_or_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STAYS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "in\n"
        for _ in range(2):  # a refusal does not break the lock
            with pytest.raises(SigmaffError, match="another process is at work"), folder_lock(tmp_path, wait=False):
                raise AssertionError("the work was begun")
        assert not holds_files(tmp_path)
        user.kill()
    with folder_lock(tmp_path, wait=False):
        assert not holds_files(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_user_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("years of work")
    with folder_lock(tmp_path):
        assert holds_files(tmp_path)
    assert (tmp_path / "lock").read_text() == "years of work"


def test_processes_take_turns_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    users = [subprocess.Popen([sys.executable, "-c", COUNTS, str(tmp_path)]) for _ in range(3)]
    assert [user.wait() for user in users] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "300"


class Job(RunFile):
    settings: dict[str, Any]
    ended: bool = False

    def identity(self) -> dict[str, Any]:
        return self.settings


def test_changes_have_dotted_names_and_spare_the_reader_digests() -> None:
    before = {"seed": 1, "training": {"rate": 0.1, "steps": 5}, "data": "0" * 64, "gone": "x"}
    now = {"seed": 1, "training": {"rate": 0.2, "steps": 5}, "data": "1" * 64}
    assert changes(before, now) == ["training.rate: was 0.1, now 0.2", "data changed", "gone: was x, now None"]


def test_a_run_folder_resumes_the_same_run_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "job.json", "go elsewhere")
    job = Job(settings={"seed": 1})
    assert folder.claim(job) == job
    folder.write(job.model_copy(update={"ended": True}))
    assert folder.claim(job).ended
    with pytest.raises(ConfigError, match=r"run belongs to another run \(seed: was 1, now 2\); go elsewhere"):
        folder.claim(Job(settings={"seed": 2}))
    folder.file.write_text("{}")
    with pytest.raises(DataError, match=r"job\.json is damaged"):
        folder.claim(job)


def test_a_run_folder_takes_no_folder_of_others(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job.json", "")
    with folder.lock():
        folder.claim(Job(settings={}))  # its own lock is no foreign file
    folder.file.rename(tmp_path / "thesis.tex")
    with pytest.raises(ConfigError, match=r"holds other files and no job\.json"):
        folder.claim(Job(settings={}))


DIES = """
import os, sys
from pathlib import Path
from sigmaff.files import atomic_write
with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("{")
    os._exit(9)
"""


def killed_while_writing(path: Path) -> None:
    """The process dies in the middle of the write, and leaves a temporary file."""
    subprocess.run([sys.executable, "-c", DIES, str(path)], check=False)


def test_a_run_that_was_killed_while_it_wrote_its_file_begins_anew(tmp_path: Path) -> None:
    for name in ("job.json", "a_rather_long_name_of_a_file_that_is_cut.json"):
        killed_while_writing(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 2
    folder = RunFolder(tmp_path, "job.json", "")
    job = Job(settings={"seed": 1})
    assert folder.claim(job) == job
    assert folder.file.exists()


def test_temporary_files_of_killed_processes_go_with_the_next_lock_on_their_folder(tmp_path: Path) -> None:
    """Those in use stay, and so do hidden files of the user, whatever their names."""
    kept = tmp_path / "labels" / ".notes-original.json"
    killed_while_writing(tmp_path / "labels" / "0001.extxyz")
    killed_while_writing(tmp_path / "md.json")
    kept.touch()
    with atomic_write(tmp_path / "labels" / "0002.extxyz") as in_use:
        with folder_lock(tmp_path):
            left = {path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".sigmaff-lock"}
            assert left == {in_use, kept}
        in_use.write_text("whole")
    assert (tmp_path / "labels" / "0002.extxyz").read_text() == "whole"


def test_temporary_files_of_killed_processes_go_with_the_next_lock_on_their_file(tmp_path: Path) -> None:
    for name in ("model.sigmaff", "other.sigmaff", "model.json"):
        killed_while_writing(tmp_path / name)
    with output_lock(tmp_path / "model.sigmaff"):
        left = [path.name for path in tmp_path.iterdir() if TEMPORARY.fullmatch(path.name)]
        assert sorted(name[18:] for name in left) == ["model.json", "other.sigmaff"]


def test_a_new_temporary_file_that_is_taken_for_left_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock, another process removes it."""
    lock, n_removed = fcntl.flock, 0

    def removed_first(file: Any, flags: int) -> None:
        nonlocal n_removed
        if n_removed == 0 and flags == fcntl.LOCK_EX:
            n_removed += 1
            remove_leftovers(tmp_path)
        lock(file, flags)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    write_json(tmp_path / "a.json", [1])
    assert n_removed == 1
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
    assert len(list(tmp_path.iterdir())) == 1


def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    with output_lock(tmp_path / "a.sigmaff"), output_lock(tmp_path / "b.sigmaff"):
        refused = pytest.raises(SigmaffError, match=r"a\.sigmaff: another process is at work on this file")
        with refused, output_lock(tmp_path / "a.sigmaff"):
            raise AssertionError("the work was begun")
        assert not holds_files(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_with_the_longest_name_has_a_lock(tmp_path: Path) -> None:
    path = tmp_path / ("σ" * 127)
    with output_lock(path):
        write_json(path, [1])
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    """One of a write has no name, one of opening a temporary file a name that says nothing."""
    path, words = tmp_path / "a.json", os.strerror(errno.ENOSPC)
    for name in ((), (str(tmp_path / ".sigmaff-a1b2c3d4-a.json"),)):
        for block in (atomic_write(path), naming(path)):
            with pytest.raises(OSError, match="No space left") as found, block:
                raise OSError(errno.ENOSPC, words, *name)
            assert found.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as missing, naming(path):
        (tmp_path / "other").read_text()
    assert missing.value.filename == str(tmp_path / "other")
    assert not list(tmp_path.iterdir())
