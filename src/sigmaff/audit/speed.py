"""Desideratum 6: σ costs little beside the energy and forces themselves."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
from ase import Atoms

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, judged, not_applicable
from sigmaff.audit.subject import Subject, ask
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, Model, Potential, PotentialConfig
from sigmaff.models.prediction import ForceStdMethod, Prediction
from sigmaff.timing import median_seconds, time_calls

NAME = "Speed"
N_MEMBERS = 5


def speed(subject: Subject, structures: Sequence[Atoms], backbone: Model | None, *, n_rounds: int) -> Finding:
    """Measure milliseconds of one structure at a time, as in a simulation, relative to the backbone.

    The default backbone is the network of the model with a plain readout: weights do not affect the time.
    """
    if subject.model is None:
        return _calls(subject, structures[0], n_rounds)
    model = subject.model
    plain = _plain(model) if backbone is None else backbone
    ways: dict[str, Callable[[], object]] = {
        "backbone": _call(plain, structures[0], "none"),
        "model": _call(model, structures[0], "none"),
    }
    with_forces_std = _call(model, structures[0], "auto")
    if with_forces_std().forces_std is not None:
        ways["model, with force σ"] = with_forces_std
    if plain.n_passes == 1:
        copies = Ensemble([deepcopy(plain.potentials[0]) for _ in range(N_MEMBERS)])
        ways["ensemble"] = _call(copies, structures[0], "none")
    times = time_calls(ways, n_rounds)
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
    return judged(
        NAME,
        numbers,
        tolerances.SPEED,
        figure=f"{numbers['ratio_to_backbone']:.2f} × backbone",
        sentence=_sentence(numbers, model),
    )


def _calls(subject: Subject, atoms: Atoms, n_rounds: int) -> Finding:
    """Another program's calculator; structures differ from call to call, or it would remember its answer."""
    rng = np.random.default_rng(0)

    def call() -> None:
        moved = atoms.copy()
        moved.positions += rng.normal(0.0, 1e-3, moved.positions.shape)
        ask(subject, moved)

    milliseconds = 1e3 * median_seconds({"call": call}, n_rounds)["call"]
    return not_applicable(
        NAME,
        f"{milliseconds:.3g} ms for energy, forces and what there is of σ of {atoms.symbols}; "
        "there is no backbone without σ to hold this against.",
        {"milliseconds": milliseconds},
    )


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


def _sentence(numbers: dict[str, float], model: Model) -> str:
    what = "Energy and forces" if model.kind is None else "Energy, forces and energy σ"
    forces = numbers.get("ratio_to_backbone, with force σ")
    ensemble = numbers.get("ratio_to_ensemble")
    return (
        f"{what} take {numbers['milliseconds, model']:.3g} ms, {numbers['ratio_to_backbone']:.2f} times the energy and "
        "forces of the backbone"
        + ("" if forces is None else f" ({forces:.2f} times with σ of every force)")
        + ("" if ensemble is None else f" and {ensemble:.2f} times an ensemble of {N_MEMBERS}")
        + f"; passes: {numbers['passes']:.0f}, parameters: {numbers['parameters']:,.0f}."
    )
