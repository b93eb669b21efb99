"""The model file: the same model back, and from any other bytes an error of one kind, fast and cheap."""

import ast
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import sigmaff
from calculator_case import LNK_CONFIG, build_potential, ethanol
from contract import BACKBONES, Case
from sigmaff import load, save
from sigmaff.errors import ConfigError, ModelFileError, SigmaffError
from sigmaff.files import output_lock
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.models import Potential
from sigmaff.models.file import read_header
from sigmaff.models.force_growth import ForceGrowth
from sigmaff.models.integrity import opened, sealed
from sigmaff.models.prediction import Calibration
from sigmaff.models.record import RunRecord

Content = dict[str, Any]
Tensors = dict[str, torch.Tensor]

STUDENT = Calibration(method="quantile", scale=2.5, n_samples=180, n_structures=30, scale_error=0.3, dof=7.5)
ISOTONIC = Calibration(
    method="isotonic",
    scale=0.7,
    n_samples=30,
    coverages=(0.0, 0.4, 0.97),
    multipliers=(0.0, 0.61, 2.3),
    growth=ForceGrowth(isotropy=0.75, exponent=0.4, typical=0.002),
)


def build(dtype: torch.dtype = torch.float32, *, distance_aware: bool = True) -> Potential:
    potential = build_potential(LNK_CONFIG.model_copy(update={"distance_aware": distance_aware}), dtype)
    potential.energy_calibration = Calibration(method="quantile", scale=1 / 3, n_samples=20)
    potential.forces_calibration = ISOTONIC
    potential.stress_calibration = STUDENT
    record = {"note": "σ in Å", "split": {"train": [0, 1]}, "value": 0.1 + 0.2, "none": None}
    potential.record = RunRecord.model_validate(record)
    return potential


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.sigmaff"
    save(build(), path)
    return path


def unpack(path: Path) -> tuple[Content, Tensors]:
    with safe_open(path, framework="pt") as file:
        return json.loads(opened(file.metadata()["sigmaff"])[0]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def pack(path: Path, content: Content | str, tensors: Tensors) -> Path:
    """Write a file whose seal is right, whatever it holds."""
    text = content if isinstance(content, str) else sealed(json.dumps(content), tensors)
    save_file(tensors, path, metadata={"sigmaff": text})
    return path


def refused(path: Path) -> str:
    """The message with which a file is refused: soon, and without taking memory on its word."""
    began, memory = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert time.perf_counter() - began < 3.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000  # kB
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


# --- there and back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    potential = build(dtype)
    save(potential, tmp_path / "a.sigmaff")
    again = load(tmp_path / "a.sigmaff")
    assert again.dtype == dtype
    assert not again.training
    before, after = potential.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(value.dtype == after[name].dtype and torch.equal(value, after[name]) for name, value in before.items())
    for name in ("config", "statistics", "calibrations", "record"):
        assert getattr(again, name) == getattr(potential, name)
    graph = build_graph(ethanol(), potential.cutoff, dtype)
    for how in ("exact", "sampled"):
        expected, found = potential.predict(graph, forces_std=how), again.predict(graph, forces_std=how)
        for name in ("energy", "forces", "node_energy", "energy_std", "forces_std", "node_energy_std"):
            assert torch.equal(getattr(expected, name), getattr(found, name)), name


def test_saving_again_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    save(load(model), tmp_path / "again.sigmaff")
    assert (tmp_path / "again.sigmaff").read_bytes() == model.read_bytes()


def test_without_std(tmp_path: Path) -> None:
    save(build_potential(DeterministicConfig()), tmp_path / "a.sigmaff")
    again = load(tmp_path / "a.sigmaff")
    assert again.energy_calibration is None
    assert again.predict(build_graph(ethanol(), again.cutoff)).energy_std is None


def test_an_existing_file_is_kept_unless_forced(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.sigmaff"
    path.write_text("precious")
    with pytest.raises(SigmaffError, match="exists already"):
        save(load(model), path)
    assert path.read_text() == "precious"
    save(load(model), path, force=True)
    assert path.read_bytes() == model.read_bytes()


def test_the_header_alone(model: Path) -> None:
    header = read_header(model)
    assert header.config == build().config
    assert header.forces_calibration == ISOTONIC
    assert header.library_version == sigmaff.__version__


def test_a_model_is_independent_of_its_file(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.sigmaff"
    path.write_bytes(model.read_bytes())
    potential = load(path)
    before = {name: value.clone() for name, value in potential.state_dict().items()}
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(value, before[name]) for name, value in potential.state_dict().items())


def test_a_device_that_is_not_there(model: Path) -> None:
    with pytest.raises(ConfigError, match="the device 'warp' cannot be used"):
        load(model, device="warp")
    with pytest.raises(ConfigError, match="the device 'meta' cannot be used"):
        load(model, device="meta")


# --- damaged bytes


def test_cut_short(model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    path = tmp_path / "cut.sigmaff"
    lengths = np.random.default_rng(0).integers(0, len(content), 20)
    for length in [0, 1, 7, 8, 9, len(content) - 1, *lengths.tolist()]:
        path.write_bytes(content[:length])
        refused(path)
    path.write_bytes(content + b"\0")
    refused(path)


def test_changed_bytes(model: Path, tmp_path: Path) -> None:
    """Each is noticed, in the description and in the tensors, unless the numbers stay what they are."""
    content, expected = model.read_bytes(), load(model).state_dict()
    header_length = int.from_bytes(content[:8], "little")
    generator = np.random.default_rng(1)
    path = tmp_path / "changed.sigmaff"
    n_refused = 0
    places = [*range(8), *generator.integers(8, 8 + header_length, 60), *generator.integers(8, len(content), 60)]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        try:
            found = load(path).state_dict()
        except ModelFileError:
            n_refused += 1
        else:  # white space at the end of the header, or the name of a key that is not ours
            assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert n_refused >= len(places) - 2


def test_settings_that_are_missing_or_appear_twice(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    del content["config"]["backbone"]["cutoff"]
    assert "lacks config.backbone.cutoff" in refused(pack(tmp_path / "a.sigmaff", content, tensors))
    content, _ = unpack(model)
    scale = content["statistics"]["scale"]
    text = json.dumps(content).replace(f'"scale": {scale}', f'"scale": {scale}, "scale": {2 * scale}', 1)
    assert "'scale' appears twice" in refused(pack(tmp_path / "b.sigmaff", sealed(text, tensors), tensors))


def test_a_file_without_its_seal(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    text = refused(pack(tmp_path / "a.sigmaff", json.dumps(content), tensors))
    assert "its content is not what was written" in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a text\n",
        b"{}",
        b"\x80\x04K\x01.",
        b"\xff" * 100,
        (2**62).to_bytes(8, "little") + b"{}",
        b"\2" + bytes(7) + b"{}",
    ],
)
def test_files_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.sigmaff"
    path.write_bytes(content)
    refused(path)


def test_files_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "a.sigmaff"
    torch.save({"weights": torch.zeros(3)}, path)
    assert "not a sigmaff model" in refused(path)
    save_file({"weights": torch.zeros(3)}, path)
    assert "safetensors file of another program" in refused(path)
    save_file({"weights": torch.zeros(3)}, path, metadata={"format": "pt"})
    assert "safetensors file of another program" in refused(path)
    assert "no such model file" in refused(tmp_path)
    assert "no such model file" in refused(tmp_path / "missing")


# --- descriptions that lie


def change(*keys: str, value: Any) -> Callable[[Content], None]:
    def apply(content: Content) -> None:
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return apply


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "apply",
    [
        change("format", value="other"),
        change("format_version", value=0),
        change("format_version", value=-1),
        change("format_version", value="one"),
        change("format_version", value=None),
        change("unknown", value=1),
        change("record", value=[]),
        change("config", "backbone", "n_hidden", value=10**9),
        change("config", "backbone", "n_hidden", value=8192),
        change("config", "backbone", "n_hidden", value=-16),
        change("config", "backbone", "n_interactions", value=10**9),
        change("config", "backbone", "n_gaussians", value=8192),
        change("config", "backbone", "cutoff", value=NAN),
        change("config", "backbone", "cutoff", value=INFINITY),
        change("config", "backbone", "cutoff", value=-1.0),
        change("config", "backbone", "name", value="os.system"),
        change("config", "head", "n_inducing", value=10**12),
        change("config", "head", "n_inducing", value=20_000),
        change("config", "head", "n_samples", value=10**9),
        change("config", "head", value={"name": "lnk", "n_samples": 1024, "n_frequencies": 8192, "n_inducing": 20_000}),
        change("config", "head", value={"name": "pickle"}),
        change("statistics", "scale", value=-1.0),
        change("statistics", "scale", value=0.0),
        change("statistics", "scale", value=NAN),
        change("statistics", "scale", value=INFINITY),
        change("statistics", "mean_neighbors", value=NAN),
        change("statistics", "mean_neighbors", value=-1.0),
        change("statistics", "elements", value=[]),
        change("statistics", "elements", value=[8, 6, 1]),
        change("statistics", "elements", value=[1, 6, 6, 8]),
        change("statistics", "elements", value=[0, 6, 8]),
        change("statistics", "elements", value=[-1, 6, 8]),
        change("statistics", "elements", value=[1, 6, 8, 200]),
        change("statistics", "elements", value=[1, 6, 8, 10**30]),
        change("statistics", "elements", value=[1, 6]),
        change("statistics", "reference_energies", value={"1": 0.0, "6": 0.0}),
        change("statistics", "reference_energies", value={"1": 0.0, "6": 0.0, "8": NAN}),
        change("energy_calibration", "scale", value=-1.0),
        change("energy_calibration", "scale", value=0.0),
        change("energy_calibration", "scale", value=NAN),
        change("energy_calibration", "n_samples", value=-1),
        change("stress_calibration", "scale", value=-1.0),
        change("stress_calibration", "dof", value=0.5),
        change("forces_calibration", "coverages", value=[0.0, 0.9, 0.4]),
        change("forces_calibration", "coverages", value=[0.0, 0.4, NAN]),
        change("forces_calibration", "coverages", value=[0.0, 0.4, 1.5]),
        change("forces_calibration", "coverages", value=[0.0, 0.4]),
        change("forces_calibration", "coverages", value=None),
        change("forces_calibration", "multipliers", value=[0.0, 3.0, 2.0]),
        change("forces_calibration", "multipliers", value=[-1.0, 1.0, 2.0]),
        change("forces_calibration", "multipliers", value=[0.0, 1.0, INFINITY]),
        change("forces_calibration", "growth", "isotropy", value=1.5),
        change("forces_calibration", "growth", "exponent", value=-0.1),
        change("forces_calibration", "growth", "exponent", value=NAN),
        change("forces_calibration", "growth", "typical", value=0.0),
        change("energy_calibration", "growth", value={"isotropy": 0.0, "exponent": 1.0, "typical": 1.0}),
        change("config", "backbone", "cutoff", value=1e-300),
    ],
)
def test_descriptions_that_no_model_has(model: Path, tmp_path: Path, apply: Callable[[Content], None]) -> None:
    content, tensors = unpack(model)
    apply(content)
    refused(pack(tmp_path / "a.sigmaff", content, tensors))


def older(potential: Potential) -> Potential:
    """As files up to format 3 have it: its kernel is not centred."""
    for name, value in potential.head.kernel.named_buffers():
        if name == "linear_center":
            value.zero_()
        if name == "composition_projector":
            value.copy_(torch.eye(len(value)))
    return potential


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_of_earlier_formats_load(tmp_path: Path, version: int, dtype: torch.dtype) -> None:
    potential = older(build(dtype, distance_aware=False))
    save(potential, tmp_path / "new.sigmaff")
    content, tensors = unpack(tmp_path / "new.sigmaff")
    tensors = {name: value for name, value in tensors.items() if "kernel.linear_c" not in name and "proj" not in name}
    if version < 3:
        assert content.pop("dtype") == str(dtype).removeprefix("torch.")
    content["format_version"] = version
    for name in ("mc_dropout", "other_members") if version == 1 else ():
        del content[name]
    again = load(pack(tmp_path / "old.sigmaff", content, tensors))
    assert again.dtype == dtype
    graph = build_graph(ethanol(), potential.cutoff, dtype)
    found, expected = again.predict(graph), potential.predict(graph)
    assert torch.equal(found.energy, expected.energy)
    assert torch.equal(found.energy_std, expected.energy_std)
    assert found.node_energy_std is None  # relative to means of elements, which the file does not have


@pytest.mark.parametrize(
    "apply",
    [
        lambda content, tensors: tensors.update({"head.weight_mean": torch.zeros((), dtype=torch.float64)}),
        lambda content, tensors: tensors.update({"head.kernel.inducing_points": torch.zeros((), dtype=torch.float64)}),
        lambda content, tensors: tensors.update({"head.kernel.log_scale": torch.zeros(()).to(torch.float8_e4m3fn)}),
        lambda content, tensors: content["statistics"].update(elements=[], reference_energies={}),
    ],
)
def test_damaged_files_of_earlier_formats(
    model: Path, tmp_path: Path, apply: Callable[[Content, Tensors], None]
) -> None:
    content, tensors = unpack(model)
    content["format_version"] = 2
    content["record"]["fit"] = {"noise": "loud", "force_weight": [1.0]}
    apply(content, tensors)
    refused(pack(tmp_path / "old.sigmaff", content, tensors))


def test_a_linear_kernel_that_ignored_the_blocks_of_dimenet(tmp_path: Path) -> None:
    """Up to format 3 it acted on their sum, and its weights fit nothing else."""
    potential = Case(backbone=BACKBONES[1], head=LNKConfig(n_samples=4)).build()
    save(potential, tmp_path / "new.sigmaff")
    content, tensors = unpack(tmp_path / "new.sigmaff")
    content["format_version"] = 3
    assert "solve for the head again" in refused(pack(tmp_path / "old.sigmaff", content, tensors))


def test_a_precision_that_the_tensors_do_not_have(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    content["dtype"] = "float64"
    assert "its description needs torch.float64" in refused(pack(tmp_path / "a.sigmaff", content, tensors))


def test_a_newer_format_names_the_version_needed(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    content |= {"format_version": 7, "library_version": "9.4.2", "something": "new"}
    text = refused(pack(tmp_path / "a.sigmaff", content, tensors))
    assert "format 7 by sigmaff 9.4.2" in text
    assert f"this is sigmaff {sigmaff.__version__}" in text
    assert "install that version or a newer one" in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "3", '"text"', "[" * 100_000, '{"a":' * 100_000, '{"format_version": ' + "9" * 5000 + "}"],
)
def test_descriptions_that_are_no_description(tmp_path: Path, text: str) -> None:
    refused(pack(tmp_path / "a.sigmaff", text, {"weights": torch.zeros(3)}))


def test_many_elements_do_not_take_memory(tmp_path: Path) -> None:
    """Each has its own random functions, drawn at the first use; an element costs a file a few bytes only."""
    save(build_potential(LNKConfig(kernel="rbf", n_inducing=12, distance_aware=False)), tmp_path / "rbf.sigmaff")
    content, tensors = unpack(tmp_path / "rbf.sigmaff")
    content["config"]["head"] |= {"n_samples": 1024, "n_frequencies": 8192}
    content["statistics"] |= {
        "elements": list(range(1, 100)),
        "reference_energies": {str(number): 0.0 for number in range(1, 100)},
    }
    loaded = load(pack(tmp_path / "a.sigmaff", content, tensors))
    graph = build_graph(ethanol(), loaded.cutoff)
    assert loaded.predict(graph, forces_std="exact").forces_std is not None
    with pytest.raises(ConfigError, match="take more memory than sampled force σ may use"):
        loaded.predict(graph, forces_std="sampled")


def test_elements_beyond_the_backbone(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    content["statistics"] |= {"elements": [1, 118], "reference_energies": {"1": 0.0, "118": 0.0}}
    assert "schnet knows elements up to Es" in refused(pack(tmp_path / "a.sigmaff", content, tensors))


def test_the_reason_is_told(model: Path, tmp_path: Path) -> None:
    content, tensors = unpack(model)
    content["statistics"]["scale"] = -1.0
    assert "statistics: scale" in refused(pack(tmp_path / "a.sigmaff", content, tensors))


# --- tensors that do not fit


def without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, make(tensors.get(name, torch.zeros(3))).contiguous())


def not_finite(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


WEIGHT, MEAN = "backbone.output.weight", "head.weight_mean"


@pytest.mark.parametrize(
    "apply",
    [
        lambda tensors: tensors.clear(),
        without(WEIGHT),
        without(MEAN),
        put("stranger", torch.clone),
        put(WEIGHT, lambda t: t[:-1]),
        put(WEIGHT, lambda t: t.T),
        put(WEIGHT, lambda t: t[None]),
        put(WEIGHT, lambda t: t.to(torch.int64)),
        put(WEIGHT, lambda t: t.double()),
        put(WEIGHT, lambda t: t.half()),
        put(WEIGHT, lambda t: t.to(torch.float8_e4m3fn)),
        put(WEIGHT, lambda t: t.to(torch.complex64)),
        put(WEIGHT, lambda t: t > 0),
        put(WEIGHT, not_finite(NAN)),
        put(WEIGHT, not_finite(INFINITY)),
        put(MEAN, not_finite(NAN)),
        put(MEAN, lambda t: t.float()),
        put("head.kernel.inducing_elements", lambda t: t.float()),
        put("head.kernel.inducing_elements", lambda t: t.to(torch.int32)),
        put("head.kernel.inducing_elements", lambda t: t + 10**6),
        put("head.kernel.inducing_elements", lambda t: t - 1),
        put("head.kernel.log_scale", lambda t: t - 400.0),
        put("head.kernel.inducing_points", lambda t: t * 1e200),
    ],
)
def test_tensors_that_do_not_fit(model: Path, tmp_path: Path, apply: Callable[[Tensors], None]) -> None:
    content, tensors = unpack(model)
    apply(tensors)
    refused(pack(tmp_path / "a.sigmaff", content, tensors))


def test_the_largest_settings_can_be_saved_and_loaded(tmp_path: Path) -> None:
    """What a configuration may ask for, a file may hold: nobody trains for hours a model that cannot be loaded."""
    config = LNKConfig(kernel="rbf", n_inducing=12, n_samples=1024, n_frequencies=8192)
    save(build_potential(config), tmp_path / "a.sigmaff")
    assert load(tmp_path / "a.sigmaff").config.head == config


# --- no code in files


def called_names(tree: ast.AST) -> set[str]:
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return imported | attributes | names


FILES_OF_HOSTS = {
    "mace.py": {"torch.load"},  # a pickle, if the user trusts it
    "ani.py": {"torch.load", "pickle"},  # weights_only; the error that it raises
    "aimnet2.py": {"torch.jit.load"},  # a program that is on the user's list
    "metatomic.py": {"torch.jit.load"},
}
"""What adapters call to read files of other programs. Model files of adopted networks hold no code either."""


@pytest.mark.parametrize("path", sorted(Path(sigmaff.__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_no_code_is_read_from_files(path: Path) -> None:
    used = called_names(ast.parse(path.read_text()))
    forbidden = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "torch.load", "torch.save", "eval", "exec"}
    forbidden |= {"yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader", "yaml.Loader", "torch.jit.load"}
    assert used & forbidden <= FILES_OF_HOSTS.get(path.name, set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


def test_a_record_keeps_its_keys_and_values(model: Path) -> None:
    content, _ = unpack(model)
    assert content["record"] == {"note": "σ in Å", "split": {"train": [0, 1]}, "value": 0.1 + 0.2, "none": None}
    assert load(model).record == build().record


def test_a_record_that_does_not_fit_is_no_obstacle(model: Path, tmp_path: Path) -> None:
    """Of an old or foreign file: what cannot be read is dropped."""
    content, tensors = unpack(model)
    content["record"] |= {"training": "by hand", "metrics": {"energy_mae": "good"}, "date": "yesterday"}
    record = load(pack(tmp_path / "model.sigmaff", content, tensors)).record
    assert record.training is None
    assert record.metrics is None
    assert record.date == "yesterday"
    assert record.split is not None
    assert record.split.train == [0, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
from sigmaff import load, save
from sigmaff.files import os as system
system.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
save(load(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_process_that_is_killed_while_it_saves_leaves_one_file_that_the_next_one_removes(
    model: Path, tmp_path: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(model), str(tmp_path / "model.sigmaff")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with output_lock(tmp_path / "model.sigmaff"):
        save(load(model), tmp_path / "model.sigmaff")
    assert [path.name for path in tmp_path.iterdir()] == ["model.sigmaff"]


def test_a_full_disk_names_the_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device") as found:
        save(build(), tmp_path / "model.sigmaff")
    assert found.value.filename == str(tmp_path / "model.sigmaff")
    assert not list(tmp_path.iterdir())
