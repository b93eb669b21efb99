"""Broken bonds: does σ know that they are? Energies and forces along every bond, against GFN2-xTB.

python benchmarks/networks.py networks --sets ethanol molecules others
python benchmarks/broken_bonds.py networks --heads "{lnk: {}, plain: {distance_aware: false}}"

Protocol, written before a scan was looked at. Each molecule of the training set is relaxed by GFN2-xTB. Then

- stretch: every bond that is in no ring grows by 0.1 to 3 Å, as its smaller side moves rigidly along it; of bonds that
  symmetry makes equal, one;
- dilation: all coordinates grow by a factor of 1.05 to 5 about the centre;
- compression: they shrink by a factor of 0.95 to 0.8.

A bond, a dilation and a compression of a molecule are a scan each: several frames on one path, so intervals are by
bootstrap over scans, over those that have such an error. Labels are by closed-shell GFN2-xTB, also where a bond is
broken: what does not converge has no label and is left out and counted. The scans of a set are made once, into a file.

Choices of the LNK (whitening, kinds of surroundings, share) were made on `ethanol` and `molecules`; `others` was looked
at once, afterwards.

Heads are solved and all σ calibrated on training and validation structures alone: thermal frames without a broken bond.
For each contender, by its own errors:

- energies: of frames with an error above 0.2 eV, the share with σ ≥ error / 3, and the median of error / σ;
- forces: of atoms with an error above 1 eV/Å (norm of its vector), the same; σ of an atom is √(σx² + σy² + σz²);
- rising: share of stretched bonds along which energy σ never falls by more than 5 % of its largest value so far; and,
  as σ near the minimum is a few meV and its wiggles harm nobody, of its largest value on the whole path.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.neighborlist import build_neighbor_list, natural_cutoffs
from ase.optimize import BFGS
from contenders import Contenders, Measure, Measured, command, each_set, shown, table
from networks import ENGINE, MOLECULES, OTHERS, made_once
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from sigmaff.data import read_structures
from sigmaff.data.labelling import LabelError, label, make_calculator
from sigmaff.evaluation import Evaluation, evaluate
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.models.prediction import FloatArray
from sigmaff.progress import Listener

STRETCHES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)  # Å
DILATIONS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0)
COMPRESSIONS = (0.95, 0.9, 0.85, 0.8)
BOND = 1.15
"""Atoms are bonded up to this multiple of the sum of their covalent radii."""
SAME = 0.02
"""Å; distances that differ by less belong to equal structures."""
SETS = {"ethanol": ("CH3CH2OH",), "molecules": MOLECULES, "others": OTHERS}
ENERGY_ABOVE, FORCE_ABOVE = 0.2, 1.0  # eV, eV/Å
ENOUGH = 1 / 3
"""σ at least this part of the error."""
FALL = 0.05
RISING = {
    "stretch, of the largest so far": ("stretch", False),
    "stretch, of the largest of all": ("stretch", True),
    "dilation, of the largest of all": ("dilation", True),
}
KINDS = {  # which frames: of a kind, with an amount from … to
    "all": (("stretch", 0.0, 9.0), ("dilation", 0.0, 9.0), ("compression", 0.0, 9.0)),
    "stretch": (("stretch", 0.0, 9.0),),
    "stretch ≤ 0.4 Å": (("stretch", 0.0, 0.4),),
    "0.5–1 Å": (("stretch", 0.5, 1.0),),
    "1.25–1.5 Å": (("stretch", 1.25, 1.5),),
    "2–3 Å": (("stretch", 2.0, 3.0),),
    "dilation": (("dilation", 0.0, 9.0),),
    "compression": (("compression", 0.0, 9.0),),
}


# --- scans


def scans(names: tuple[str, ...], listener: Listener) -> list[Atoms]:
    """Labelled frames; their ``info`` has scan, kind and amount."""
    listener.stage("scans by GFN2-xTB")
    frames = []
    for done, name in enumerate(names, 1):
        relaxed = molecule(name)
        relaxed.calc = make_calculator(relaxed, ENGINE)
        BFGS(relaxed, logfile=None).run(fmax=0.02, steps=300)
        frames += labelled(paths(name, Atoms(relaxed.numbers, relaxed.positions)))
        listener.advance(done, len(names))
    return frames


def paths(name: str, relaxed: Atoms) -> list[Atoms]:
    """All frames of all scans of a molecule."""
    frames: list[Atoms] = []
    known: list[FloatArray] = []
    for first, second, side in breakable(relaxed):
        bond = relaxed.positions[second] - relaxed.positions[first]
        along = np.outer(side, bond / np.linalg.norm(bond))
        scan = f"{name} {relaxed.symbols[first]}{first}-{relaxed.symbols[second]}{second}"
        stretched = [
            moved(relaxed, relaxed.positions + amount * along, scan, "stretch", amount) for amount in (0, *STRETCHES)
        ]
        shape = distances(stretched[-1])
        if not any(np.abs(shape - other).max() < SAME for other in known):
            known.append(shape)
            frames += stretched
    centre = relaxed.positions.mean(axis=0)
    for kind, factors in (("dilation", DILATIONS), ("compression", COMPRESSIONS)):
        frames += [
            moved(relaxed, centre + factor * (relaxed.positions - centre), f"{name} {kind}", kind, factor)
            for factor in factors
        ]
    return frames


def distances(atoms: Atoms) -> FloatArray:
    """Between atoms, sorted for each pair of elements: the same for equal and for mirrored structures."""
    first, second = np.triu_indices(len(atoms), 1)
    elements = np.sort(np.stack([atoms.numbers[first], atoms.numbers[second]]), axis=0)
    length = np.linalg.norm(atoms.positions[first] - atoms.positions[second], axis=1)
    return length[np.lexsort((length, *elements))]


def breakable(atoms: Atoms) -> list[tuple[int, int, np.ndarray]]:
    """Bonds in no ring: an atom that stays, one that moves, and which atoms move with it (n_atoms,), the fewer."""
    neighbours = build_neighbor_list(atoms, natural_cutoffs(atoms, mult=BOND), self_interaction=False)
    matrix = neighbours.get_connectivity_matrix()
    bonds = [(int(min(pair)), int(max(pair))) for pair in zip(*matrix.nonzero(), strict=True)]
    found = []
    for first, second in bonds:
        rest = np.array([bond for bond in bonds if bond != (first, second)]).reshape(-1, 2).T
        others = coo_array((np.ones(rest.shape[1]), (rest[0], rest[1])), shape=(len(atoms),) * 2)
        _, component = connected_components(others, directed=False)
        if component[first] == component[second]:
            continue
        side = component == component[second]
        if 2 * side.sum() > len(atoms):
            first, second, side = second, first, component == component[first]
        found.append((first, second, side))
    return found


def moved(atoms: Atoms, positions: FloatArray, scan: str, kind: str, amount: float) -> Atoms:
    return Atoms(atoms.numbers, positions, info={"scan": scan, "kind": kind, "amount": float(amount)})


def labelled(frames: list[Atoms]) -> list[Atoms]:
    """Those that the engine has a label for."""
    found = []
    for frame in frames:
        with suppress(LabelError):
            found.append(label(frame, ENGINE))
    return found


def without_label(frames: tuple[Atoms, ...]) -> dict[str, int]:
    """Number of frames by kind that a scan should have and has not."""
    lengths = {"stretch": 1 + len(STRETCHES), "dilation": len(DILATIONS), "compression": len(COMPRESSIONS)}
    present = [(frame.info["kind"], frame.info["scan"]) for frame in frames]
    return {
        kind: sum(length - present.count(scan) for scan in set(present) if scan[0] == kind)
        for kind, length in lengths.items()
    }


# --- measures


class Scans:
    """Errors and σ of one contender along all scans."""

    def __init__(self, evaluation: Evaluation, frames: tuple[Atoms, ...]) -> None:
        self.kinds = np.array([frame.info["kind"] for frame in frames])
        self.amounts = np.array([frame.info["amount"] for frame in frames])
        self.names, self.scan = np.unique([frame.info["scan"] for frame in frames], return_inverse=True)
        assert evaluation.energy_error is not None
        assert evaluation.energy_std is not None
        assert evaluation.forces_error is not None
        assert evaluation.forces_std is not None
        self.energy = np.abs(evaluation.energy_error), evaluation.energy_std
        self.forces = tuple(np.linalg.norm(v, axis=1) for v in (evaluation.forces_error, evaluation.forces_std))
        self.frame_of_atom = evaluation.structure_index

    def frames_of(self, kind: str) -> np.ndarray:
        parts = [
            (self.kinds == name) & (low <= self.amounts) & (self.amounts <= high) for name, low, high in KINDS[kind]
        ]
        return np.any(parts, axis=0) & (self.amounts > 0)

    def measures(self, kind: str) -> dict[str, Measure]:
        chosen = self.frames_of(kind)
        atoms = chosen[self.frame_of_atom]
        found = {}
        for name, (error, std), scan, use, above in (
            ("energy", self.energy, self.scan, chosen, ENERGY_ABOVE),
            ("forces", self.forces, self.scan[self.frame_of_atom], atoms, FORCE_ABOVE),
        ):
            rows = by_scan(error, std, scan, use & (error > above), len(self.names))
            found[f"{name}_share"] = Measure(rows, share)
            found[f"{name}_ratio"] = Measure(rows, median_ratio)
            found[f"{name}_low"] = Measure(rows, lambda rows: quantile_ratio(rows, 0.1))
            found[f"{name}_high"] = Measure(rows, lambda rows: quantile_ratio(rows, 0.9))
        return found

    def rising(self, kind: str, of_path: bool) -> Measure:
        """Scans along which energy σ never falls by a part of its largest value so far, or of the whole path."""
        rows = []
        for number in range(len(self.names)):
            own = np.flatnonzero((self.scan == number) & (self.kinds == kind))
            if own.size:
                std = self.energy[1][own[np.argsort(self.amounts[own])]]
                largest = np.maximum.accumulate(std)
                tolerated = FALL * (std.max() if of_path else largest)
                rows.append([float((largest - std <= tolerated).all())])
        return Measure(np.array(rows), lambda rows: float(rows.mean()))

    def curve(self, scan: str) -> dict[str, list[float]]:
        own = np.flatnonzero(self.names[self.scan] == scan)
        own = own[np.argsort(self.amounts[own])]
        error, std = self.energy
        return {"amount": self.amounts[own].tolist(), "error": error[own].tolist(), "std": std[own].tolist()}


def by_scan(error: FloatArray, std: FloatArray, scan: np.ndarray, use: np.ndarray, n_scans: int) -> FloatArray:
    """error / σ of each large error, one row for each scan, filled up with NaN; (n_scans, n_most)."""
    ratios = [error[use & (scan == n)] / np.maximum(std[use & (scan == n)], 1e-300) for n in range(n_scans)]
    rows = np.full((n_scans, max(1, *(ratio.size for ratio in ratios))), np.nan)
    for row, ratio in zip(rows, ratios, strict=True):
        row[: ratio.size] = ratio
    return rows


def share(rows: FloatArray) -> float:
    ratios = rows[~np.isnan(rows)]
    return float((ratios <= 1 / ENOUGH).mean()) if ratios.size else float("nan")


def quantile_ratio(rows: FloatArray, level: float) -> float:
    ratios = rows[~np.isnan(rows)]
    return float(np.quantile(ratios, level)) if ratios.size else float("nan")


def median_ratio(rows: FloatArray) -> float:
    return quantile_ratio(rows, 0.5)


# --- tables


def measured(found: Contenders, path: Path, frames: tuple[Atoms, ...], listener: Listener) -> dict[str, Scans]:
    structures = read_structures(path)
    results = {}
    for name, model in found.models.items():
        listener.stage(f"σ of {name}")
        results[name] = Scans(evaluate(model, dataset_for(model, structures), name=name, listener=listener), frames)
    return results


def numbers(found: Contenders, results: dict[str, Scans]) -> dict[str, Any]:
    """Everything, for the file."""
    content: dict[str, Any] = {"chosen": found.chosen, "contenders": {}, "differences": {}}
    measures = {name: {kind: own.measures(kind) for kind in KINDS} for name, own in results.items()}
    for name, own in results.items():
        content["contenders"][name] = {
            "kinds": {
                kind: {
                    key: measure.found() | {"n": int((~np.isnan(measure.rows)).sum())}
                    for key, measure in measures[name][kind].items()
                }
                for kind in KINDS
            },
            "rising": {key: own.rising(*which).found() for key, which in RISING.items()},
            "curves": {scan: own.curve(scan) for scan in own.names},
        }
    for first, second in found.pairs():
        content["differences"][f"{second} minus {first}"] = {
            kind: {key: measures[second][kind][key].minus(measures[first][kind][key]) for key in measures[first][kind]}
            for kind in KINDS
        }
    return content


def tables(content: dict[str, Any]) -> str:
    lines = []
    for quantity, unit in (
        ("energy", f"energy error above {ENERGY_ABOVE:g} eV"),
        ("forces", f"force error of an atom above {FORCE_ABOVE:g} eV/Å"),
    ):
        rows = []
        for name, own in content["contenders"].items():
            for kind, found in own["kinds"].items():
                ratio = found[f"{quantity}_ratio"]
                spread = "–"
                if ratio["value"] is not None:
                    spread = f"{found[f'{quantity}_low']['value']:.3g} to {found[f'{quantity}_high']['value']:.3g}"
                cells = [shown(found[f"{quantity}_share"]), shown(ratio, ".3g"), spread]
                rows.append([name, kind, str(ratio["n"]), *cells])
        header = ["", f"{unit}: where", "number", "share with σ ≥ error/3", "median of error/σ", "80 % of them"]
        lines.append(table(header, rows))
    rising = [[name, *(shown(own["rising"][key]) for key in RISING)] for name, own in content["contenders"].items()]
    lines.append(table(["share of scans along which energy σ never falls by 5 %", *RISING], rising))
    differences = [
        [names, *(shown(found["all"][f"{quantity}_share"], "+.2f") for quantity in ("energy", "forces"))]
        for names, found in content["differences"].items()
    ]
    if differences:
        lines.append(table(["difference of shares, all scans", "energy", "forces"], differences))
    return "\n\n".join(lines)


def main() -> None:
    parser = command(__doc__.splitlines()[0], "broken_bonds.json")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--scans", type=Path, default=Path("scans"), help="folder of the scans, which are made once")
    options = parser.parse_args()

    def measure(name: str, found: Contenders, listener: Listener) -> Measured:
        path = made_once(options.scans / f"{name}.extxyz", partial(scans, SETS[name], listener))
        frames = tuple(ase.io.read(path, ":"))
        results, failed = measured(found, path, frames, listener), without_label(frames)
        content = numbers(found, results) | {"n_frames": len(frames), "without_label": failed}
        n_bonds = len(next(iter(results.values())).rising("stretch", True).rows)
        remark = f": {n_bonds} bonds, {len(frames)} frames; without a label: {failed}"
        return Measured(content, tables(content), remark)

    each_set(options, measure)


if __name__ == "__main__":
    main()
