"""Desideratum 6: σ costs little beside the energy and forces themselves."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
from ase import Atoms

from sigmaff.audit import tolerances, words
from sigmaff.audit.finding import Finding, judged, not_applicable
from sigmaff.audit.subject import Subject, ask
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, Model, Potential, PotentialConfig
from sigmaff.models.prediction import ForceStdMethod, Prediction
from sigmaff.timing import median_seconds, time_calls

NAME = "Speed"
N_MEMBERS = 5


def measure(subject: Subject, structures: Sequence[Atoms], backbone: Model | None, *, n_rounds: int) -> Finding:
    """Measure milliseconds of one structure at a time, as in a simulation, relative to the backbone.

    The default backbone is the network of the model with a plain readout: weights do not affect the time.
    """
    if subject.model is None:
        return _calls(subject, structures[0], n_rounds)
    model = subject.model
    plain = _plain(model) if backbone is None else backbone
    times = time_calls(_ways(model, plain, structures[0]), n_rounds)
    ratios = times["model"] / times["backbone"]
    numbers = {f"milliseconds, {name}": 1e3 * float(np.median(found)) for name, found in times.items()} | {
        "ratio_to_backbone": float(np.median(ratios)),
        "ratio_to_backbone, lower quartile": float(np.quantile(ratios, 0.25)),
        "ratio_to_backbone, upper quartile": float(np.quantile(ratios, 0.75)),
        "passes": float(model.n_passes),
        "parameters": float(_n_parameters(model)),
        "parameters, backbone": float(_n_parameters(plain)),
    }
    if "ensemble" in times:
        numbers["ratio_to_ensemble"] = float(np.median(times["model"] / times["ensemble"]))
    if "model, with force σ" in times:
        numbers["ratio_to_backbone, with force σ"] = float(np.median(times["model, with force σ"] / times["backbone"]))
    said = words.speed(numbers, has_std=model.kind is not None, n_members=N_MEMBERS)
    return judged(NAME, numbers, tolerances.SPEED, said)


def _ways(model: Model, plain: Model, atoms: Atoms) -> dict[str, Callable[[], object]]:
    """What is timed."""
    ways: dict[str, Callable[[], object]] = {
        "backbone": _call(plain, atoms, "none"),
        "model": _call(model, atoms, "none"),
    }
    with_forces_std = _call(model, atoms, "auto")
    if with_forces_std().forces_std is not None:
        ways["model, with force σ"] = with_forces_std
    if plain.n_passes == 1:
        copies = Ensemble([deepcopy(plain.potentials[0]) for _ in range(N_MEMBERS)])
        ways["ensemble"] = _call(copies, atoms, "none")
    return ways


def _calls(subject: Subject, atoms: Atoms, n_rounds: int) -> Finding:
    """Another program's calculator; structures differ from call to call, or it would remember its answer."""
    rng = np.random.default_rng(0)

    def call() -> None:
        moved = atoms.copy()
        moved.positions += rng.normal(0.0, 1e-3, moved.positions.shape)
        ask(subject, moved)

    milliseconds = 1e3 * median_seconds({"call": call}, n_rounds)["call"]
    sentence = words.speed_of_calls(milliseconds, str(atoms.symbols))
    return not_applicable(NAME, sentence, {"milliseconds": milliseconds})


def _call(model: Model, atoms: Atoms, forces_std: ForceStdMethod) -> Callable[[], Prediction]:
    graph = build_graph(atoms, model.cutoff, model.dtype)
    return lambda: model.predict(graph, forces_std=forces_std)


def _plain(model: Model) -> Potential:
    potential = model.potentials[0]
    config = PotentialConfig(backbone=potential.config.backbone, head=DeterministicConfig())
    plain = Potential(config, potential.statistics)
    plain.set_precision(potential.dtype)
    return plain.to(potential.device).eval().requires_grad_(False)


def _n_parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
