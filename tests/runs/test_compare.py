"""Methods side by side, on a data set that trains in seconds."""

import json
import shutil
from pathlib import Path

import ase.io
import numpy as np
import pytest
from scipy.stats import ttest_rel

from cli_case import Workspace, fail, morse_frames, succeed, write_config
from sigmaff.config import read_config
from sigmaff.evaluation import evaluate
from sigmaff.evaluation.datasets import dataset_for, recorded_structures
from sigmaff.heads import HEADS
from sigmaff.models import Ensemble, MonteCarloDropout
from sigmaff.models.file import load
from sigmaff.runs.config import RunConfig
from sigmaff.runs.jobs import JobResult, _ready
from sigmaff.runs.methods import METHODS, methods_of
from sigmaff.runs.model_jobs import method_jobs

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
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")] == [
        *(("| method", "| ---", "| ensemble", "| llpr") * 3),
        *(("| method", "| ---", "| llpr", "| llpr") * 2),
    ]
    page = (compared / "run/comparison.html").read_text()
    assert "AUROC ether" in page
    assert "llpr" in page


def test_differences_are_those_of_the_same_structures(compared: Workspace):
    """Of the first method that has a measure, computed again from the models with SciPy."""
    succeed("compare", compared / "run.yaml", "--methods", "backbone", "--methods", "ensemble", "--methods", "llpr")
    results = {result["method"]: result for result in json.loads((compared / "run/comparison.json").read_text())}
    assert results["backbone"]["differences"] == {}
    found = results["llpr"]["differences"]
    assert found.keys() == {"backbone", "ensemble"}
    assert found["backbone"].keys() == {"energy_mae", "forces_mae"}
    for key, name in (("energy_nll", "metrics"), ("forces_spearman", "metrics"), ("ether/energy_auroc", "ood")):
        figures = [results[method]["record"][name] for method in ("llpr", "ensemble")]
        figures = [each["ether"] if name == "ood" else each for each in figures]
        expected = figures[0][key.removeprefix("ether/")] - figures[1][key.removeprefix("ether/")]
        assert found["ensemble"][key]["value"] == pytest.approx(expected, abs=1e-5), key

    errors = []
    for name in ("ensemble", "backbone"):
        model = load(compared / f"run/{name}/model.sigmaff")
        test = dataset_for(model, recorded_structures(model, "test"))
        errors.append(np.abs(evaluate(model, test, name="test").energy_error))
    interval = ttest_rel(*errors).confidence_interval(0.95)
    reached = results["ensemble"]["differences"]["backbone"]["energy_mae"]
    assert reached["value"] == pytest.approx(np.mean(errors[0] - errors[1]), rel=1e-4)
    assert (reached["high"] - reached["low"]) == pytest.approx(interval.high - interval.low, rel=0.25)  # of 20
    assert "MAE (eV, eV/Å) − backbone" in (compared / "run/comparison.html").read_text()


def test_raw_scores_say_whose_scale_has_seen_validation_errors(compared: Workspace):
    """LNK, LLPR, last-layer ensembles and latent distances are scaled by their fits; a GP by its training data."""
    assert {name for name, method in METHODS.items() if method.is_scaled} == set(SHARING)
    succeed("compare", compared / "run.yaml", "--methods", "ensemble", "--methods", "llpr")
    text = (compared / "run/comparison.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    column = rows[0].index("calibration, raw")
    raw = {row[0]: row[column] for row in rows[2:4]}
    assert {name: cell.endswith("¹") for name, cell in raw.items()} == {"| ensemble": False, "| llpr": True}
    assert "scales σ to errors of the validation structures" in text


def test_a_method_that_is_trained_again_is_tested_again(compared: Workspace):
    kept = compared / "run/llpr/tested.npz"
    with np.load(kept) as arrays:
        before = dict(arrays)
    np.savez(kept, **before | {"digest": np.array("of another model"), "errors/energy_mae": np.zeros((20, 2))})
    succeed("compare", compared / "run.yaml", "--methods", "llpr")
    with np.load(kept) as arrays:
        assert np.array_equal(arrays["errors/energy_mae"], before["errors/energy_mae"])


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
    before = (tmp_path / "run/comparison.json").read_bytes()
    assert "no method has a result, so no comparison is written" in fail("compare", config, "--methods", "svgp_dkl")
    assert (tmp_path / "run/comparison.json").read_bytes() == before


def test_an_ensemble_has_the_members_that_the_run_asks_for(workspace: Workspace, tmp_path: Path):
    options = ("--methods", "ensemble", "--output", tmp_path, "--set", "training.max_epochs=1")
    for extra, folders in (("", ["backbone", "ensemble", "member-1"]), (", bootstrap: true", ["ensemble"])):
        succeed("compare", workspace / "run.yaml", *options, "--set", f"ensemble={{size: 2{extra}}}", "--force")
        assert len(load(tmp_path / "ensemble" / "model.sigmaff").potentials) == 2
        assert set(folders) == {path.parent.name for path in tmp_path.glob("*/model.sigmaff")}
        shutil.rmtree(tmp_path)


def test_cheap_methods_do_not_wait_for_many_trainings(workspace: Workspace, tmp_path: Path):
    config = read_config(RunConfig, workspace / "run.yaml")
    names = ["ensemble", "mc_dropout", "gp", "llpr", "latent_knn"]
    jobs = method_jobs(methods_of(config), names, lambda method: method.settings(config))
    done: dict[str, JobResult] = {}
    while ready := _ready(jobs, done):
        done[ready[0].name] = JobResult(name=ready[0].name, status="done")
    members = [f"member-{number}" for number in range(1, 5)]
    assert list(done) == ["gp", "backbone", "llpr", "latent_knn", "mc_dropout", *members, "ensemble"]


def test_tables_fit_into_80_columns(compared: Workspace):
    out = succeed("compare", compared / "run.yaml", "--methods", "backbone", "--methods", "fixed_lnk_variational")
    tables = out[out.index("Errors and error bars") :].replace(str(compared.folder), "")
    assert max(map(len, tables.splitlines())) <= 80
    assert "…" not in tables
    words = "fixed_lnk_variational method MAE (eV, eV/Å) calibration, Spearman AUROC ether parameters [95 % interval]"
    assert set(words.split()) <= set(tables.split())
    assert "kcal" not in tables + (compared / "run/comparison.html").read_text()


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
