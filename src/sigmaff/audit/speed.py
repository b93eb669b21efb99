"""Desideratum 6: σ costs little beside the energy and forces themselves."""

from collections.abc import Callable, Sequence

import numpy as np
from ase import Atoms

from sigmaff.audit import tolerances
from sigmaff.audit.finding import NO_COMPARISON, Finding, judged, not_applicable
from sigmaff.audit.subject import Subject, ask
from sigmaff.graph import build_graph
from sigmaff.heads import DeterministicConfig
from sigmaff.models import Ensemble, Model
from sigmaff.models.prediction import ForceStdMethod, Prediction
from sigmaff.timing import median_seconds, time_calls

NAME = "Speed"
N_MEMBERS = 5
"""Of the ensemble that a model is compared with."""


def measure(subject: Subject, structures: Sequence[Atoms], backbone: Model | None, *, n_rounds: int) -> Finding:
    """Measure milliseconds of one structure at a time, as in a simulation, relative to the backbone.

    The default backbone is the network of the model with a plain readout: weights do not affect the time.
    """
    if subject.model is None:
        return _calls(subject, structures[0], n_rounds)
    model = subject.model
    plain = backbone or model.potentials[0].with_head(DeterministicConfig()).eval().requires_grad_(False)
    times = time_calls(_ways(model, plain, structures[0]), n_rounds)
    ratios = times["model"] / times["backbone"]
    numbers = {f"milliseconds, {name}": 1e3 * float(np.median(found)) for name, found in times.items()} | {
        "ratio_to_backbone": float(np.median(ratios)),
        "ratio_to_backbone, lower quartile": float(np.quantile(ratios, 0.25)),
        "ratio_to_backbone, upper quartile": float(np.quantile(ratios, 0.75)),
        "passes": model.n_passes,
        "parameters": model.n_parameters,
        "parameters, backbone": plain.n_parameters,
    }
    sentence = (
        f"{'Energy and forces' if model.kind is None else 'Energy, forces and energy σ'} take "
        f"{numbers['milliseconds, model']:.3g} ms, {numbers['ratio_to_backbone']:.2f} times the energy and forces of "
        "the backbone"
    )
    if "model, with force σ" in times:
        numbers["ratio_to_backbone, with force σ"] = float(np.median(times["model, with force σ"] / times["backbone"]))
        sentence += f" ({numbers['ratio_to_backbone, with force σ']:.2f} times with σ of every force)"
    if "ensemble" in times:
        numbers["ratio_to_ensemble"] = float(np.median(times["model"] / times["ensemble"]))
        sentence += f" and {numbers['ratio_to_ensemble']:.2f} times an ensemble of {N_MEMBERS}"
    sentence += f"; passes: {model.n_passes}, parameters: {model.n_parameters:,}."
    return judged(NAME, numbers, tolerances.SPEED, f"{numbers['ratio_to_backbone']:.2f} × backbone", sentence)


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
        ways["ensemble"] = _call(Ensemble(plain.potentials * N_MEMBERS), atoms, "none")  # weights do not matter
    return ways


def _call(model: Model, atoms: Atoms, forces_std: ForceStdMethod) -> Callable[[], Prediction]:
    graph = build_graph(atoms, model.cutoff, model.dtype)
    return lambda: model.predict(graph, forces_std=forces_std, stress_std=False)


def _calls(subject: Subject, atoms: Atoms, n_rounds: int) -> Finding:
    """Another program's calculator; structures differ from call to call, or it would remember its answer."""
    rng = np.random.default_rng(0)

    def call() -> None:
        moved = atoms.copy()
        moved.positions += rng.normal(0.0, 1e-3, moved.positions.shape)
        ask(subject, moved)

    milliseconds = 1e3 * median_seconds({"call": call}, n_rounds)["call"]
    sentence = f"{milliseconds:.3g} ms for energy, forces and available σ of {atoms.symbols}. {NO_COMPARISON}"
    return not_applicable(NAME, sentence, {"milliseconds": milliseconds})
