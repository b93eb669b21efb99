"""What a campaign does in other processes: labels and members on workers, and one training on two devices."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule

import campaign_case as case
from sigmaff.data.labelling import label
from sigmaff.errors import SigmaffError
from sigmaff.learning.directory import Context, Round, write_frames
from sigmaff.learning.labels import label_round, labelled_in
from sigmaff.learning.start import start_structures
from sigmaff.learning.train import RoundTraining, _on_devices, train_round
from sigmaff.models import Ensemble, Model, Potential
from sigmaff.models.file import load_potential
from sigmaff.runs.stages import make_model
from sigmaff.tasks import ClusterConfig, workers

if TYPE_CHECKING:
    from distributed import Client

MEMBERS = {"ensemble": {"size": 3, "bootstrap": True}, "model": {"head": {"name": "deterministic"}}}


@pytest.fixture(scope="module")
def client() -> Iterator[Callable[[], "Client"]]:
    with ExitStack() as stack:
        started = stack.enter_context(workers(ClusterConfig(n_workers=2)))
        yield lambda: started


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    engine, frames = case.settings(folder).engine, []
    for seed in range(12):
        atoms = molecule("H2O")
        atoms.rattle(0.08, seed=seed)
        frames.append(label(atoms, engine))
    path = folder / "dataset.extxyz"
    ase.io.write(path, frames)
    return path


def training(dataset: Path, output: Path, **changes: object) -> RoundTraining:
    if "ensemble" in changes:
        changes["retrain"] = {"every": 1}
    config = case.settings(output, **changes)
    return RoundTraining(run=config.run(dataset, output, None), held_out=(3, 7, 11))


def nobody() -> "Client":
    raise AssertionError("no worker is needed")


def states(model: Model) -> list[dict[str, torch.Tensor]]:
    if isinstance(model, Ensemble):
        return [dict(potential.state_dict()) for potential in model.potentials]
    assert isinstance(model, Potential)
    return [dict(model.state_dict())]


def test_members_from_workers_are_those_of_one_process(
    client: Callable[[], "Client"], dataset: Path, tmp_path: Path
) -> None:
    here, there = training(dataset, tmp_path / "here", **MEMBERS), training(dataset, tmp_path / "there", **MEMBERS)
    expected = make_model(here.run, here.data(), case.Silent(), force=False)
    model, record = train_round(there, there.data(), client, case.Silent())
    assert expected is not None
    assert record.model_fields_set == expected[1].model_fields_set
    for ours, theirs in zip(states(model), states(expected[0]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_members_that_are_there_are_not_trained_again(
    client: Callable[[], "Client"], dataset: Path, tmp_path: Path
) -> None:
    one = training(dataset, tmp_path, **MEMBERS)
    first, _ = train_round(one, one.data(), client, case.Silent())
    again, _ = train_round(one, one.data(), nobody, case.Silent())
    for ours, theirs in zip(states(again), states(first), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_members_that_diverge_on_workers_are_told_of(
    client: Callable[[], "Client"], dataset: Path, tmp_path: Path
) -> None:
    wild = training(dataset, tmp_path, **MEMBERS, training={"learning_rate": 1e30, "gradient_clip": None})
    listener = case.Silent()
    with pytest.raises(SigmaffError, match="only 0 of 3 members could be trained"):
        train_round(wild, wild.data(), client, listener)
    assert [text.split(" and ")[0] for text in listener.warnings] == [f"member {k} was not trained" for k in range(3)]


def test_two_devices_train_what_one_does(dataset: Path, tmp_path: Path) -> None:
    """The weights, and σ of the closed form that is fitted to them."""
    one, two = (training(dataset, tmp_path / str(n), training={"devices": n}) for n in (1, 2))
    listener = case.Silent()
    expected, _ = train_round(one, one.data(), nobody, case.Silent())
    model, record = train_round(two, two.data(), nobody, listener)
    assert record.training.n_epochs == case.SETTINGS["training"]["max_epochs"]
    assert listener.stages == ["training the backbone", "fitting the head"]
    ours, theirs = (dict(load_potential(tmp_path / n / "backbone.sigmaff").state_dict()) for n in ("2", "1"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    graph, _ = two.data().validation.batch([0, 1])
    torch.testing.assert_close(
        model.predict_raw(graph).energy_std, expected.predict_raw(graph).energy_std, rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("n_devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_goes_wrong_on_devices_is_told(dataset: Path, tmp_path: Path, n_devices: int) -> None:
    """By the command that several devices have; helpers of a second one take long to start."""
    wild = training(dataset, tmp_path, training={"devices": n_devices, "learning_rate": 1e30, "gradient_clip": None})
    with pytest.raises(SigmaffError, match="or lower the learning rate"):
        _on_devices(wild, case.Silent())


def test_a_training_ends_with_who_started_it(dataset: Path, tmp_path: Path) -> None:
    """However that ends: what is left of it then is an open pipe that closes."""
    endless = training(dataset, tmp_path, training={"max_epochs": 100_000})
    job = tmp_path / "job.json"
    job.write_text(endless.model_dump_json())
    command = [sys.executable, "-m", "sigmaff.learning", str(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()  # it is at work
        process.stdin.close()
        assert process.wait(timeout=300) == 1  # all epochs take longer


def test_workers_that_are_killed_while_they_label_lose_nothing(client: Callable[[], "Client"], tmp_path: Path) -> None:
    config = case.settings(tmp_path, engine={"arguments": {"log": str(tmp_path / "calls"), "seconds": 0.15}})
    place, structures = Round(0, tmp_path), start_structures(config.start, np.random.default_rng(0))
    write_frames(place.selected, structures)
    pids = list(client().run(os.getpid).values())

    def kill_at_work() -> None:
        while not (tmp_path / "calls").exists():
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_at_work)
    killer.start()
    label_round(Context(config, case.Silent(), client), place, structures)
    killer.join()
    assert set(pids).isdisjoint(client().run(os.getpid).values())
    assert len(labelled_in(place)) == 12
    assert not list(place.path.glob("labels/*.json"))


def test_a_label_that_cannot_be_written_is_no_failure_of_the_engine(
    client: Callable[[], "Client"], tmp_path: Path
) -> None:
    """As on a full disk: the campaign ends for now, and counts no attempt."""
    config = case.settings(tmp_path)
    place, structures = Round(0, tmp_path), start_structures(config.start, np.random.default_rng(0))
    write_frames(place.selected, structures)
    labels = place.label(0).parent
    labels.write_text("a file, where a folder should be")
    with pytest.raises(SigmaffError, match=r"a label cannot be written: .*labels cannot be a folder"):
        label_round(Context(config, case.Silent(), client), place, structures)
    labels.unlink()
    label_round(Context(config, case.Silent(), client), place, structures)
    assert len(labelled_in(place)) == 12
    assert not list(labels.glob("*.json"))
