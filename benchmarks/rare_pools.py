"""Labels chosen by σ from pools with something rare in them, against labels drawn at random.

python benchmarks/rare_pools.py run runs/rare_pools --pools acac --selectors random max_det stratified [--dry-run]
python benchmarks/rare_pools.py table runs/rare_pools

Protocol, written before the cells of these seeds were run. ``rare_pool_data.py`` says what the pools are. One trial on
another seed of acac came before: after it the LNK got ``variance_labels: energy``. That a figure is not determined
where errors of random do not fall was added when the first seeds were known.

- Start: 30 labelled structures of the common part. Pool: 300 common (reactive: 2,000) and 30 rare structures.
- Round: pick 30 of the pool, at once, with the model of the round before; train from scratch on all labels. Two rounds:
  60 and 90 labels. ``random`` also has 120.
- Network: SchNet 64 × 3, 5 Å, 32 Gaussians. 1000 + 25/3 steps per label (1,500 steps for 60 labels), batches of 10,
  learning rate 2e-3 with a cosine schedule; the averaged weights after the last step are tested. Six of the first 30
  labels never train: the LNK (``variance_labels: energy``) is solved on all others, its hyper-parameters are chosen on
  these six.
- Seeds: five, each another start, pool and network. Selectors of one seed share all three.
- Tests: 150 structures each like the common and like the rare part (qm7x: 80 rare); acac also the energies of two
  paths.

| selector | picks |
|---|---|
| random | 30 more at random, as 60, 90 and 120 labels |
| max_det, k_centre, variance_reduction, sigma | by this method of ``sigmaff select``, LNK of the network |
| ensemble | by max_det in the members of an ensemble of five networks, of which the first is the network |
| stratified | at random, half from the rare part: a control that knows which are rare |

Errors are mean absolute errors of force components. ``overall`` is the mean of those of the common and of the rare test
set. The labels that random needs for an error follow from a power law through its errors at 60, 90 and 120 labels,
as many of these as are there, at least two; where they do not fall, nothing is determined. Intervals: 95 % of 4,000
bootstraps over seeds, all figures of a seed together. With five seeds they are too narrow rather than too wide.

Every cell (pool, seed, selector, labels) is a folder with ``cell.json``; the same command resumes.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from machine import describe_machine, prepare
from rare_pool_data import N_START, Pool, source

from sigmaff.backbones import SchNetConfig
from sigmaff.data import GraphDataset, compute_statistics, label_structures
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.files import write_json
from sigmaff.heads import DeterministicConfig, LNKConfig
from sigmaff.learning import SelectConfig, select
from sigmaff.models import Ensemble, Model, Potential, PotentialConfig
from sigmaff.models.file import load_potential, save
from sigmaff.models.solve import solve_head
from sigmaff.simulation import bare_copy, predict_structures
from sigmaff.training import CosineSchedule, TrainingConfig
from sigmaff.training.loop import train

POOLS = ("acac", "3bpa", "qm7x", "reactive")
METHODS = ("max_det", "k_centre", "sigma", "variance_reduction")
SELECTORS = ("random", "max_det", "stratified", "sigma", "k_centre", "ensemble", "variance_reduction")
SEEDS = (0, 1, 2, 3, 4)
N_PICKED, N_HELD_OUT, N_MEMBERS, BATCH = 30, 6, 5, 10
RANDOM_SIZES = (60, 90, 120)
MILLISECONDS = {"acac": 30.0, "3bpa": 60.0, "qm7x": 30.0, "reactive": 20.0}
"""Of a training step on one core, roughly, for the estimate of ``--dry-run``; with ``--compile`` less than half."""
N_BOOTSTRAPS = 4000
FEWEST_SEEDS = 3
"""For an interval."""
UNDETERMINED = 0.01
"""Share of bootstraps in which the errors of random may fail to fall with the number of labels."""


def n_steps(n_labels: int) -> int:
    return 1000 + 25 * n_labels // 3


@dataclass(frozen=True, order=True)
class Cell:
    """One training: a seed of a pool, a selector, and the number of labels. ``start`` has none picked."""

    pool: str
    seed: int
    selector: str
    n_labels: int

    @property
    def before(self) -> "Cell | None":
        """The cell whose network picks."""
        if self.selector in ("start", "random", "stratified"):
            return None
        first = self.n_labels == N_START + N_PICKED
        return Cell(self.pool, self.seed, "start" if first else self.selector, self.n_labels - N_PICKED)

    @property
    def n_networks(self) -> int:
        """Trainings: an ensemble as selector needs four others beside the network of the cell before."""
        return N_MEMBERS if self.selector == "ensemble" else 1

    @property
    def minutes(self) -> float:
        others = (self.n_networks - 1) * n_steps(self.n_labels - N_PICKED)
        return (n_steps(self.n_labels) + others) * MILLISECONDS[self.pool] / 60_000

    def folder(self, root: Path) -> Path:
        return root / self.pool / str(self.seed) / f"{self.selector}-{self.n_labels}"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """In the order of work: what they need comes first."""
    for pool in options.pools:
        for seed in options.seeds:
            yield Cell(pool, seed, "start", N_START)
            for selector in options.selectors:
                rounds = [N_START + N_PICKED * (k + 1) for k in range(options.rounds)]
                for n_labels in options.random_sizes if selector == "random" else rounds:
                    yield Cell(pool, seed, selector, n_labels)


def run_cell(cell: Cell, root: Path, *, compile_step: bool) -> None:
    """Pick, train, test, and write ``cell.json``."""
    started, folder = time.monotonic(), cell.folder(root)
    pool = source(cell.pool, root / "xtb_ethanol").drawn(cell.seed)
    picked = pick(cell, pool, root, compile_step=compile_step)
    labelled = pool.labelled(picked)
    network = trained(labelled, folder, cell.seed, compile_step=compile_step)
    content = {
        "cell": asdict(cell),
        "picked": picked,
        "n_rare": int(pool.is_rare[picked].sum()),
        "errors": {name: errors(network, frames) for name, frames in pool.tests.items()},
        "seconds": time.monotonic() - started,
        "machine": describe_machine(),
    }
    write_json(folder / "cell.json", content)


def trained(labelled: list[Atoms], folder: Path, seed: int, *, compile_step: bool) -> Potential:
    """A network trained on all but the first six; read if it is there."""
    path = folder / "model.sigmaff"
    if path.exists():
        return load_potential(path).eval()
    structures = label_structures(labelled)
    backbone = SchNetConfig(n_hidden=64, n_filters=64, n_interactions=3, n_gaussians=32, cutoff=5.0)
    train_set = GraphDataset(structures.subset(range(N_HELD_OUT, len(labelled))), backbone.cutoff)
    held_out = GraphDataset(structures.subset(range(N_HELD_OUT)), backbone.cutoff)
    epochs = round(n_steps(len(labelled)) / -(-len(train_set) // BATCH))
    config = TrainingConfig(
        batch_size=BATCH,
        max_epochs=epochs,
        validate_every=epochs,
        learning_rate=2e-3,
        schedule=CosineSchedule(warmup_steps=100),
        threads=1,
        tensorboard=False,
        accelerator="cpu",
        compile=compile_step,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        potential = Potential(
            PotentialConfig(backbone=backbone, head=DeterministicConfig()), compute_statistics(train_set)
        )
    train(potential, train_set, held_out, config, folder, seed=seed)
    save(potential, path)
    return potential.eval()


def pick(cell: Cell, pool: Pool, root: Path, *, compile_step: bool) -> list[int]:
    """Indices of candidates: those of the cell before and the new ones."""
    n, rng = cell.n_labels - N_START, np.random.default_rng([cell.seed, 1])
    order = rng.permutation(len(pool.candidates))
    if cell.selector == "random":
        return order[:n].tolist()
    if cell.selector == "stratified":
        rare, common = order[pool.is_rare[order]], order[~pool.is_rare[order]]
        n_rare = min(n // 2, len(rare))
        return np.concatenate([rare[:n_rare], common[: n - n_rare]]).tolist()
    if cell.before is None:
        return []
    done = json.loads((cell.before.folder(root) / "cell.json").read_text())["picked"]
    labelled, left = pool.labelled(done), np.setdiff1d(np.arange(len(pool.candidates)), done)
    model = selector_model(cell, labelled, root, compile_step=compile_step)
    frames = [bare_copy(pool.candidates[index]) for index in left]
    if cell.selector == "sigma":  # no other looks at force σ
        frames = predict_structures(model, dataset_for(model, label_structures(frames, ())), 64, "auto")
    method = "max_det" if cell.selector == "ensemble" else cell.selector
    settings = SelectConfig.model_validate(
        {"n": N_PICKED, "method": method, "max_candidates": 400, "cost_power": 0.0}  # labels are counted, not atoms
    )
    chosen = select(model, frames, settings, limit=None, rng=rng)
    return [*done, *(int(left[one.index]) for one in chosen)]


def selector_model(cell: Cell, labelled: list[Atoms], root: Path, *, compile_step: bool) -> Model:
    """The network of the cell before with an LNK, or an ensemble of it and others."""
    assert cell.before is not None
    folder = cell.before.folder(root)
    network = load_potential(folder / "model.sigmaff").eval()
    if cell.selector == "ensemble":
        others = [
            trained(labelled, folder / f"member-{k}", 100 * k + cell.seed, compile_step=compile_step)
            for k in range(1, N_MEMBERS)
        ]
        return Ensemble([network, *others]).eval()
    structures = label_structures(labelled)
    parts = (structures.subset(range(N_HELD_OUT, len(labelled))), structures.subset(range(N_HELD_OUT)))
    return solve_head(network, LNKConfig(variance_labels="energy"), *(dataset_for(network, part) for part in parts))[
        0
    ].eval()


def errors(network: Potential, frames: Sequence[Atoms]) -> dict[str, float]:
    """Mean absolute errors: of energies in eV, and of force components in eV/Å if there are labels of them."""
    has_forces = "forces" in frames[0].calc.results
    labels = ("energy", "forces") if has_forces else ("energy",)
    dataset = dataset_for(network, label_structures(frames, labels))
    energy, forces = [], []
    for indices in torch.arange(len(dataset)).split(50):
        graph, truth = dataset.batch(indices)
        prediction = network.predict(graph, forces_std="none")
        energy.append((prediction.energy - truth.energy).abs())
        if has_forces:
            forces.append((prediction.forces - truth.forces).abs().flatten())
    found = {"energy": float(torch.cat(energy).mean())}
    return found | ({"forces": float(torch.cat(forces).mean())} if has_forces else {})


Figures = dict[str, float]
"""Errors of a cell by name, as the table shows them."""


def figures_of(path: Path) -> Figures:
    content = json.loads(path.read_text())
    found = {f"E {name}": value["energy"] for name, value in content["errors"].items() if "forces" not in value}
    forces = {name: value["forces"] for name, value in content["errors"].items() if "forces" in value}
    forces["overall"] = float(np.mean(list(forces.values())))
    return {f"F {name}": value for name, value in forces.items()} | found | {"rare found": content["n_rare"]}


def table(root: Path, pool: str) -> list[str]:
    """Markdown: mean errors with intervals, and the labels that random needs."""
    found: dict[tuple[str, int], dict[int, Figures]] = {}
    for path in sorted((root / pool).glob("*/*/cell.json")):
        selector, n_labels = path.parent.name.rsplit("-", 1)
        found.setdefault((selector, int(n_labels)), {})[int(path.parent.parent.name)] = figures_of(path)
    if not found:
        return []
    names = list(next(iter(next(iter(found.values())).values())))
    lines = [f"**{pool}**: errors in meV and meV/Å", "", _row(["selector", "labels", "seeds", *names])]
    lines.append("|---" * (len(names) + 3) + "|")
    for (selector, n_labels), by_seed in sorted(found.items(), key=lambda item: item[0][::-1]):
        values = [_interval([figures[name] for figures in by_seed.values()], name) for name in names]
        lines.append(_row([selector, str(n_labels), str(len(by_seed)), *values]))
    kinds = [name for name in names if name != "rare found"]
    lines += ["", "Labels that random needs for the same error, over the labels of the selector:", ""]
    lines += [_row(["selector", "labels", "seeds", *kinds]), "|---" * (len(kinds) + 3) + "|"]
    for (selector, n_labels), by_seed in sorted(found.items(), key=lambda item: item[0][::-1]):
        if selector not in ("random", "start"):
            seeds = shared_seeds(by_seed, found)
            if seeds:
                values = [times(found, selector, n_labels, seeds, name) for name in kinds]
                lines.append(_row([selector, str(n_labels), str(len(seeds)), *values]))
    return lines


def shared_seeds(by_seed: dict[int, Figures], found: dict[tuple[str, int], dict[int, Figures]]) -> list[int]:
    """Seeds for which random is there at all of its sizes that any seed has."""
    sizes = [by for (selector, _), by in found.items() if selector == "random"]
    return sorted(set(by_seed).intersection(*sizes)) if len(sizes) > 1 else []


def times(
    found: dict[tuple[str, int], dict[int, Figures]], selector: str, n_labels: int, seeds: Sequence[int], name: str
) -> str:
    sizes = sorted(n for other, n in found if other == "random")
    random = np.array([[found["random", n][seed][name] for n in sizes] for seed in seeds])
    errors = np.array([found[selector, n_labels][seed][name] for seed in seeds])
    ratio = labels_needed(sizes, random.mean(0), errors.mean()) / n_labels
    drawn = np.random.default_rng(0).integers(len(seeds), size=(N_BOOTSTRAPS, len(seeds)))
    ratios = [labels_needed(sizes, random[rows].mean(0), errors[rows].mean()) / n_labels for rows in drawn]
    if np.isnan([ratio, *ratios]).mean() > UNDETERMINED:
        return "not determined"
    bounds = np.nanquantile(ratios, (0.025, 0.975), method="nearest")
    beyond = max(sizes) / n_labels
    shown = [f"> {beyond:.2f}" if value > beyond else f"{value:.2f}" for value in (ratio, *bounds)]
    return "{} ({} to {})".format(*shown) if len(seeds) >= FEWEST_SEEDS else shown[0]


def labels_needed(sizes: Sequence[int], random: np.ndarray, error: float) -> float:
    """Where a power law through the errors of random comes down to an error; NaN if it does not fall."""
    slope, intercept = np.polyfit(np.log(sizes), np.log(random), 1)
    return float(np.exp((np.log(error) - intercept) / slope)) if slope < 0 else np.nan


def _interval(values: Sequence[float], name: str) -> str:
    array = (1.0 if name == "rare found" else 1e3) * np.array(values)
    drawn = np.random.default_rng(0).choice(array, size=(N_BOOTSTRAPS, len(array))).mean(1)
    lower, upper = np.quantile(drawn, (0.025, 0.975))
    mean = f"{array.mean():.1f}"
    return f"{mean} ({lower:.1f} to {upper:.1f})" if len(array) >= FEWEST_SEEDS else mean


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--selectors", nargs="+", choices=SELECTORS, default=list(SELECTORS))
    parser.add_argument("--rounds", type=int, choices=(1, 2), default=2)
    parser.add_argument("--random-sizes", nargs="+", type=int, choices=RANDOM_SIZES, default=list(RANDOM_SIZES))
    parser.add_argument("--compile", action="store_true", help="compile the training step")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and how long it takes")
    options = parser.parse_args()
    if options.command == "table":
        for pool in options.pools:
            print("\n".join(table(options.folder, pool)), end="\n\n")
        return
    wanted = [cell for cell in cells(options) if not (cell.folder(options.folder) / "cell.json").exists()]
    print(f"{len(wanted)} cells, about {sum(cell.minutes for cell in wanted):.0f} minutes on one core", flush=True)
    if options.dry_run:
        return
    prepare()
    for done, cell in enumerate(wanted, 1):
        run_cell(cell, options.folder, compile_step=options.compile)
        print(f"{done} of {len(wanted)}: {cell.folder(options.folder)}", flush=True)


if __name__ == "__main__":
    main()
