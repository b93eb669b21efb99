"""Desideratum 3: what is far away does not matter, so that energies add up and σ grows with size by a law."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from scipy.stats import t as student

from sigmaff.audit import tolerances
from sigmaff.audit.finding import Finding, judged, line
from sigmaff.audit.subject import Answer, Subject, ask
from sigmaff.errors import DataError
from sigmaff.evaluation.metrics import FloatArray

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
    half = float(student.ppf(0.975, freedom) * error)
    return Growth(slope=slope, interval=(slope - half, slope + half), irregularity=float(np.abs(residual).max()))


def locality(subject: Subject, structures: Sequence[Atoms], *, n_copies: int) -> Finding:
    """Energies and energy σ of 1 … ``n_copies`` copies of each structure, of as many as the subject can take."""
    answers, refused = _answers(subject, structures, n_copies)
    n = np.arange(1, len(answers[0]) + 1, dtype=np.float64)
    if n.size < 3:
        return judged(
            NAME,
            {"copies": n.size},
            tolerances.LOCALITY,
            figure=f"takes {n.size} of {n_copies} copies",
            sentence=f"Copies of a structure far from each other are more than it can take: {refused}",
        )
    energies = np.array([[answer.energy for answer in row] for row in answers])
    n_atoms = np.array([len(row[0].forces) for row in answers])
    numbers: dict[str, float | None] = {
        "additivity": float((np.abs(energies - n * energies[:, :1]) / (n * n_atoms[:, None])).max()),
        "copies": float(n.size),
    }
    partly = "" if refused is None else f" It takes no more than {n.size} copies: {refused}"
    added = f"Energies of up to {n.size} copies add up to {numbers['additivity']:.1e} eV/atom"
    std = np.array([[answer.energy_std or 0.0 for answer in row] for row in answers])
    if answers[0][0].energy_std is None:
        return judged(
            NAME,
            numbers,
            tolerances.LOCALITY,
            figure="energies; no σ",
            sentence=f"{added}; there is no σ to add up.{partly}",
        )
    if not (std > 0).all():
        return judged(
            NAME,
            numbers | {"distance_to_law": np.inf},
            tolerances.LOCALITY,
            figure="σ = 0",
            sentence=f"{added}, but the energy σ is 0.{partly}",
        )
    growth = fit_growth(n, std)
    slope = round(growth.slope, 2) + 0.0  # no −0
    law = min(LAWS, key=lambda exponent: abs(growth.slope - exponent))
    numbers |= {
        "slope": growth.slope,
        "slope, lower end of 95 %": growth.interval[0],
        "slope, upper end of 95 %": growth.interval[1],
        "distance_to_law": abs(growth.slope - law),
        "irregularity": growth.irregularity,
    }
    return judged(
        NAME,
        numbers,
        tolerances.LOCALITY,
        figure=f"σ ∝ n^{slope:.2f}" if _lawful(growth, law) else f"slope {slope:.2f}, by no law",
        sentence=f"{added}; σ of n copies grows as n^{growth.slope:.3f} (95 %: {growth.interval[0]:.3f} to "
        f"{growth.interval[1]:.3f}), {LAWS[law] if _lawful(growth, law) else 'by no law of size'}.{partly}",
        series=[line("locality", n, std[0] / std[0, 0])],
    )


def _lawful(growth: Growth, law: float) -> bool:
    near = tolerances.LOCALITY["distance_to_law"].verdict(abs(growth.slope - law)) != "fails"
    return near and tolerances.LOCALITY["irregularity"].verdict(growth.irregularity) != "fails"


def _answers(
    subject: Subject, structures: Sequence[Atoms], n_copies: int
) -> tuple[list[list[Answer]], DataError | None]:
    """Of each structure one, two … copies, all to the same number; and what forbids more. One copy must do."""
    answers = [[ask(subject, atoms)] for atoms in structures]
    for n in range(2, n_copies + 1):
        try:
            found = [ask(subject, copies(atoms, n)) for atoms in structures]
        except DataError as error:
            return answers, error
        for row, answer in zip(answers, found, strict=True):
            row.append(answer)
    return answers, None
