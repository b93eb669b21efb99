"""A molecule in pieces: errors against GFN2-xTB and σ. Takes seconds for each model.

python benchmarks/pieces.py MODEL.sigmaff ... --structure ethanol.extxyz

The models are trained on labels of GFN2-xTB (``sigmaff compare``). The structure is the first frame of a file, with all
positions times a factor, one hydrogen atom pulled away, a bond between carbon atoms broken, or twice, far apart.
Structures whose self-consistent field does not converge at 300 K are labelled at an electronic temperature of 3000 K.
"""

import argparse
import warnings
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from machine import describe_machine, prepare

import sigmaff
from sigmaff.data.labelling import EngineConfig, LabelError, label

FACTORS = (1.0, 1.1, 1.5, 2.0, 5.0, 20.0)
HOT = {"electronic_temperature": 3000.0}
BONDED = 1.4
"""Å, of carbon and hydrogen."""


def pieces(whole: Atoms) -> dict[str, Atoms]:
    """By name: scaled, an atom pulled away, a bond broken, two molecules."""
    found = {f"× {factor:g}": _moved(whole, range(len(whole)), (factor - 1) * whole.positions) for factor in FACTORS}
    oxygen, carbons, distances = _of(whole, 8)[0], _of(whole, 6), whole.get_all_distances()
    hydrogen = min(_of(whole, 1), key=lambda atom: distances[oxygen, atom])
    found["H of OH 10 Å away"] = _moved(whole, [hydrogen], 10.0 * _unit(whole, oxygen, hydrogen))
    near, far = sorted(carbons, key=lambda atom: distances[oxygen, atom])
    methyl = [far, *(atom for atom in _of(whole, 1) if distances[far, atom] < BONDED)]
    found["CH3 5 Å away"] = _moved(whole, methyl, 5.0 * _unit(whole, near, far))
    found["two molecules, 30 Å apart"] = whole + _moved(whole, range(len(whole)), np.array([30.0, 0.0, 0.0]))
    return found


def _of(atoms: Atoms, number: int) -> list[int]:
    return np.flatnonzero(atoms.numbers == number).tolist()


def _unit(atoms: Atoms, start: int, end: int) -> np.ndarray:
    vector = atoms.positions[end] - atoms.positions[start]
    return vector / np.linalg.norm(vector)


def _moved(atoms: Atoms, chosen: list[int] | range, by: np.ndarray) -> Atoms:
    copy = Atoms(atoms.numbers, atoms.positions)
    copy.positions[list(chosen)] += by
    return copy


def labelled(atoms: Atoms) -> Atoms:
    try:
        return label(atoms, EngineConfig())
    except LabelError:
        return label(atoms, EngineConfig(arguments=HOT))


def row(calculator: sigmaff.Calculator, atoms: Atoms) -> str:
    """Energy: error, σ, their ratio. Forces: rms error, rms σ, their ratio, the least σ."""
    calculator.calculate(atoms)
    found = calculator.results
    cells = ["–"] * 2
    error = found["energy"] - atoms.get_potential_energy()
    if (std := found.get("energy_uncertainty")) is not None:
        cells[0] = f"{error:+.3g}, {std:.3g}, {abs(error) / std:.2g}"
    size = _rms(found["forces"] - atoms.get_forces())
    if (stds := found.get("forces_uncertainty")) is not None:
        ratio = f"{size / _rms(stds):.2g}" if stds.any() else "∞"
        cells[1] = f"{size:.3g}, {_rms(stds):.3g}, {ratio}, {stds.min():.2g}"
    return " | ".join(cells)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--structure", type=Path, required=True)
    arguments = parser.parse_args()
    prepare()
    warnings.simplefilter("ignore")  # that σ is out of its range is what this measures
    structures = {name: labelled(atoms) for name, atoms in pieces(ase.io.read(arguments.structure, 0)).items()}
    print(describe_machine())
    for path in arguments.models:
        calculator = sigmaff.Calculator(path)
        print(f"\n{path}\n\n| | energy: error, σ (eV), ratio | forces: rms error, rms σ (eV/Å), ratio, least σ |")
        print("|---|---|---|")
        for name, atoms in structures.items():
            print(f"| {name} | {row(calculator, atoms)} |")


if __name__ == "__main__":
    main()
