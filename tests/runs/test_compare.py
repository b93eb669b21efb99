"""Methods side by side, on a data set that trains in seconds."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest

from cli_case import Workspace, fail, morse_frames, succeed, write_config
from sigmaff.heads import HEADS
from sigmaff.models import Ensemble, MonteCarloDropout
from sigmaff.models.file import load
from sigmaff.runs.methods import METHODS

pytest_plugins = ["cli_fixtures"]

SHARING = ("fixed_lnk", "llpr", "shallow_ensemble", "latent_knn", "latent_mahalanobis", "latent_mixture")
SAME_MEAN = ("llpr", "latent_knn", "latent_mahalanobis", "latent_mixture")


@pytest.fixture(scope="module")
def results(compared: Workspace) -> dict[str, dict]:
    return {result["method"]: result for result in json.loads((compared / "run/comparison.json").read_text())}


def test_every_method_has_a_result(results: dict[str, dict]):
    assert list(results) == list(METHODS)
    for name, result in results.items():
        assert result["failed"] is None, name
        metrics, other = result["record"]["metrics"], result["record"]["ood"]["ether"]
        assert metrics["energy_mae"] > 0, name
        assert metrics["forces_mae"] > 0, name
        method = METHODS[name]
        assert (metrics["energy_calibration"] is not None) == ("energy" in method.std_of), name
        assert (metrics["forces_calibration"] is not None) == ("forces" in method.std_of), name
        assert (other["energy_auroc"] is not None) == ("energy" in method.std_of), name
        assert result["milliseconds"]["auto"] > 0, name


def test_what_a_method_claims_is_what_its_model_does(compared: Workspace):
    for name, method in METHODS.items():
        model = load(compared / f"run/{name}/model.sigmaff")
        assert (model.kind is not None) == ("energy" in method.std_of), name
        assert isinstance(model, Ensemble) == (method.ensemble is not None), name
        assert isinstance(model, MonteCarloDropout) == (method.mc_dropout is not None), name


def test_one_backbone_serves_all_that_can_share_it(compared: Workspace, results: dict[str, dict]):
    backbone = load(compared / "run/backbone/model.sigmaff")
    for name in SHARING:
        assert not (compared / f"run/{name}/backbone").exists()
        model = load(compared / f"run/{name}/model.sigmaff")
        weights = backbone.backbone.state_dict()
        assert all(np.array_equal(value, weights[key]) for key, value in model.backbone.state_dict().items()), name
    for name in SAME_MEAN:
        for measure in ("energy_mae", "forces_mae"):
            expected = results["backbone"]["record"]["metrics"][measure]
            assert results[name]["record"]["metrics"][measure] == pytest.approx(expected, rel=1e-6), name
    first = load(compared / "run/ensemble/model.sigmaff").potentials[0]
    assert all(np.array_equal(value, first.state_dict()[key]) for key, value in backbone.state_dict().items())


def test_dropout_samples_the_trained_lnk(compared: Workspace):
    trained = load(compared / "run/lnk/model.sigmaff")
    sampled = load(compared / "run/mcd_lnk/model.sigmaff").potential
    assert all(np.array_equal(value, sampled.state_dict()[key]) for key, value in trained.state_dict().items())


def test_finished_methods_are_kept(compared: Workspace):
    paths = sorted(compared.folder.glob("run/*/model.sigmaff"))
    before = [path.stat().st_mtime_ns for path in paths]
    succeed("compare", compared / "run.yaml", "--methods", "llpr", "--methods", "ensemble")
    assert [path.stat().st_mtime_ns for path in paths] == before
    methods = [result["method"] for result in json.loads((compared / "run/comparison.json").read_text())]
    assert methods == ["ensemble", "llpr"]
    text = (compared / "run/comparison.md").read_text()
    assert len(text.splitlines()) == 4
    page = (compared / "run/comparison.html").read_text()
    assert "AUROC ether" in page
    assert "llpr" in page


def test_force_trains_the_named_methods_again(compared: Workspace):
    paths = sorted(compared.folder.glob("run/*/model.sigmaff"))
    before = {path.parent.name: path.stat().st_mtime_ns for path in paths}
    succeed("compare", compared / "run.yaml", "--methods", "llpr", "--methods", "ensemble", "--force")
    again = {path.parent.name for path in paths if path.stat().st_mtime_ns != before[path.parent.name]}
    assert again == {"llpr", "ensemble"}


def test_a_failed_method_is_reported_and_the_others_continue(tmp_path: Path):
    """36 structures are too few for 100 inducing points on structures."""
    ase.io.write(tmp_path / "data.extxyz", morse_frames(60, seed=1))
    split = ("data.split", {"n_train": 36, "n_validation": 20})
    config = write_config(tmp_path / "run.yaml", ("training.max_epochs", 1), split)
    output = succeed("compare", config, "--methods", "svgp_dkl", "--methods", "latent_mahalanobis")
    assert "svgp_dkl has no result: " in output
    assert "set n_inducing to at most 36" in output.replace("\n", " ")
    failed, good = json.loads((tmp_path / "run/comparison.json").read_text())
    assert "at most 36" in failed["failed"]
    assert good["failed"] is None
    assert "svgp_dkl: " in (tmp_path / "run/comparison.md").read_text()


def test_unknown_methods_are_named(compared: Workspace):
    message = fail("compare", compared / "run.yaml", "--methods", "majic")
    assert "there is no method 'majic'" in message
    assert "fixed_lnk" in message


def test_every_head_is_in_a_method():
    assert {method.head.name for method in METHODS.values()} == set(HEADS)


def test_methods_are_listed():
    text = succeed("methods")
    for name in METHODS:
        assert name in text
    assert "455,809" in text
    assert "unknown backbone 'gnome'" in fail("methods", "--backbone", "gnome")
