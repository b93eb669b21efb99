"""Campaigns on an adopted network: each round solves for the head, and nothing is trained."""

import importlib.util
import shutil
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import ase.io
import pytest
import torch
from ase.build import molecule
from distributed import LocalCluster
from pydantic import ValidationError

import toy_host
from campaign_case import SETTINGS, Silent, calls, settings
from sigmaff import extras, load
from sigmaff.errors import ConfigError, DataError
from sigmaff.learning import CampaignConfig, CampaignResult, learn
from sigmaff.models.file import read_header

SOURCE = "toy:a"
N_LABELS = [12, 15]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Workers in this process, which knows the toy."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs="CRITICAL"
    ) as found:
        yield {"scheduler": found.scheduler_address}


def campaign(folder: Path, cluster: dict[str, str], **changes: Any) -> CampaignConfig:
    model = {"backbone": {"adopt": SOURCE, "trust": True}, "head": {"name": "lnk"}}
    explore = SETTINGS["explore"] | {"temperature": [300.0], "steps": 12}
    unset = {"training": {}, "retrain": {}, "cluster": cluster, "explore": explore, "stop": {"max_rounds": 1}}
    config = settings(folder).model_dump(exclude=unset.keys() | {"model"}) | unset | {"model": model}
    return CampaignConfig.model_validate(config | changes)


def only_core(name: str) -> ModuleSpec | None:
    """As if nothing that training needs were installed."""
    return None if name in ("lightning_fabric", "tensorboard") else importlib.util.find_spec(name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cluster: dict[str, str]) -> CampaignResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extras, "find_spec", only_core)
        return learn(campaign(tmp_path_factory.mktemp("whole"), cluster), Silent())


def test_only_the_head_changes_from_round_to_round(whole: CampaignResult) -> None:
    assert [figures.n_labels for figures in whole.rounds] == N_LABELS
    assert not [*whole.directory.rglob("backbone*"), *whole.directory.rglob("*checkpoint*")]
    network, heads = toy_host.reading("a").tensors, []
    for number in range(len(N_LABELS)):
        model = load(whole.directory / f"rounds/{number:02d}/model.sigmaff")
        assert model.record.backbone is model.record.training is None
        assert model.record.fit is not None
        state = model.potentials[0].backbone.state_dict()
        assert state.keys() == network.keys()
        assert all(torch.equal(state[key], value) for key, value in network.items())
        heads.append(model.potentials[0].head.weight_mean)
    assert not torch.equal(heads[0], heads[1])


def test_candidates_are_selected_by_covariance(whole: CampaignResult) -> None:
    frames = ase.io.read(whole.directory / "rounds/01/selected.extxyz", ":")
    methods = {str(atoms.info["method"]) for atoms in frames if not atoms.info["held_out"]}
    assert methods == {"max_det"}


@pytest.mark.parametrize("last", ["rounds/00/labels/0007.extxyz", "rounds/01/explored.json"])
def test_resume_after_any_stage(last: str, whole: CampaignResult, tmp_path: Path, cluster: dict[str, str]) -> None:
    """Files that came after it are taken away: that is what a kill leaves."""
    began = (whole.directory / last).stat().st_mtime_ns
    for path in whole.directory.rglob("*"):
        if path.is_file() and (path.name == "campaign.json" or path.stat().st_mtime_ns <= began):
            target = tmp_path / "campaign" / path.relative_to(whole.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    n_known = len(list((tmp_path / "campaign").glob("rounds/*/labels/*.extxyz")))
    folder = whole.directory.parent
    n_calls = len(calls(folder))
    learn(campaign(folder, cluster).model_copy(update={"output": tmp_path / "campaign"}), Silent())
    assert (tmp_path / "campaign/dataset.extxyz").read_bytes() == (whole.directory / "dataset.extxyz").read_bytes()
    assert len(calls(folder)) - n_calls == N_LABELS[-1] - n_known


def test_a_campaign_that_trains_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", only_core)
    with pytest.raises(ConfigError, match="lightning-fabric"):
        learn(settings(tmp_path), Silent())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retrain": {"every": 1}}, "retrain: an adopted network is not trained"),
        ({"training": {"max_epochs": 5}}, "training: an adopted network is not trained"),
        ({"model": {"backbone": {"adopt": SOURCE}, "head": {"name": "evidential"}}}, "not trained"),
        ({"ensemble": {"size": 2}, "retrain": {"every": 1}}, "not trained"),
        ({"model": {"backbone": toy_host.toy_config().model_dump(mode="json")}}, "without its weights"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=message):
        campaign(tmp_path, {}, **changes)


def test_an_element_that_the_network_does_not_know_costs_no_label(tmp_path: Path, cluster: dict[str, str]) -> None:
    ase.io.write(tmp_path / "start.extxyz", [molecule("H2O"), molecule("HCl")])
    start = {"source": str(tmp_path / "start.extxyz"), "n_labels": 12}
    with pytest.raises(DataError, match=r"Cl.*adopted network does not know"):
        learn(campaign(tmp_path, cluster, start=start), Silent())
    assert not (tmp_path / "calls").exists()


def test_another_network_is_another_campaign(whole: CampaignResult, cluster: dict[str, str]) -> None:
    other = {"backbone": {"adopt": "toy:b", "trust": True}, "head": {"name": "lnk"}}
    with pytest.raises(ConfigError, match=r"another run \(model.backbone.adopt: was toy:a, now toy:b\)"):
        learn(campaign(whole.directory.parent, cluster, model=other), Silent())
    assert read_header(whole.model_path).record.backbone is None
