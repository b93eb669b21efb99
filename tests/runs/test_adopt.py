"""Adopting a network: its own energies, the reference energies of the labels, its model file, and the command."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms

import sigmaff as sf
import toy_host
from cli_case import fail, labelled, morse_frames, succeed, write_config
from contract import Case
from sigmaff.backbones import AdoptConfig, HostConfig, SchNetConfig
from sigmaff.backbones.hosts import Host, build_host, read_host
from sigmaff.data import DataSource, GraphDataset, label_structures
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.evaluation import evaluate, summarize
from sigmaff.evaluation.calibration import MIN_STRUCTURES
from sigmaff.graph import AtomicGraph, build_graph
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Potential
from sigmaff.models.adopt import host_potential, read_potential
from sigmaff.models.file import read_header
from sigmaff.models.prediction import Prediction
from sigmaff.models.solve import LabelledObservations
from sigmaff.runs.adopt import _sizes

SHIFTS = {1: 0.31, 6: -2.5, 8: 1.25}
SOURCE = "toy:a"
TRUSTED = ("--set", "model.backbone.trust=true")


@pytest.fixture(scope="module")
def host() -> Potential:
    return read_potential(AdoptConfig(adopt=SOURCE, trust=True))


@pytest.fixture(scope="module")
def frames(host: Potential) -> list[Atoms]:
    """Labels are the energies of another network of the same kind, with reference energies of its own."""
    other = host_potential(toy_host.reading("b"))
    found = []
    for atoms in morse_frames(40, seed=3):
        bare = Atoms(atoms.numbers, atoms.positions)
        mine, others = (model.predict([bare])[0] for model in (host, other))
        energy = mine.energy + 0.2 * (others.energy - mine.energy) + sum(SHIFTS[z] for z in bare.numbers)
        found.append(labelled(bare, energy, mine.forces + 0.2 * (others.forces - mine.forces)))
    return found


@pytest.fixture(scope="module")
def adopted(frames: list[Atoms]) -> sf.Model:
    return sf.adopt(SOURCE, frames, trust=True)


def test_alone_it_is_the_network_of_its_program(host: Potential):
    """Energies against the network itself, forces against finite differences."""
    atoms = Atoms("H2O", positions=[[0, 0, 0.1], [0.8, 0, 0.7], [-0.7, 0.2, 0.6]])
    found = host.predict([atoms])[0]
    network = build_host(toy_host.toy_config("a")).double()
    network.load_state_dict(toy_host.reading("a").tensors)
    references = sum(toy_host.REFERENCES[z] for z in atoms.numbers)
    own = network(host.prepare(build_graph(atoms, host.cutoff, torch.float64)))[:, -1]
    assert found.energy == pytest.approx(references + float(own.detach().sum()), abs=1e-10)
    step, moved = 1e-5, []
    for sign in (1, -1):
        other = atoms.copy()
        other.positions[1, 2] += sign * step
        moved.append(host.predict([other])[0].energy)
    assert found.forces[1, 2] == pytest.approx((moved[1] - moved[0]) / (2 * step), rel=1e-6)
    assert found.energy_std is None


def test_reference_energies_are_those_of_the_labels(adopted: sf.Model, frames: list[Atoms]):
    """Two compositions: least squares leaves no mean error of either in the training set."""
    potential = adopted.potentials[0]
    alone, split = potential.with_head(DeterministicConfig()), adopted.record.split
    assert split is not None
    for formula in ("OH2", "C2OH6"):
        own = [frames[index] for index in split.train if str(frames[index].symbols) == formula]
        misses = [a.get_potential_energy() - p.energy for a, p in zip(own, alone.predict(own), strict=True)]
        assert len(own) > 5
        assert np.mean(misses) == pytest.approx(0.0, abs=1e-6)
    assert np.log2(potential.statistics.scale) == round(np.log2(potential.statistics.scale))


def test_its_errors_are_lower_than_those_of_the_network(adopted: sf.Model):
    beside = adopted.record.adopted
    assert beside is not None
    assert beside.structures == "held-out"
    assert beside.adopted["forces_mae"] < 0.7 * beside.host["forces_mae"]
    assert 0.4 < beside.adopted["forces_coverage_68"] < 0.95


@pytest.mark.parametrize(("n_held_out", "n_test"), [(12, 0), (22, 0), (22, 6)])
def test_structures_are_predicted_once_with_force_std(
    n_held_out: int, n_test: int, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch
):
    """For a large network that takes minutes: calibration and table share it. σ may be raw or calibrated."""
    compute, n_predicted = Potential.compute, 0

    def counted(self: Potential, graph: AtomicGraph, forces_std: str, **options: bool) -> Prediction:
        nonlocal n_predicted
        n_predicted += graph.n_structures if self.kind is not None and forces_std != "none" else 0
        return compute(self, graph, forces_std, **options)

    monkeypatch.setattr(Potential, "compute", counted)
    sizes = {"n_train": 12, "n_validation": n_held_out, "n_test": n_test}
    overrides = [f"data.split.{name}={size}" for name, size in sizes.items()]
    model = sf.adopt(SOURCE, frames, trust=True, overrides=overrides)
    assert n_predicted == n_held_out + n_test
    split = model.record.split
    dataset = GraphDataset(label_structures(frames).subset(split.test or split.validation), model.cutoff, model.dtype)
    for key, value in summarize(evaluate(model, dataset, name="again")).items():
        if key != "seconds_per_structure":
            assert model.record.adopted.adopted[key] == pytest.approx(value)


def test_mean_backbone_keeps_energies_to_the_bit(host: Potential, frames: list[Atoms]):
    kept = sf.adopt(SOURCE, frames, trust=True, overrides=["model.head.mean=backbone"])
    references = kept.potentials[0].statistics.reference_energies
    for atoms in frames[:4]:
        shift = sum(references[z] for z in atoms.numbers) - sum(toy_host.REFERENCES[z] for z in atoms.numbers)
        found, own = kept.predict([atoms])[0], host.predict([atoms])[0]
        assert found.energy - shift == pytest.approx(own.energy, abs=1e-9)
        np.testing.assert_allclose(found.forces, own.forces, rtol=0, atol=1e-12)


def test_folds_and_time_are_for_networks_that_have_not_seen_the_labels(host: Potential, frames: list[Atoms]):
    """Of a network trained on its labels, errors on them say nothing about others."""
    dataset = GraphDataset(label_structures(frames), host.cutoff, torch.float64)
    trained = Case(backbone=SchNetConfig(cutoff=host.cutoff), head=DeterministicConfig()).build().potentials[0]
    seen, unseen = (LabelledObservations(potential, dataset) for potential in (trained, host))
    assert (seen.unseen_by_backbone, unseen.unseen_by_backbone) == (False, True)
    assert seen.seconds_per_work() is None
    assert 0.0 < (unseen.seconds_per_work() or 0.0) < 1.0


def test_heads_share_the_network(host: Potential):
    other = host.with_head(LNKConfig())
    assert other.backbone is host.backbone


def test_files_hold_weights_and_need_no_trust(adopted: sf.Model, frames: list[Atoms], tmp_path: Path):
    path = tmp_path / "adopted.sigmaff"
    sf.save(adopted, path)
    loaded = sf.load(path)
    for before, after in zip(adopted.predict(frames[:3]), loaded.predict(frames[:3]), strict=True):
        assert (before.energy, before.energy_std) == (after.energy, after.energy_std)
        np.testing.assert_array_equal(before.forces_std, after.forces_std)
    backbone = read_header(path).config.backbone
    assert isinstance(backbone, HostConfig)
    assert backbone.origin.licence == "MIT"
    text = succeed("info", path)
    assert SOURCE in text
    assert "MIT" in text


def test_a_network_that_is_not_installed_is_named(adopted: sf.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "adopted.sigmaff"
    sf.save(adopted, path)
    monkeypatch.delitem(toy_host.ADAPTERS, "toy")
    with pytest.raises((ConfigError, ModelFileError), match="toy"):
        sf.load(path)


def test_a_description_without_weights_is_not_a_model(adopted: sf.Model, frames: list[Atoms], tmp_path: Path):
    ase.io.write(tmp_path / "data.extxyz", frames)
    settings = {
        "data": {"source": {"path": str(tmp_path / "data.extxyz")}, "split": {"n_train": 20, "n_validation": 10}},
        "model": {"backbone": toy_host.toy_config().model_dump(mode="json")},
        "output": str(tmp_path / "run"),
    }
    with pytest.raises(ConfigError, match="without its weights"):
        sf.train(settings)


def test_a_run_adopts(frames: list[Atoms], tmp_path: Path):
    """In YAML, with the data and split of a run; the second call finds it finished."""
    ase.io.write(tmp_path / "data.extxyz", frames)
    split = {"kind": "random", "n_train": 20, "n_validation": 12}
    adopting = {"adopt": SOURCE, "trust": True}
    config = write_config(
        tmp_path / "run.yaml", ("model.backbone", adopting), ("model.head", {"name": "lnk"}), ("data.split", split)
    )
    succeed("train", config, *TRUSTED)
    header = read_header(tmp_path / "run/model.sigmaff")
    assert header.record.adopted is not None
    assert header.record.adopted.structures == "test"
    assert "finished" in succeed("train", config, *TRUSTED)


SOLVED = ("backbone", "fixed_lnk", "llpr", "shallow_ensemble", "latent_knn", "latent_mixture")
TRAINED = ("ensemble", "mc_dropout", "evidential", "svgp", "svgp_dkl", "lnk", "mcd_lnk", "fixed_lnk_variational")


def test_methods_that_are_solved_are_compared(frames: list[Atoms], tmp_path: Path):
    """The others are left out with their reason. The second call finds all finished."""
    ase.io.write(tmp_path / "data.extxyz", frames)
    config = write_config(
        tmp_path / "run.yaml",
        ("model", {"backbone": {"adopt": SOURCE, "trust": True}, "head": {"name": "lnk"}}),
        ("data.split", {"kind": "random", "n_train": 24, "n_validation": 6}),
    )
    named = [text for name in (*SOLVED, *TRAINED) for text in ("--methods", name)]
    assert "left out" in succeed("compare", config, *named, *TRUSTED)
    results = {result["method"]: result for result in json.loads((tmp_path / "run/comparison.json").read_text())}
    assert results.keys() == {*SOLVED, *TRAINED}
    for name in SOLVED:
        assert results[name]["failed"] is None
        assert results[name]["training_seconds"] == 0
        assert results[name]["record"]["metrics"]["forces_mae"] > 0
    for name in TRAINED:
        assert "an adopted network is not" in results[name]["failed"]
        assert not (tmp_path / "run" / name).exists()
    alone, llpr = (sf.load(tmp_path / f"run/{name}/model.sigmaff") for name in ("backbone", "llpr"))
    assert alone.kind is None
    np.testing.assert_allclose(llpr.predict(frames[0]).forces, alone.predict(frames[0]).forces, rtol=0, atol=1e-9)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sigmaff")}
    succeed("compare", config, *named, *TRUSTED)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sigmaff")} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"head": {"name": "evidential"}}}, "not trained"),
        ({"ensemble": {"size": 2}}, "neither with ensemble"),
        ({"model": {"backbone": {"adopt": "nonsense", "trust": True}}}, "adapter:source"),
        ({"model": {"backbone": {"adopt": "unknown:x"}}}, "no adapter 'unknown'"),
        ({"model": {"backbone": {"adopt": SOURCE}}}, "trust is needed"),
    ],
)
def test_what_cannot_be_adopted_is_told(change: dict, message: str, frames: list[Atoms], tmp_path: Path):
    ase.io.write(tmp_path / "data.extxyz", frames)
    settings = {
        "data": {"source": {"path": str(tmp_path / "data.extxyz")}, "split": {"n_train": 20, "n_validation": 10}},
        "model": {"backbone": {"adopt": SOURCE, "trust": True}},
        "output": str(tmp_path / "run"),
    }
    for key, value in change.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=message):
        sf.train(settings)


def test_elements_that_the_network_does_not_know_are_named(frames: list[Atoms]):
    strange = Atoms("HCl", positions=[[0, 0, 0], [0, 0, 1.3]])
    with pytest.raises(DataError, match=r"Cl.*adopted network does not know"):
        sf.adopt(SOURCE, [*frames, *[labelled(strange, -1.0, np.zeros((2, 3)))] * 12], trust=True)


@pytest.mark.parametrize("n", [6, 30, 60, 99, 100, 1000])
def test_from_sixty_labels_on_sigma_can_be_calibrated(n: int):
    sizes = _sizes(n)
    assert sum(sizes.values()) == n
    assert (sizes["n_validation"] >= MIN_STRUCTURES) == (n >= 60)
    assert sizes["n_train"] >= sizes["n_validation"] > 0


def test_too_few_structures(frames: list[Atoms]):
    with pytest.raises(DataError, match="takes 6"):
        sf.adopt(SOURCE, frames[:5], trust=True)


def test_the_command(frames: list[Atoms], tmp_path: Path):
    data, output = tmp_path / "mine.extxyz", tmp_path / "mine.sigmaff"
    ase.io.write(data, frames)
    assert "trust is needed" in fail("adopt", SOURCE, data, "-o", output)
    text = succeed("adopt", SOURCE, data, "-o", output, "--trust")
    assert "network alone" in text
    assert "adopted" in text
    assert "exists already" in fail("adopt", SOURCE, data, "-o", output, "--trust")
    assert text.count("not calibrated") == 1  # 13 held-out structures
    succeed("evaluate", output, data)
    beside = read_header(output).record.adopted
    assert f"network alone {beside.host['forces_mae']:.4g} eV/Å" in " ".join(succeed("info", output).split())
    source = read_header(output).record.config["data"]["source"]
    assert DataSource.model_validate(source).path == data


def test_adapters_of_others_are_found_by_their_entry_point(monkeypatch: pytest.MonkeyPatch):
    from importlib.metadata import EntryPoint, EntryPoints

    from sigmaff.backbones import hosts

    points = {"mine": "toy_host:ToyHost", "bad": "json:loads"}
    mine = EntryPoints([EntryPoint(name, value, hosts.GROUP) for name, value in points.items()])
    monkeypatch.setattr(hosts, "entry_points", lambda group: mine.select(group=group))
    assert issubclass(type(build_host(read_host("mine:x", trust=True).config)), Host)
    assert "mine" in hosts.known_adapters()
    with pytest.raises(ConfigError, match="subclass"):
        read_host("bad:x")
