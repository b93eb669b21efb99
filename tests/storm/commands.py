"""The long commands, each so small that it takes a second, and the folder that it runs in."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import torch
import yaml
from ase.build import molecule
from matplotlib.figure import Figure

import sigmaff
import toy_host  # noqa: F401 - makes the adapter known
from campaign_case import SETTINGS
from cli_case import TINY, ether_frames, morse_frames
from sigmaff.backbones import SchNetConfig
from sigmaff.data import ReferenceEnergies
from sigmaff.evaluation import paired
from sigmaff.models import Potential, export
from sigmaff.models.program import Part, Program, Topology, function_of, inputs_of
from sigmaff.report import figures
from sigmaff.runs import compare, demo
from sigmaff.runs.config import RunConfig
from sigmaff_paper.experiments import settings
from sigmaff_paper.tables.hyperparameters import Sizes
from storm.trial import run

BACKBONE = SchNetConfig(n_hidden=16, n_filters=16, n_interactions=1, n_gaussians=8, cutoff=3.0)
DEMO = {
    **{"N_ETHANOL": 50, "N_TRAIN": 20, "N_VALIDATION": 20, "N_ETHER": 12, "N_REPLICAS": 2, "N_WORKERS": 1},
    **{"EQUILIBRATION": 1, "SAMPLE_EVERY": 2},
}
_real_demo = demo.demo_config

MODEL, STARTS = "model.sigmaff", "start.extxyz"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line.

    Arguments:
        forced: whether it takes ``--force`` to go on where its file exists: it ends with a file, not with a folder.
        with_dask: whether it starts workers.
    """

    arguments: tuple[str, ...]
    forced: bool = False
    with_dask: bool = False


COMMANDS: dict[str, Command] = {
    "train": Command(arguments=("train", "run.yaml")),
    "train-ensemble": Command(arguments=("train", "ensemble.yaml")),
    "calibrate": Command(arguments=("calibrate", MODEL, "held_out.extxyz")),
    "adopt": Command(arguments=("adopt", "toy:a", "held_out.extxyz", "-o", "adopted.sigmaff", "--trust"), forced=True),
    "export": Command(arguments=("export", MODEL, "model.pt2", "--energy-only"), forced=True),
    "audit": Command(
        arguments=(
            *("audit", "potential.sigmaff", "--data", "held_out.extxyz", "--quick", "--picoseconds", "0.01"),
            *("--json", "audit.json", "--markdown", "audit.md", "--html", "audit.html"),
        ),
        forced=True,
    ),
    "demo": Command(arguments=("demo",)),
    "compare": Command(arguments=("compare", "run.yaml", "--methods", "fixed_lnk")),
    "md": Command(
        arguments=(
            *("md", MODEL, STARTS, "--steps", "12", "--every", "3", "--check-every", "2", "--checkpoint-every", "4"),
            *("--stop-above", "0.5", "--on-crossing", "rollback", "--rollback", "4", "--stop-above-energy", "off"),
            *("--stop-above-atom", "off", "--max-rollbacks", "2"),
        )
    ),
    "relax": Command(
        arguments=("relax", MODEL, STARTS, "relaxed.extxyz", "--steps", "4", "--trajectory", "path.extxyz"),
        forced=True,
    ),
    "guard": Command(
        arguments=(
            *("guard", MODEL, "water.extxyz", "--pilots", "5", "--steps", "6", "--check-every", "3"),
            *("--error-above", "100", "--risk", "0.5", "--workers", "1"),
            *("--timestep", "0.05", "--hottest", "1e6"),  # a model of two epochs boils
        ),
        with_dask=True,
    ),
    "learn": Command(arguments=("learn", "campaign.yaml"), with_dask=True),
    "generate": Command(
        arguments=(
            *("generate", "qm7x-like", "-o", "generated", "--smiles", "molecules.smi", "--conformers", "1"),
            *("--displaced", "1", "--workers", "1"),
        ),
        with_dask=True,
    ),
    "reproduce": Command(
        arguments=(
            *("reproduce", "dropout-rate", "--data", ".", "--output", "paper", "--workers", "1", "--device", "cpu"),
            *("--only", "method=mcd-1"),
        ),
        with_dask=True,
    ),
}


def make_folder(folder: Path) -> None:
    """Data, configurations and a model, as a user has them."""
    folder.mkdir()
    ase.io.write(folder / "data.extxyz", morse_frames(36, seed=1))
    ase.io.write(folder / "held_out.extxyz", morse_frames(24, seed=6))
    ase.io.write(folder / STARTS, morse_frames(2, seed=7))
    ase.io.write(folder / "water.extxyz", molecule("H2O"))
    split = {"source": "data.extxyz", "split": {"n_train": 20, "n_validation": 12}}
    settings_ = TINY | {"data": split, "training": TINY["training"] | {"max_epochs": 2}}
    alone = settings_["model"] | {"head": {"name": "deterministic"}}
    for name, content in (("run", settings_), ("ensemble", settings_ | {"model": alone, "ensemble": {"size": 2}})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (folder / "campaign.yaml").write_text(yaml.safe_dump(_campaign()))
    (folder / "molecules.smi").write_text("O\nC\n")
    (folder / "qm7x-like").mkdir()
    ase.io.write(folder / "qm7x-like" / "equilibrium.extxyz", morse_frames(60, seed=1))
    ase.io.write(folder / "qm7x-like" / "nonequilibrium.extxyz", ether_frames(12))
    made = run(("train", "run.yaml", "--output", "made"), folder)
    assert made.code == 0, made.text
    shutil.move(folder / "made" / MODEL, folder / MODEL)
    shutil.rmtree(folder / "made")
    shutil.copyfile(folder / MODEL, folder / "potential.sigmaff")  # a name of its own; else it is that of the folder


def _campaign() -> dict[str, Any]:
    return SETTINGS | {
        "start": SETTINGS["start"] | {"n_labels": 4},
        "hold_out_every": 2,
        "select": {"n": 2},
        "engine": {"calculator": "gfn2-xtb"},
        "cluster": {"n_workers": 1},
        "explore": SETTINGS["explore"] | {"temperature": [300.0], "steps": 8},
        "training": SETTINGS["training"] | {"max_epochs": 2},
        "stop": {"max_rounds": 1},
        "output": "campaign",
    }


def make_small() -> None:
    """What takes long and writes nothing is shortened in this process, or done once: experiments, timing, figures."""
    compare.ROUNDS, paired.N_RESAMPLES = 1, 10
    figures.new_figure, Figure.savefig = _empty, _drawn  # type: ignore[method-assign]
    demo.sample, sigmaff.audit = kept(demo.sample), kept(sigmaff.audit)
    _compile_nothing()
    for name, size in DEMO.items():
        setattr(demo, name, size)
    demo.demo_config = _small_demo
    settings.BACKBONES["quick"]["schnet"] = BACKBONE
    settings.SIZES["quick"]["qm7x"] = Sizes(batch_size=10, n_train=30, n_validation=14, n_test=12, n_ood=6)
    settings.QUICK["qm7x"] = settings.Quick(epochs=2, head_epochs=1, warmup_steps=2, n_inducing=10)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """The result of the first call with these texts among its arguments, for this process and its copies."""
    results: dict[tuple[str, ...], Any] = {}

    def first(*arguments: Any, **named: Any) -> Any:
        key = tuple(each for each in (*arguments, *named.values()) if isinstance(each, str))
        if key not in results:
            results[key] = function(*arguments, **named)
        return results[key]

    return first


def _compile_nothing() -> None:
    """Parts of a program are functions of Python; what an artefact holds as machine code is this file."""
    functions: dict[Part, Any] = {}

    def compiled(potential: Potential, part: Part) -> tuple[list[str], tuple[str, ...]]:
        graph = potential.prepare(export.example_graph(potential))
        functions[part], names = function_of(potential, part)
        with torch.no_grad():
            functions[part](*inputs_of(graph, Topology.of(graph, potential.elements).layout))  # fills the names
        return [__file__], tuple(names)

    export._compiled = compiled
    export._opened = lambda path, outputs: Program(functions, outputs)


def _small_demo(directory: Path, references: ReferenceEnergies = demo.METHOD) -> RunConfig:
    """The settings of the demonstration, for a network that trains in a second."""
    made = _real_demo(directory, references)
    network = made.model.model_copy(update={"backbone": BACKBONE})
    training = made.training.model_copy(update={"max_epochs": 2, "validate_every": 1, "tensorboard": False})
    return made.model_copy(update={"model": network, "training": training})


def _empty(*_: Any, **__: Any) -> Figure:
    """A figure without axes, which take long."""
    return Figure()


def _drawn(figure: Figure, file: Any, **_: Any) -> None:
    """An empty picture in place of a figure."""
    if isinstance(file, Path):
        file.write_bytes(b"\x89PNG IEND")
    else:
        file.write("<svg></svg>")
