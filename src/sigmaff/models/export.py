"""Export: a potential as an artefact of PyTorch's ahead-of-time compiler, with the model file inside.

The artefact (``.pt2``) is a zip archive: the machine code of each part of a ``Program``, the model file, and a
description. It is made for one version of torch and one kind of processor; the model file is what people exchange.
Machine code can do anything, so it is opened only if the user trusts it: one that this user made, or said to trust.
"""

import copy
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from sigmaff.backbones.hosts.base import Host
from sigmaff.backbones.hosts.trust import is_trusted, trust_file
from sigmaff.errors import ConfigError, ModelFileError, SigmaffError
from sigmaff.files import atomic_write, digest, file_digest
from sigmaff.graph import AtomicGraph, batch_graphs, build_graph
from sigmaff.models.file import load, save
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential
from sigmaff.models.prediction import ForceStdMethod, Prediction
from sigmaff.models.program import DYNAMIC_AXES, Part, Program, Topology, function_of, graph_of, inputs_of
from sigmaff.models.traced import predicted_slopes
from sigmaff.progress import Listener

ENDING = ".pt2"
ARTEFACT_VERSION = 1
TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-9}
"""Largest difference between program and potential that is rounding, relative to the largest number of its kind."""
COMPILER = {"assert_indirect_indexing": False}
"""Settings of the compiler: indices come from ``Layout``, which is right."""


class Description(BaseModel):
    """What an artefact says about itself."""

    model_config = ConfigDict(extra="forbid")

    artefact_version: int
    library_version: str
    torch_version: str
    processor: list[str]  # features that the machine code may use
    n_threads: int  # that it uses at most
    outputs: dict[Part, tuple[str, ...]]  # of each part, the fields of a prediction
    table_error: float  # of radial functions, relative to their largest values and slopes
    errors: dict[str, float]  # of each field, on the structures of the check, relative to its largest value


def export(
    model: Model, path: Path | str, *, forces_std: bool = True, force: bool = False, listener: Listener | None = None
) -> Description:
    """Compile a model and write the artefact, whole or not at all. This takes minutes.

    The program is compared with the model on a few structures first; a difference above rounding is an error.

    Arguments:
        model: a single potential, on the processor.
        path: ends with ``.pt2``.
        forces_std: with sampled force σ, which takes more than half of the time. That of DimeNet++, and exact σ, are
            computed as without a program.
        force: replace an existing file.
        listener: callbacks for progress; the default is silent.
    """
    from torch._inductor.package import package_aoti

    path, listener = Path(path), listener or Listener()
    if path.suffix != ENDING:
        raise ConfigError(f"{path}: the name of an artefact ends with {ENDING}")
    potential = _single(model)
    parts = parts_of(potential, forces_std=forces_std)
    table_error, fast = _tabulated(potential)
    with atomic_write(path, force=force) as temporary, tempfile.TemporaryDirectory() as folder:
        outputs: dict[Part, tuple[str, ...]] = {}
        files: dict[str, Any] = {}
        for part in parts:
            listener.stage(f"compiling {_WORDS[part]} (about a minute)")
            files[part], outputs[part] = _compiled(fast, part)
        package_aoti(str(Path(folder) / "code.pt2"), files)
        program = _opened(Path(folder) / "code.pt2", outputs)
        listener.stage("comparing the program with the model")
        description = Description(
            artefact_version=ARTEFACT_VERSION,
            library_version=version("sigmaff"),
            torch_version=torch.__version__,
            processor=processor_features(),
            n_threads=torch.get_num_threads(),
            outputs=outputs,
            table_error=table_error,
            errors=_differences(potential, program, parts),
        )
        save(model, Path(folder) / "model.sigmaff")
        shutil.copyfile(Path(folder) / "code.pt2", temporary)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.writestr(DESCRIPTION, description.model_dump_json(indent=1))
            archive.write(Path(folder) / "model.sigmaff", MODEL)
        trust_file(temporary, name=path)  # before it is there: a kill leaves no artefact that its maker may not use
    return description


DESCRIPTION, MODEL = "code/sigmaff/description.json", "code/sigmaff/model.sigmaff"
_WORDS: dict[Part, str] = {
    "energy": "energies and forces",
    "forces_std": "σ of forces",
    "slopes": "samples of energies",
    "pull": "samples of forces",
}


def parts_of(potential: Potential, *, forces_std: bool) -> tuple[Part, ...]:
    """Of its program; forces_std: those of sampled force σ too, if its head has it."""
    how = potential.backbone.compiles_samples
    if how is None or not forces_std or "sampled" not in potential.head.force_std_methods:
        return ("energy",)
    return ("energy", "forces_std") if how == "together" else ("energy", "slopes", "pull")


def open_exported(path: Path | str, *, trust: bool = False) -> Model:
    """Read the model in an artefact, with its program.

    Arguments:
        trust: run its machine code although this user neither made it nor said to trust it.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file")
    with _own_copy(path) as copy:
        if not trust and not is_trusted(file_digest(copy)):
            raise ConfigError(
                f"{path}: it holds machine code, which can do anything you can. If you know who made it, run 'sigmaff "
                f"trust {path}', or load it with trust=True; else ask for the .sigmaff file and export that"
            )
        description = _read_description(copy, path)
        _require_fit(path, description)
        with model_file_in(copy) as model_file:
            model = load(model_file)
        potential, model.file = _single(model), path
        potential.program = _opened(copy, description.outputs)
    return model


@contextmanager
def _own_copy(path: Path) -> Iterator[Path]:
    """A copy in a folder of this user alone: what was looked at is what runs, whoever changes the file meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copyfile(path, Path(folder) / f"code{ENDING}"))


@contextmanager
def model_file_in(path: Path) -> Iterator[Path]:
    """The model file in an artefact, for as long as the block lasts. This runs no machine code."""
    _read_description(path)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        yield Path(archive.extract(MODEL, folder))


def compiled(model: Model, *, listener: Listener | None = None) -> Model:
    """Give a model its program: from this user's cache, or compiled and put there. Returns the same model.

    Where no program can be made, a warning says why, and the model goes on without.
    """
    listener = listener or Listener()
    try:
        potential = _single(model)
        path = _cached(model)
        if not (path.is_file() and is_trusted(file_digest(path))):
            export(model, path, force=True, listener=listener)
        potential.program = open_exported(path).potentials[0].program
    except SigmaffError as error:
        listener.warn(f"not compiled: {error}. Predictions are the same, and slower")
    return model


def _cached(model: Model) -> Path:
    """Where the program of a model is kept: by its content, versions, processor and threads."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sigmaff" / "programs"
    with tempfile.TemporaryDirectory() as temporary:
        save(model, Path(temporary) / "model.sigmaff")
        content = file_digest(Path(temporary) / "model.sigmaff")
    parts = (content, version("sigmaff"), torch.__version__, *processor_features(), str(torch.get_num_threads()))
    return folder / f"{digest(part.encode() for part in parts)}{ENDING}"


def _single(model: Model) -> Potential:
    if not isinstance(model, Potential) or isinstance(model.backbone, Host):
        raise ConfigError("only a single potential with a network of sigmaff can be compiled")
    if model.device.type != "cpu":
        raise ConfigError(f"the model is on {model.device}; programs are made for the processor: move it to cpu")
    return model


def _tabulated(potential: Potential) -> tuple[float, Potential]:
    """The error of tables of radial functions, and a copy of the potential with them."""
    fast = copy.deepcopy(potential).eval().requires_grad_(False)
    return fast.backbone.tabulate(), fast


def _compiled(potential: Potential, part: Part) -> tuple[Any, tuple[str, ...]]:
    """Files of the machine code of one part, and the names of what it returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        try:
            program, names = traced(potential, part)
            settings = COMPILER | {"aot_inductor.package": True}
            files = torch._inductor.aot_compile(program.module(), program.example_inputs[0], options=settings)
        except SigmaffError:
            raise
        except Exception as error:
            raise SigmaffError(_reason(potential, error)) from error
    return files, names


def _reason(potential: Potential, error: Exception) -> str:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "no C++ compiler was found; install g++, or set CXX to another one"
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    network, head = potential.config.backbone.name, potential.head.method
    return f"torch {torch.__version__} cannot compile {network} with {head} ({first})"


def traced(potential: Potential, part: Part) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """One part of a potential as a list of operations, and the names of the fields of a prediction that it returns."""
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.fx.experimental import _config as symbols
    from torch.fx.experimental.proxy_tensor import make_fx

    sample = example_graph(potential)
    inputs = inputs_of(sample, Topology.of(sample, potential.elements).layout)
    axes: tuple[tuple[int, ...], ...] = DYNAMIC_AXES
    if part == "pull":
        slopes = predicted_slopes(potential, graph_of(inputs, potential.dtype))[1]
        inputs, axes = (*inputs, slopes[0].contiguous()), (*axes, (0,))
    evaluate, names = function_of(potential, part)
    distinct = symbols.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with torch.no_grad(), distinct:  # lengths that happen to be equal are not the same
        evaluate(*inputs)  # fills all caches with numbers, not with traces
        operations = make_fx(evaluate, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
        operations.graph = fx_graph_cse(operations.graph)
        operations.recompile()
        lengths = tuple(dict.fromkeys(own, torch.export.Dim.DYNAMIC) for own in axes)
        program = torch.export.export(_Function(operations), inputs, dynamic_shapes={"inputs": lengths}, strict=False)
    return program, tuple(names)


class _Function(nn.Module):
    """What ``torch.export`` takes."""

    def __init__(self, operations: Callable[..., list[Tensor]]) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return self.operations(*inputs)


def _opened(path: Path, outputs: dict[Part, tuple[str, ...]]) -> Program:
    from torch._inductor.package import load_package

    def flat(part: Part) -> Callable[..., list[Tensor]]:
        """A function of tensors. As torch calls it, it would look for them in nested arguments first."""
        loader = load_package(str(path), model_name=part).loader
        return lambda *inputs: loader.run(list(inputs))

    return Program({part: flat(part) for part in outputs}, outputs)


def _read_description(path: Path, name: Path | None = None) -> Description:
    """name: of the file in messages, if another one."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo(MODEL)
            return Description.model_validate_json(archive.read(DESCRIPTION))
    except (zipfile.BadZipFile, KeyError, ValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ModelFileError(f"{name or path}: not an artefact of sigmaff, or a damaged one ({reason})") from None


def _require_fit(path: Path, description: Description) -> None:
    again = "export the .sigmaff file again here"
    if description.artefact_version != ARTEFACT_VERSION:
        raise ModelFileError(
            f"{path}: an artefact of sigmaff {description.library_version}, which this version does not read; {again}"
        )
    if description.torch_version != torch.__version__:
        raise ModelFileError(
            f"{path}: made for torch {description.torch_version}; this is {torch.__version__}: {again}"
        )
    if missing := sorted(set(description.processor) - set(processor_features())):
        raise ModelFileError(
            f"{path}: made for a processor with {', '.join(missing[:5])}, which this one lacks; {again}"
        )


def processor_features() -> list[str]:
    """Names of instruction sets of this processor, as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted(next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), []))


def _differences(potential: Potential, program: Program, parts: tuple[Part, ...]) -> dict[str, float]:
    """Of program and potential for each field, relative to its largest value; an error if above rounding."""
    found: dict[str, float] = {}
    ways: tuple[ForceStdMethod, ...] = ("none",) if parts == ("energy",) else ("none", "sampled")
    for graph in (example_graph(potential), example_graph(potential, seed=1)):
        graph = potential.prepare(graph)
        for way in ways:
            with torch.no_grad():
                fast = program.predict(potential, graph, way, stress_std=False)
                exact = potential.compute(graph, way, stress_std=False, unseen_elements=False)
            assert fast is not None
            for item in fields(Prediction):
                a, b = getattr(fast, item.name), getattr(exact, item.name)
                if isinstance(a, Tensor) and isinstance(b, Tensor):
                    is_one = torch.equal(a.isnan(), b.isnan())
                    error = float((a - b).nan_to_num().abs().max() / b.nan_to_num().abs().max().clamp(min=1e-30))
                    found[item.name] = max(found.get(item.name, 0.0), error if is_one else torch.inf)
    for name, error in found.items():
        if error > TOLERANCES[potential.dtype]:
            raise SigmaffError(
                f"the compiled program is wrong: {name} differs by {error:.1e} (relative) from the model's. This is a "
                f"fault of torch {torch.__version__} or of sigmaff; nothing was written"
            )
    return found


def example_graph(potential: Potential, seed: int = 0) -> AtomicGraph:
    """Clusters of the elements of a potential, the first periodic, of different sizes."""
    random = np.random.default_rng(seed)
    graphs: list[AtomicGraph] = []
    spacing = min(1.6, 0.6 * potential.cutoff)
    lattice = np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    for n_atoms in (6, 9, 7, 8):
        positions = spacing * lattice[random.permutation(27)[:n_atoms]] + random.normal(scale=0.05, size=(n_atoms, 3))
        atoms = Atoms(np.resize(potential.elements, n_atoms), positions, cell=[4 * spacing] * 3, pbc=not graphs)
        graphs.append(build_graph(atoms, potential.cutoff, potential.dtype))
    return batch_graphs(graphs)
