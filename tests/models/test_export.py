"""Export: a program computes what its potential does, is refused where it does not fit, and never runs untrusted."""

import json
import re
import shutil
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

import sigmaff as sf
from calculator_case import BACKBONE, STATISTICS, fill_posterior, water_crystal
from cli_case import sigmaff
from contract import BACKBONES, CRYSTAL, ETHANOL, LNK, WATER, Case, displaced, graph_of
from sigmaff.backbones import BackboneConfig
from sigmaff.errors import ConfigError, ModelFileError, SigmaffError
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.heads import DeterministicConfig, HeadConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig, export
from sigmaff.models.prediction import Calibration, Calibrations, Prediction
from sigmaff.models.program import Program, Topology, function_of, inputs_of
from sigmaff.progress import Collecting

FAR = Atoms("O", positions=[[30.0, 0.0, 0.0]])
STRUCTURES = (ETHANOL, CRYSTAL, displaced(ETHANOL + WATER, 2), WATER, WATER + FAR)
NAMES = [f"{config.name}-{getattr(config, 'l_max', '')}" for config in BACKBONES]
SQUEEZED = Atoms("OH", positions=[[0.0, 0.0, 0.0], [0.0, 0.0, 0.45]]) + Atoms("H", positions=[[0.9, 0.0, -0.2]])
"""Two atoms within the range of the repulsion."""


def inputs(graph: AtomicGraph, potential: Potential) -> tuple[torch.Tensor, ...]:
    return inputs_of(potential.prepare(graph), Topology.of(graph, potential.elements).layout)


def assert_same(found: Prediction, expected: Prediction, *, rtol: float, n_structures: int) -> None:
    """All that both predict, relative to the largest value; without the empty structure of a program."""
    compared = set()
    for item in fields(Prediction):
        one, other = getattr(found, item.name), getattr(expected, item.name)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            one = one[:n_structures] if item.metadata["per"] == "structure" else one
            assert torch.equal(one.isnan(), other.isnan()), item.name
            difference = (one.double() - other.double()).nan_to_num().abs().max()
            size = other.double().nan_to_num().abs().max().clamp(min=1e-9)
            assert difference <= rtol * size, (item.name, float(difference))
            compared.add(item.name)
    assert {"energy", "forces"} <= compared


def uncompiled(potential: Potential, graph: AtomicGraph) -> Program:
    """A program whose parts are functions of Python."""
    functions, outputs = {}, {}
    with torch.no_grad():
        for part in export.parts_of(potential, forces_std=True):
            functions[part], outputs[part] = function_of(potential, part)
            if part != "pull":
                functions[part](*inputs(graph, potential))  # fills the names
    return Program(functions, outputs)


@pytest.mark.parametrize(
    "head", [DeterministicConfig(), LNK, LNKConfig(kernel="rbf+linear", n_inducing=12, n_samples=16)]
)
@pytest.mark.parametrize("backbone", BACKBONES, ids=NAMES)
def test_the_way_for_compiled_code_gives_the_same(backbone: BackboneConfig, head: HeadConfig):
    """Without a compiler: layouts in place of scattering, vectors in place of positions, all pairs in the repulsion."""
    potential = Case(backbone=backbone, head=head).build()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in potential.backbone.parameters():  # biases begin with 0, and would not be missed
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    graph = potential.prepare(graph_of(*STRUCTURES, cutoff=potential.cutoff))
    program = uncompiled(potential, graph)
    samples = potential.backbone.compiles_samples and potential.head.force_std_methods
    for way in ("none", "sampled") if samples else ("none",):
        with torch.no_grad():
            found = program.predict(potential, graph, way, stress_std=False)
            expected = potential.compute(graph, way, stress_std=False, unseen_elements=False)
        assert_same(found, expected, rtol=1e-9, n_structures=graph.n_structures)
        assert found.provenance == expected.provenance


def trained_like(head: HeadConfig) -> Potential:
    """float32, with a repulsion, unseen surroundings that count, and calibrations."""
    torch.manual_seed(3)
    shortest = [(1, 1, 1.5), (1, 6, 1.0), (1, 8, 0.9), (6, 6, 1.4), (6, 8, 1.3), (8, 8, 2.0)]
    statistics = replace(STATISTICS, shortest_distances=tuple(shortest))
    potential = Potential(PotentialConfig(backbone=BACKBONE, head=head), statistics)
    fill_posterior(potential)
    with torch.no_grad():
        potential.head.unseen.prior.fill_(2.0)
        potential.head.unseen.reach.fill_(3.0)
    scaled = Calibration(method="scalar", scale=1.7, n_samples=100)
    potential.calibrations = Calibrations(energy=scaled, forces=scaled)
    return potential.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory):
    """The settings and the cache of a user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def artefact(home: Path) -> tuple[Potential, Path]:
    """Without σ of forces, which takes as long to compile again."""
    potential, path = trained_like(LNKConfig(n_samples=16)), home / "model.pt2"
    made = export.export(potential, path, forces_std=False)
    assert set(made.errors) >= {"energy", "forces", "stress", "energy_std", "unseen_std"}
    assert made.table_error <= 1e-6
    return potential, path


def test_an_artefact_is_trusted_before_it_is_there(home: Path, monkeypatch: pytest.MonkeyPatch):
    """So that none is left that its maker may not use, wherever a kill falls."""
    potential, path = trained_like(LNKConfig(n_samples=16)), home / "killed.pt2"
    program = uncompiled(potential, potential.prepare(export.example_graph(potential)))
    monkeypatch.setattr(export, "_compiled", lambda _, part: ([__file__], tuple(program._outputs[part])))
    monkeypatch.setattr(export, "_opened", lambda *_: program)
    monkeypatch.setattr(export, "trust_file", killed)
    with pytest.raises(KeyboardInterrupt):
        export.export(potential, path, forces_std=False)
    assert not path.exists()


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def frames(*structures: Atoms) -> AtomicGraph:
    return batch_graphs([build_graph(atoms, BACKBONE.cutoff) for atoms in structures])


def ethanol(seed: int) -> Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.1, seed=seed)
    return atoms


BATCHES = {
    "one": [ethanol(1)],
    "many": [ethanol(seed) for seed in range(2, 9)],
    "sizes": [ethanol(1), molecule("H2O"), molecule("CH3COCH3"), ethanol(2) + molecule("H2O")],
    "periodic": [water_crystal(), water_crystal()],
    "mixed": [water_crystal(), ethanol(3)],
    "repulsion": [SQUEEZED, ethanol(4)],
    "broken": [Atoms(ethanol(5).numbers, ethanol(5).positions * 1.5)],
}


@pytest.mark.parametrize("batch", BATCHES)
def test_a_program_equals_its_model(artefact: tuple[Potential, Path], batch: str):
    potential, path = artefact
    graph = frames(*BATCHES[batch])
    found, expected = (one.predict(graph, forces_std="none") for one in (sf.load(path), potential))
    assert_same(found, expected, rtol=2e-5, n_structures=graph.n_structures)
    assert found.provenance == expected.provenance


@pytest.mark.slow
def test_a_program_of_force_std_equals_its_model(home: Path):
    potential, path = trained_like(LNKConfig(n_samples=16)), home / "with_forces_std.pt2"
    assert "forces_std" in export.export(potential, path).errors
    model = sf.load(path)
    for batch in BATCHES.values():
        graph = frames(*batch)
        found, expected = (one.predict(graph, forces_std="sampled", stress_std=False) for one in (model, potential))
        assert_same(found, expected, rtol=2e-5, n_structures=graph.n_structures)
        assert found.provenance == expected.provenance


def test_a_program_is_what_computes(artefact: tuple[Potential, Path], monkeypatch: pytest.MonkeyPatch):
    """Without its network a model with a program still predicts; what has no part needs the network."""
    model, graph = sf.load(artefact[1]), frames(ethanol(1))
    monkeypatch.setattr(Potential, "linear_response", None)
    monkeypatch.setattr(Potential, "derivatives", None)
    model.predict(graph, forces_std="none")
    for way in ("sampled", "exact"):
        with pytest.raises(TypeError):
            model.predict(graph, forces_std=way)


def test_what_has_no_part_is_computed_as_before(artefact: tuple[Potential, Path]):
    """Exact force σ, stress σ, an atom alone, and elements that the model has not seen."""
    potential, path = artefact
    model = sf.load(path)
    for graph, way, stress_std in (
        (frames(ethanol(1)), "exact", False),
        (frames(water_crystal()), "sampled", True),
        (frames(Atoms("O")), "none", False),
        (frames(molecule("H2O")), "auto", False),
    ):
        found = model.predict(graph, forces_std=way, stress_std=stress_std)
        expected = potential.predict(graph, forces_std=way, stress_std=stress_std)
        assert_same(found, expected, rtol=1e-12, n_structures=graph.n_structures)
    foreign = frames(molecule("CH3Cl"))
    assert model.predict_raw(foreign, unseen_elements=True).energy.isnan().all()


def test_pairs_may_change_between_calls(artefact: tuple[Potential, Path]):
    """The layout is kept for the same pairs, and not for others of the same number."""
    potential, path = artefact
    model, graph = sf.load(path), frames(ethanol(1))
    model.predict(graph, forces_std="none")
    order = torch.randperm(graph.pair_index.shape[1])
    other = AtomicGraph(
        **{**vars(graph), "pair_index": graph.pair_index[:, order].flip(0), "pair_shift": -graph.pair_shift[order]}
    )
    found, expected = (one.predict(other, forces_std="none") for one in (model, potential))
    assert_same(found, expected, rtol=2e-5, n_structures=1)


def test_strided_inputs(artefact: tuple[Potential, Path]):
    """Machine code does not look at strides."""
    potential, path = artefact
    graph = frames(ethanol(1), ethanol(2))
    turned = AtomicGraph(**{**vars(graph), "pair_index": graph.pair_index.T.contiguous().T})
    assert not turned.pair_index.is_contiguous()
    found = sf.load(path).predict(turned, forces_std="none")
    assert_same(found, potential.predict(graph, forces_std="none"), rtol=2e-5, n_structures=2)


def test_calculator_and_structures(artefact: tuple[Potential, Path]):
    potential, path = artefact
    atoms = ethanol(6)
    atoms.calc = sf.Calculator(path)
    expected = potential.predict(ethanol(6))
    np.testing.assert_allclose(atoms.get_forces(), expected.forces, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(atoms.calc.results["energy_uncertainty"], expected.energy_std, rtol=1e-4)
    assert atoms.get_potential_energy() == pytest.approx(expected.energy, abs=1e-4)


def test_forces_are_the_derivative_of_the_energy(artefact: tuple[Potential, Path]):
    """By central differences, with the noise of single precision."""
    model, atoms, step = sf.load(artefact[1]), ethanol(7), 2e-2
    forces = model.predict(atoms, forces_std="none").forces
    for atom, axis in ((0, 0), (4, 1), (8, 2)):
        energies = []
        for sign in (2, 1, -1, -2):
            moved = atoms.copy()
            moved.positions[atom, axis] += sign * step
            energies.append(model.predict(moved, forces_std="none").energy)
        slope = (-energies[0] + 8 * energies[1] - 8 * energies[2] + energies[3]) / (12 * step)
        assert -slope == pytest.approx(forces[atom, axis], abs=2e-3 * np.abs(forces).max())


def test_what_the_documents_say(artefact: tuple[Potential, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scripts on artefacts run."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(artefact[1], "model.pt2")
    ase.io.write("in.extxyz", ethanol(1))
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    scripts = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert scripts
    for script in scripts:
        exec(compile(script, "performance.md", "exec"), {})


def test_the_command(artefact: tuple[Potential, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It exports what the file holds, with and without force σ, and says how close the program is."""
    potential, path = artefact
    sf.save(potential, tmp_path / "model.sigmaff")
    given: list[bool] = []

    def exported(model: Potential, to: Path, *, forces_std: bool, **_: object) -> export.Description:
        given.append(forces_std)
        shutil.copy(path, to)
        return export._read_description(path)

    monkeypatch.setattr(export, "export", exported)
    outcome = sigmaff("export", str(tmp_path / "model.sigmaff"), str(tmp_path / "model.pt2"))
    assert outcome.code == 0, outcome.err
    assert "largest difference to the model" in outcome.out
    refused = sigmaff("export", str(tmp_path / "model.sigmaff"), str(tmp_path / "model.pt2"), "--energy-only")
    assert refused.code == 1
    assert "exists already" in refused.err
    sigmaff("export", str(tmp_path / "model.sigmaff"), str(tmp_path / "model.pt2"), "--energy-only", "--force")
    assert given == [True, False]


def test_information_needs_no_trust(artefact: tuple[Potential, Path], tmp_path: Path):
    """The model file inside is read, and no machine code runs."""
    outcome = sigmaff("info", str(copied(artefact[1], tmp_path)))
    assert outcome.code == 0, outcome.err
    assert "schnet" in outcome.out


def copied(path: Path, folder: Path, **changes: object) -> Path:
    """The artefact with another description."""
    other = folder / "other.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == export.DESCRIPTION:
                content = json.dumps(json.loads(content) | changes).encode()
            target.writestr(name, content)
    return other


def test_machine_code_of_others_does_not_run(artefact: tuple[Potential, Path], tmp_path: Path):
    """Neither made by this user nor trusted: one changed byte is another file."""
    other = copied(artefact[1], tmp_path)
    with pytest.raises(ConfigError, match="machine code"):
        sf.load(other)
    with pytest.raises(ConfigError, match="trust"):
        sf.Calculator(other)
    assert sf.load(other, trust=True).program is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch_version": "2.6.0"}, "made for torch 2.6.0; this is"),
        ({"processor": ["avx9"]}, "a processor with avx9"),
        ({"artefact_version": 2, "library_version": "9.0"}, "of sigmaff 9.0"),
        ({"surprise": 1}, "damaged"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    artefact: tuple[Potential, Path], tmp_path: Path, changes: dict[str, object], message: str
):
    with pytest.raises(ModelFileError, match=message):
        sf.load(copied(artefact[1], tmp_path, **changes), trust=True)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
def test_other_files_are_refused(home: Path, tmp_path: Path, content: bytes):
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not an artefact"):
        sf.load(path, trust=True)
    with pytest.raises(ModelFileError, match="no such file"):
        sf.load(tmp_path / "missing.pt2")


def test_a_wrong_program_is_not_written(
    artefact: tuple[Potential, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The compiler is checked before anything is written: here it compiled another model."""
    _, path = artefact
    code = {part: (["unused"], names) for part, names in export._read_description(path).outputs.items()}
    monkeypatch.setattr(export, "_compiled", lambda _, part: code[part])
    monkeypatch.setattr("torch._inductor.package.package_aoti", lambda *_: None)
    program = sf.load(path).program
    monkeypatch.setattr(export, "_opened", lambda _, outputs: program)
    other = trained_like(LNKConfig(n_samples=16))
    with torch.no_grad():
        other.backbone.output.weight.mul_(1.01)
    with pytest.raises(SigmaffError, match="compiled program is wrong"):
        export.export(other, tmp_path / "wrong.pt2", forces_std=False)
    assert not (tmp_path / "wrong.pt2").exists()


def test_what_cannot_be_compiled(home: Path, tmp_path: Path):
    pair = Case(backbone=BACKBONES[0], head=DeterministicConfig(), wrapper="ensemble").build()
    with pytest.raises(ConfigError, match="single potential"):
        export.export(pair, tmp_path / "ensemble.pt2")
    with pytest.raises(ConfigError, match="ends with"):
        export.export(trained_like(LNK), tmp_path / "model.sigmaff")
    listener = Collecting()
    assert export.compiled(pair, listener=listener) is pair
    assert "not compiled: only a single potential" in listener.texts[0]


def test_without_a_compiler_the_model_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such program: c++")

    monkeypatch.setattr(export, "traced", fail)
    monkeypatch.setattr(export.shutil, "which", lambda _: None)
    potential, listener = trained_like(LNKConfig(n_samples=16, kernel="linear", mean="backbone")), Collecting()
    model = export.compiled(potential, listener=listener)
    assert "no C++ compiler was found; install g++" in listener.texts[0]
    assert model.program is None
    model.predict(frames(ethanol(1)))


def test_a_compiled_model_is_kept_in_the_cache(artefact: tuple[Potential, Path], monkeypatch: pytest.MonkeyPatch):
    """By content: the same model is not compiled again, another one is; a changed file in the cache is not run."""
    _, path = artefact
    made: list[Path] = []

    def copy_artefact(model: Potential, to: Path, **_: object) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
        export.trust_file(to)
        made.append(to)

    monkeypatch.setattr(export, "export", copy_artefact)
    assert export.compiled(trained_like(LNKConfig(n_samples=16))).program is not None
    assert export.compiled(trained_like(LNKConfig(n_samples=16))).program is not None
    assert len(made) == 1
    export.compiled(trained_like(LNKConfig(n_samples=17)))
    assert len(made) == 2
    made[0].write_bytes(made[0].read_bytes() + b"more")
    export.compiled(trained_like(LNKConfig(n_samples=16)))
    assert len(made) == 3


@pytest.mark.slow
@pytest.mark.parametrize("backbone", BACKBONES[1:3], ids=NAMES[1:3])
def test_traced_programs_take_any_numbers_of_atoms(backbone: BackboneConfig):
    """Of the networks that automatic differentiation serves; the program as operations, not compiled."""
    potential = Case(backbone=backbone, head=LNK).build().requires_grad_(False)
    program, names = export.traced(potential, "energy")
    for structures in ((ETHANOL,), (CRYSTAL, displaced(ETHANOL + WATER, 2))):
        graph = graph_of(*structures, cutoff=potential.cutoff)
        with torch.no_grad():
            values = program.module()(*inputs(graph, potential))
            expected = potential.compute(graph, "none", stress_std=False, unseen_elements=False)
        found = Prediction(**dict(zip(names, values, strict=True)), provenance=expected.provenance)
        assert_same(found, expected, rtol=1e-9, n_structures=graph.n_structures)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", BACKBONES[1:], ids=NAMES[1:])
def test_compiled_programs_of_other_networks(home: Path, tmp_path: Path, backbone: BackboneConfig):
    potential = Case(backbone=backbone, head=LNK).build().requires_grad_(False)
    export.export(potential, tmp_path / "model.pt2")
    model, graph = sf.load(tmp_path / "model.pt2"), graph_of(*STRUCTURES, cutoff=potential.cutoff)
    for way in ("none", "sampled"):
        found, expected = (one.predict(graph, forces_std=way, stress_std=False) for one in (model, potential))
        assert_same(found, expected, rtol=1e-8, n_structures=graph.n_structures)
