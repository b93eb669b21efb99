"""Desideratum 3: distant atoms do not interact, so energies add up and σ grows with size by a law."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from ase import Atoms

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, judged, line
from sigmaff.audit.subject import Subject, ask
from sigmaff.errors import DataError
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.models.prediction import StructurePrediction

NAME = "Locality"
GAP = 15.0  # Å
LAWS = {1.0: "σ ∝ n", 0.5: "σ² ∝ n"}


@dataclass(frozen=True, kw_only=True)
class Growth:
    """log σ = intercept of the structure + slope · log n."""

    slope: float
    interval: tuple[float, float]  # 95 %
    irregularity: float  # largest distance of log σ to the line


def copies(atoms: Atoms, n_copies: int) -> Atoms:
    """Copies along x with ``GAP`` between them; a crystal is repeated along its first periodic axis instead."""
    if atoms.pbc.any():
        repeats = np.ones(3, dtype=int)
        repeats[int(np.argmax(atoms.pbc))] = n_copies
        return atoms.repeat(repeats)
    row = atoms.copy()
    for number in range(1, n_copies):
        copy = atoms.copy()
        copy.positions[:, 0] += number * (np.ptp(atoms.positions[:, 0]) + GAP)
        row += copy
    return row


def fit_growth(n: FloatArray, std: FloatArray) -> Growth:
    """Least squares over (n_structures, n_sizes) σ > 0, each structure with an intercept of its own."""
    x = np.log(n) - np.log(n).mean()
    y = np.log(std) - np.log(std).mean(axis=1, keepdims=True)
    slope = float((x * y).sum() / (len(y) * (x @ x)))
    residual = y - slope * x
    freedom = y.size - len(y) - 1
    error = np.sqrt(np.square(residual).sum() / freedom / (len(y) * (x @ x)))
    half = float(scipy.stats.t.ppf(0.975, freedom) * error)
    return Growth(slope=slope, interval=(slope - half, slope + half), irregularity=float(np.abs(residual).max()))


def measure(subject: Subject, structures: Sequence[Atoms], *, n_copies: int) -> Finding:
    """Energies and energy σ of 1 … ``n_copies`` copies of each structure, or of fewer if the subject takes no more."""
    answers, refused = _answers(subject, structures, n_copies)
    n = np.arange(1, len(answers[0]) + 1, dtype=np.float64)
    if n.size < 3:
        sentence = f"The model cannot predict far copies of a structure: {refused}"
        figure = f"takes {n.size} of {n_copies} copies"
        return judged(NAME, {"copies": n.size}, tolerances.LOCALITY, figure, sentence)
    energies = np.array([[answer.energy for answer in row] for row in answers])
    std = np.array([[answer.energy_std or 0.0 for answer in row] for row in answers])
    n_atoms = np.array([len(row[0].forces) for row in answers])
    additivity = float((np.abs(energies - n * energies[:, :1]) / (n * n_atoms[:, None])).max())
    numbers: dict[str, float] = {"additivity": additivity, "copies": n.size}
    series = []
    if answers[0][0].energy_std is None:
        figure, growth = "energies; no σ", "; there is no σ to add up."
    elif not (std > 0).all():
        figure, growth = "σ = 0", ", but the energy σ is 0."
        numbers["distance_to_law"] = np.inf
    else:
        found, figure, growth = _growth(fit_growth(n, std))
        numbers |= found
        series.append(line("locality", n, std[0] / std[0, 0]))
    sentence = f"Energies of up to {n.size} copies add up to {additivity:.1e} eV/atom{growth}"
    if refused is not None:
        sentence += f" It takes no more than {n.size} copies: {refused}"
    return judged(NAME, numbers, tolerances.LOCALITY, figure, sentence, series=series)


def _growth(fitted: Growth) -> tuple[dict[str, float], str, str]:
    """Numbers, figure and words."""
    low, high = fitted.interval
    exponent = min(LAWS, key=lambda exponent: abs(fitted.slope - exponent))
    limited = {"distance_to_law": abs(fitted.slope - exponent), "irregularity": fitted.irregularity}
    lawful = all(tolerances.LOCALITY[name].verdict(value) != "fails" for name, value in limited.items())
    shown = f"{round(fitted.slope, 2) + 0.0:.2f}"  # no −0
    return (
        {"slope": fitted.slope, "slope, lower end of 95 %": low, "slope, upper end of 95 %": high} | limited,
        f"σ ∝ n^{shown}" if lawful else f"slope {shown}, by no law",
        f"; σ of n copies grows as n^{fitted.slope:.3f} (95 %: {low:.3f} to {high:.3f}), "
        f"{LAWS[exponent] if lawful else 'by no law of size'}.",
    )


def _answers(
    subject: Subject, structures: Sequence[Atoms], n_copies: int
) -> tuple[list[list[StructurePrediction]], DataError | None]:
    """Answers for 1, 2, … copies of each structure, and the error that forbids more. One copy must work."""
    answers = [[ask(subject, atoms)] for atoms in structures]
    for n in range(2, n_copies + 1):
        try:
            found = [ask(subject, copies(atoms, n)) for atoms in structures]
        except DataError as error:
            return answers, error
        for row, answer in zip(answers, found, strict=True):
            row.append(answer)
    return answers, None
