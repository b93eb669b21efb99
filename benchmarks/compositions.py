"""Energy σ of compositions that the training set leaves open, of an isomer, and of other grids of the prior.

sigmaff demo
python benchmarks/compositions.py demo

The model is that of the demonstration, trained on ethanol alone, with free atoms of GFN2-xTB as references. Errors are
against GFN2-xTB, on frames of its dynamics at the temperature of the demonstration, with these and with fitted
references. The head is then solved again on the same backbone, with the grid of noises
widened by 10⁴ below and above.
"""

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.optimize import BFGS
from machine import describe_machine, prepare, progress
from tblite.ase import TBLite

from sigmaff.data import GraphDataset, reference_energies
from sigmaff.evaluation.datasets import recorded_structures
from sigmaff.heads import LNKConfig, posterior
from sigmaff.heads.lnk import fit
from sigmaff.models import Model
from sigmaff.models.file import load, load_potential
from sigmaff.models.solve import solve_head
from sigmaff.runs.demo import simulate

N_FRAMES = 30
MALONALDEHYDE = Atoms(
    "O2C3H4",
    positions=[
        [-1.30, 1.10, 0.0],
        [1.30, 1.05, 0.0],
        [-1.22, -0.15, 0.0],
        [0.0, -0.85, 0.0],
        [1.22, -0.20, 0.0],
        [-2.18, -0.70, 0.0],
        [0.0, -1.93, 0.0],
        [2.17, -0.77, 0.0],
        [0.35, 1.35, 0.0],
    ],
)
"""The enol, roughly; it is relaxed before its dynamics."""
MOLECULES = {
    "dimethyl ether (an isomer)": molecule("CH3OCH3"),
    "ethane": molecule("C2H6"),
    "malonaldehyde": MALONALDEHYDE,
    "methanol": molecule("CH3OH"),
    "water": molecule("H2O"),
    "methane": molecule("CH4"),
    "propane": molecule("C3H8"),
    "acetone": molecule("CH3COCH3"),
}
WIDER = ((0, 0), (-4, 0), (0, 4), (-4, 4))
"""Powers of ten added to the grid of noises, below and above."""


def frames(atoms: Atoms) -> list[Atoms]:
    """Relaxed, then from dynamics, with energies."""
    relaxed = atoms.copy()
    relaxed.calc = TBLite(method="GFN2-xTB", verbosity=0)
    BFGS(relaxed, logfile=None).run(fmax=0.05, steps=200)
    return simulate(Atoms(relaxed.numbers, relaxed.positions), N_FRAMES, seed=0)


def errors_and_std(
    model: Model, structures: list[Atoms], shifts: dict[int, float] | None = None
) -> tuple[float, float]:
    """Rms error and rms σ of energies, eV. shifts: of reference energies by atomic number, eV."""
    found = model.predict(structures, forces_std="none")
    shifted = [sum((shifts or {}).get(number, 0.0) for number in atoms.numbers) for atoms in structures]
    pairs = zip(found, structures, shifted, strict=True)
    errors = [one.energy + shift - atoms.get_potential_energy() for one, atoms, shift in pairs]
    return float(np.sqrt(np.mean(np.square(errors)))), float(np.sqrt(np.mean([one.energy_std**2 for one in found])))


def shifts_to_fitted(model: Model) -> dict[int, float]:
    """What fitted reference energies have more than those of the model: nothing else depends on this choice."""
    fitted = reference_energies(recorded_structures(model, "train"), "least_squares")
    own = model.potentials[0].statistics.reference_energies
    return {number: energy - own[number] for number, energy in fitted.items()}


def solved(demo: Path, below: int, above: int) -> tuple[Model, fit.LNKFit]:
    """The head of the demonstration on its backbone, with a wider grid, calibrated as the model is."""
    model = load(demo / "run" / "model.sigmaff")
    potential = load_potential(demo / "run" / "backbone.sigmaff")
    low, high = round(np.log10(posterior.NOISES[0])), round(np.log10(posterior.NOISES[-1]))
    shipped = posterior.NOISES
    posterior.NOISES = fit.NOISES = tuple(10.0**k for k in range(low + below, high + above + 1))
    try:
        parts = (GraphDataset(recorded_structures(model, part), model.cutoff) for part in ("train", "validation"))
        again, found = solve_head(potential, LNKConfig(), *parts)
    finally:
        posterior.NOISES = fit.NOISES = shipped
    again.calibrations = model.calibrations
    assert isinstance(found, fit.LNKFit)
    return again, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="directory of the demonstration")
    demo = parser.parse_args().demo
    prepare()
    model = load(demo / "run" / "model.sigmaff")
    with progress() as terminal:
        terminal.stage("frames of other molecules")
        sampled = {}
        for done, (name, atoms) in enumerate(MOLECULES.items(), 1):
            sampled[name] = frames(atoms)
            terminal.advance(done, len(MOLECULES))
        terminal.stage("solving with wider grids")
        again = {wider: solved(demo, *wider) for wider in WIDER}
    print(f"\n{describe_machine()}\n\n{model.potentials[0].statistics.compositions}\n")
    columns = ("rms error (eV)", "σ (eV)", "error / σ", "references fitted: rms error (eV)")
    print(f"| molecule | {' | '.join(columns)} | change of σ, grid widened below, above, both |")
    print("|---|---|---|---|---|---|")
    shifts = shifts_to_fitted(model)
    for name, structures in sampled.items():
        error, std = errors_and_std(model, structures)
        fitted, _ = errors_and_std(model, structures, shifts)
        others = [errors_and_std(again[wider][0], structures)[1] for wider in WIDER]
        changes = ", ".join(f"{other / others[0] - 1:+.2%}" for other in others[1:])
        print(f"| {name} | {error:.3g} | {std:.3g} | {error / std:.2f} | {fitted:.3g} | {changes} |")
    for (below, above), (_, found) in again.items():
        chosen = f"λ {found.relative_noise:.3g}, prior {found.prior_std:.3g} eV, {found.at_ends or 'at no end'}"
        print(f"\ngrid {below:+d} {above:+d}: {chosen}")


if __name__ == "__main__":
    main()
