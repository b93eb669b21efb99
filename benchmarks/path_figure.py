"""The picture in the README: a bond that breaks and a proton that moves, one model and five networks beside the truth.

python benchmarks/networks.py networks --sets ethanol acac
python benchmarks/path_figure.py networks docs/path.svg

Left: the O-H bond of ethanol, stretched, against GFN2-xTB; networks trained at 500 K. Right: the proton transfer of
acetylacetone (SIGMAFF_DATA/acac/test_H_transfer.extxyz); networks trained at 300 K. The model is a head that is solved
on the network of the first seed, or a model file. σ of both is calibrated on the validation structures of the networks.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.optimize import BFGS
from machine import prepare, progress

from sigmaff.data import DataSource, GraphDataset, read_structures
from sigmaff.data.labelling import EngineConfig, label, make_calculator
from sigmaff.evaluation.datasets import calibrate, dataset_for, recorded_structures
from sigmaff.files import atomic_write
from sigmaff.heads import LNKConfig
from sigmaff.models import Ensemble, Model, Potential
from sigmaff.models.file import load
from sigmaff.models.solve import solve_head
from sigmaff.progress import Listener
from sigmaff.report import EnergyPath, follow_path, path_figure

ENGINE = EngineConfig(calculator="gfn2-xtb")
OXYGEN, HYDROGEN = 2, 3  # of ethanol
STRETCHES = np.concatenate([np.arange(-0.2, 0.8, 0.05), np.arange(0.8, 2.51, 0.1)])  # Å


def stretched_ethanol() -> list[Atoms]:
    """Ethanol at rest with its O-H bond stretched, labelled."""
    atoms = molecule("CH3CH2OH")
    atoms.calc = make_calculator(atoms, ENGINE)
    BFGS(atoms, logfile=None).run(fmax=0.01, steps=200)
    bond = atoms.positions[HYDROGEN] - atoms.positions[OXYGEN]
    length, frames = float(np.linalg.norm(bond)), []
    for stretch in STRETCHES:
        moved = Atoms(atoms.numbers, atoms.positions)
        moved.positions[HYDROGEN] += stretch * bond / length
        frames.append(label(moved, ENGINE))
        frames[-1].info["bond_length"] = length + stretch
    return frames


def scan(path: Path) -> Path:
    if not path.exists():
        with atomic_write(path) as temporary:
            ase.io.write(temporary, stretched_ethanol(), format="extxyz")
    return path


def held_out(model: Model) -> GraphDataset:
    return dataset_for(model, recorded_structures(model, "validation"))


def solved(network: Potential, listener: Listener) -> Potential:
    """The default head of one pass on a trained network, calibrated."""
    train, validation = dataset_for(network, recorded_structures(network, "train")), held_out(network)
    model, _ = solve_head(network, LNKConfig(), train, validation, listener=listener)
    calibrate(model, validation, "auto", listener)
    return model


def five(networks: Sequence[Potential], listener: Listener) -> Ensemble:
    """The networks as an ensemble, calibrated."""
    model = Ensemble(networks)
    calibrate(model, held_out(networks[0]), "auto", listener)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", type=Path, help="directory of benchmarks/networks.py")
    parser.add_argument("output", type=Path, help="picture to write")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)), help="of the networks beside the model")
    parser.add_argument("--models", nargs=2, type=Path, help="model files of ethanol and acac, instead of solved heads")
    parser.add_argument("--scan", type=Path, default=Path("ethanol_oh_scan.extxyz"), help="made if it does not exist")
    arguments = parser.parse_args()
    prepare()
    files = {
        "ethanol": scan(arguments.scan),
        "acac": Path(os.environ["SIGMAFF_DATA"]) / "acac" / "test_H_transfer.extxyz",
    }
    labels = {"ethanol": "O–H bond length (Å)", "acac": "path length (Å)"}
    paths: list[EnergyPath] = []
    with progress() as terminal:
        for index, (name, file) in enumerate(files.items()):
            networks = [load(arguments.networks / name / str(seed) / "model.sigmaff") for seed in arguments.seeds]
            model = solved(networks[0], terminal) if arguments.models is None else load(arguments.models[index])
            models = [("one pass (LNK)", model), (f"{len(networks)} networks", five(networks, terminal))]
            structures = read_structures(DataSource(path=file, labels=()))
            path = follow_path(structures, models, forces_std="none", listener=terminal)
            paths.append(replace(path, label=labels[name]))
    titles = ("A bond breaks: O–H of ethanol", "A proton moves: acetylacetone")
    path_figure(titles, paths).savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
