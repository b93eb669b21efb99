"""Error bars in and off the distribution: errors, NLL, coverage, ranking and detection, by heads and an ensemble.

python benchmarks/networks.py networks
python benchmarks/shifts.py networks --heads "{lnk: {}, plain: {distance_aware: false}}" [--sets 3bpa acac]

Protocol, written before a test set was looked at. Heads are solved on training structures. Their settings are chosen
and all σ calibrated on validation structures, in the way of the program. Each is then tested on

| set | in distribution | off it |
|---|---|---|
| ethanol, GFN2-xTB at 500 K | test part of the split | |
| 3bpa at 300 K | test part | 600 K, 1200 K |
| acac at 300 K | test part | 600 K, a dihedral and a proton transfer (energies alone) |
| water, 192 atoms | test part | |
| silicon | test part, if there is one | its own test set |
| ooe, relaxed molecules | molecules in neither other part | the same molecules, displaced |

At most 300 structures of a set, 20 of water, evenly spaced in their file. Measures of σ are of reported σ: z is
error / σ, NLL that of the distribution that the calibration reports, coverage that of its intervals. Spearman's
correlation of σ and absolute error: energies; force components; atoms (norms over components); structures (rms over
atoms). AUROC, in against off the distribution: energy σ per atom; the rms, the geometric mean and the maximum over
atoms of force σ; the largest ``node_energy_std``. Intervals are 95 %, by bootstrap over structures (of ooe: over
molecules), paired for differences; of an AUROC by its score interval, of differences of AUROCs by DeLong's variance,
structures taken as independent. They hold for one network of each set.
"""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from contenders import Contenders, Measure, Measured, command, each_set, known, shown, table

from sigmaff.data import DataSource, LabelledStructures, read_structures
from sigmaff.evaluation import Evaluation, evaluate, metrics
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.evaluation.distribution import reported_distribution
from sigmaff.evaluation.samples import Sample
from sigmaff.evaluation.summary import mean_of_sums, spearman_of_sums
from sigmaff.models import Model
from sigmaff.models.prediction import FloatArray, Quantity
from sigmaff.progress import Listener

AT_MOST, AT_MOST_WATER = 300, 20
SETS = ("ethanol", "3bpa", "acac", "water", "silicon", "ooe")
OFF = {  # file and labels, by set and name
    "3bpa": {"600 K": ("3bpa/hot_600K.extxyz", True), "1200 K": ("3bpa/hot_1200K.extxyz", True)},
    "acac": {
        "600 K": ("acac/test_MD_600K.extxyz", True),
        "dihedral": ("acac/test_dihedral.extxyz", False),
        "proton transfer": ("acac/test_H_transfer.extxyz", False),
    },
    "silicon": {"own test set": ("mlearn/Si_test.extxyz", True)},
}
TEST = "test"
SCORES = ("energy", "forces rms", "forces geometric", "forces max", "atom max")


# --- structures


def test_sets(name: str, found: Contenders, folder: Path) -> dict[str, LabelledStructures]:
    """Structures by name; that of the test part, if there is one, is ``TEST``."""
    sets: dict[str, LabelledStructures] = {}
    if name == "ooe":
        sets = out_of_equilibrium(found, folder)
    elif "test" in found.parts:
        sets[TEST] = found.parts["test"]
    for other, (path, has_forces) in OFF.get(name, {}).items():
        labels = ("energy", "forces") if has_forces else ("energy",)
        sets[other] = read_structures(DataSource(path=Path(os.environ["SIGMAFF_DATA"]) / path, labels=labels))
    limit = AT_MOST_WATER if name == "water" else AT_MOST
    return {other: spaced(structures, limit) for other, structures in sets.items()}


def spaced(structures: LabelledStructures, at_most: int) -> LabelledStructures:
    n = len(structures)
    return structures if n <= at_most else structures.subset(np.linspace(0, n - 1, at_most).round().astype(int))


def out_of_equilibrium(found: Contenders, folder: Path) -> dict[str, LabelledStructures]:
    """Relaxed and displaced structures of molecules that no network has seen."""
    seen = {smiles(atoms) for part in ("train", "validation") for atoms in found.parts[part].structures}
    displaced = read_structures(folder / "qm7x-like" / "nonequilibrium.extxyz")
    sets = {}
    for name, structures in ((TEST, found.parts["test"]), ("displaced", displaced)):
        new = [index for index, atoms in enumerate(structures.structures) if smiles(atoms) not in seen]
        sets[name] = structures.subset(new)
    return sets


def independent(structures: LabelledStructures) -> np.ndarray:
    """Number of the molecule of each structure, (n_structures,); each is its own where molecules have no names."""
    names = [atoms.info.get("smiles", str(index)) for index, atoms in enumerate(structures.structures)]
    return np.unique(names, return_inverse=True)[1]


def smiles(atoms: Any) -> str:
    return str(atoms.info["smiles"])


# --- measures


def measures(evaluation: Evaluation) -> dict[str, Measure]:
    """All measures of errors and σ, with one row for each structure."""
    found: dict[str, Measure] = {}
    for quantity in ("energy", "forces"):
        if quantity in (samples := evaluation.samples):
            found |= of_sample(samples[quantity], quantity, evaluation.n_structures)
    if evaluation.forces_error is not None and evaluation.forces_std is not None:
        error, std = evaluation.forces_error, evaluation.forces_std
        norms = np.linalg.norm(std, axis=1), np.linalg.norm(error, axis=1)
        found["forces_spearman_atoms"] = ranking(*norms, evaluation.structure_index, evaluation.n_structures)
        squared_std, squared_error = (
            np.bincount(evaluation.structure_index, norm**2) / evaluation.atoms_per_structure for norm in norms
        )
        each = np.arange(evaluation.n_structures)
        found["forces_spearman_structures"] = ranking(squared_std, squared_error, each, each.size)
    return found


def of_sample(sample: Sample, quantity: Quantity, n: int) -> dict[str, Measure]:
    sizes, std = sample.sizes, sample.std
    z, widths = sizes / std, sample.calibration.multiplier(np.array([metrics.ONE_SIGMA, 0.95]))
    columns = {
        "mae": sizes,
        "nll": np.log(std) - reported_distribution(sample.calibration).log_density(z),
        "nll_gaussian": np.log(std) + 0.5 * np.log(2 * np.pi) + 0.5 * z**2,
        "coverage_68": z <= widths[0],
        "coverage_95": z <= widths[1],
    }
    found = {key: Measure(sums(sample.structure, n, values), mean_of_sums) for key, values in columns.items()}
    roots = {"rmse": sizes, "z": z, "rms_std": std}
    found |= {key: Measure(sums(sample.structure, n, values**2), root) for key, values in roots.items()}
    found["spearman"] = ranking(std, sizes, sample.structure, n)
    return {f"{quantity}_{key}": measure for key, measure in found.items()}


def root(rows: FloatArray) -> float:
    return float(np.sqrt(mean_of_sums(rows)))


def ranking(std: FloatArray, sizes: FloatArray, structure: np.ndarray, n: int) -> Measure:
    """Spearman's correlation; resamples keep the ranks of the whole set."""
    r, s = metrics.centred_ranks(std), metrics.centred_ranks(sizes)
    return Measure(sums(structure, n, r, s, r * r, s * s, r * s), spearman_of_sums)


def sums(structure: np.ndarray, n: int, *columns: np.ndarray) -> FloatArray:
    """Number of errors and sums of columns over the errors of each structure, (n, 1 + n_columns)."""
    return np.stack([np.bincount(structure, c, n) for c in (np.ones(structure.size), *columns)], axis=1)


def scores(evaluation: Evaluation) -> dict[str, FloatArray]:
    """By which structures are told apart, (n_structures,) each."""
    found: dict[str, FloatArray | None] = dict.fromkeys(SCORES)
    found["energy"] = evaluation.per_atom(evaluation.energy_std_raw)
    if evaluation.forces_std is not None:
        norms = np.linalg.norm(evaluation.forces_std, axis=1)
        found["forces rms"] = evaluation.structure_rms(evaluation.forces_std)
        smallest = norms[norms > 0].min()
        logs = np.bincount(evaluation.structure_index, np.log(np.maximum(norms, smallest)), evaluation.n_structures)
        found["forces geometric"] = np.exp(logs / evaluation.atoms_per_structure)
        found["forces max"] = largest(norms, evaluation)
    if evaluation.node_energy_std is not None:
        found["atom max"] = largest(evaluation.node_energy_std, evaluation)
    return {name: values for name, values in found.items() if values is not None}


def largest(values: FloatArray, evaluation: Evaluation) -> FloatArray:
    """Over the atoms of each structure."""
    found = np.full(evaluation.n_structures, -np.inf)
    np.maximum.at(found, evaluation.structure_index, values)
    return found


def aurocs(inside: dict[str, FloatArray], outside: dict[str, FloatArray]) -> dict[str, Any]:
    found = {}
    for name in inside:
        value = metrics.auroc(inside[name], outside[name])
        interval = metrics.auroc_interval(value, inside[name].size, outside[name].size)
        found[name] = {"value": value, "interval": list(interval)}
    return found


def auroc_difference(
    first: tuple[dict[str, FloatArray], ...], second: tuple[dict[str, FloatArray], ...]
) -> dict[str, Any]:
    """The second minus the first, by score."""
    found = {}
    for name in first[0]:
        if name in second[0]:
            before, after = ((one[0][name], one[1][name]) for one in (first, second))
            value, low, high = metrics.auroc_difference(before, after)
            found[name] = {"value": value, "interval": [known(low), known(high)]}
    return found


# --- one set


def evaluated(model: Model, structures: LabelledStructures, name: str, listener: Listener) -> Evaluation:
    listener.stage(name)
    return evaluate(model, dataset_for(model, structures), name=name, listener=listener)


def measured(name: str, found: Contenders, options: Namespace, listener: Listener) -> dict[str, Any]:
    """All numbers of one set."""
    sets = test_sets(name, found, options.folder)
    content: dict[str, Any] = {"chosen": found.chosen, "sets": {}}
    inside: dict[str, dict[str, FloatArray]] = {}
    for other, structures in sets.items():
        evaluations = {
            head: evaluated(model, structures, f"{name} {other}: {head}", listener)
            for head, model in found.models.items()
        }
        groups = independent(structures)
        own = {
            head: {key: measure.grouped(groups) for key, measure in measures(evaluation).items()}
            for head, evaluation in evaluations.items()
        }
        seen = {head: scores(evaluation) for head, evaluation in evaluations.items()}
        if other == TEST:
            inside = seen
        content["sets"][other] = {
            "n_structures": len(structures),
            "contenders": {
                head: {key: measure.found() for key, measure in own[head].items()}
                | {"seconds_per_structure": evaluations[head].seconds_per_structure}
                | ({"auroc": aurocs(inside[head], seen[head])} if inside and other != TEST else {})
                for head in evaluations
            },
            "differences": {
                f"{second} minus {first}": {
                    key: own[second][key].minus(own[first][key]) for key in own[first] if key in own[second]
                }
                | (
                    {"auroc": auroc_difference((inside[first], seen[first]), (inside[second], seen[second]))}
                    if inside and other != TEST
                    else {}
                )
                for first, second in found.pairs()
            },
        }
    return content


# --- tables


def tables(name: str, content: dict[str, Any]) -> str:
    lines = []
    for quantity, unit in (("energy", "meV"), ("forces", "meV/Å")):
        rows = [
            [f"{name} {other}, {part['n_structures']}", head, *cells(quantity, found)]
            for other, part in content["sets"].items()
            for head, found in part["contenders"].items()
            if f"{quantity}_mae" in found
        ]
        ranks = ["components", "atoms", "structures"] if quantity == "forces" else [""]
        header = [
            quantity,
            "",
            f"MAE ({unit})",
            "NLL",
            "rms z",
            "68 %",
            "95 %",
            *(f"Spearman {r}".strip() for r in ranks),
        ]
        lines.append(table(header, rows))
    aurocs = [
        [f"{name} {other}", head, *(shown(found["auroc"].get(score), ".3f") for score in SCORES)]
        for other, part in content["sets"].items()
        for head, found in part["contenders"].items()
        if "auroc" in found
    ]
    if aurocs:
        lines.append(table(["AUROC", "", *SCORES], aurocs))
    return "\n\n".join([*lines, *differences(name, content)])


def cells(quantity: str, found: dict[str, Any]) -> list[str]:
    def cell(key: str, style: str, *, interval: bool = False) -> str:
        return shown(found.get(f"{quantity}_{key}"), style, interval=interval)

    mae = f"{1e3 * found[f'{quantity}_mae']['value']:.1f}"
    parts = [mae, cell("nll", ".3f"), cell("z", ".2f", interval=True), cell("coverage_68", ".2f", interval=True)]
    ranks = ["spearman"] + (["spearman_atoms", "spearman_structures"] if quantity == "forces" else [])
    return [*parts, cell("coverage_95", ".2f"), *(cell(key, ".3f") for key in ranks)]


def differences(name: str, content: dict[str, Any]) -> list[str]:
    keys = {
        "NLL, energy": "energy_nll",
        "Spearman, energy": "energy_spearman",
        "NLL, forces": "forces_nll",
        "Spearman, components": "forces_spearman",
        "atoms": "forces_spearman_atoms",
    }
    rows = [
        [
            f"{name} {other}",
            pair,
            *(shown(found.get(key), "+.3f") for key in keys.values()),
            *(shown(found.get("auroc", {}).get(score), "+.3f") for score in SCORES[:2]),
        ]
        for other, part in content["sets"].items()
        for pair, found in part["differences"].items()
    ]
    header = ["difference (95 % interval)", "", *keys, "AUROC, energy", "AUROC, forces rms"]
    return [table(header, rows)] if rows else []


def main() -> None:
    parser = command(__doc__.splitlines()[0], "shifts.json")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options = parser.parse_args()

    def measure(name: str, found: Contenders, listener: Listener) -> Measured:
        numbers = measured(name, found, options, listener)
        return Measured(numbers, tables(name, numbers))

    each_set(options, measure)


if __name__ == "__main__":
    main()
