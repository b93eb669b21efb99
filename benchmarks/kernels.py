"""Kernels of the closed-form LNK on trained backbones: likelihood, ranking, and structures of another kind.

sigmaff compare examples/compare_ethanol.yaml --methods backbone
python benchmarks/kernels.py runs/compare_ethanol

One pass through each set of structures serves all kernels; what a fit would choose among them, it chooses here too.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine
from torch import Tensor

from sigmaff.allocator import keep_large_blocks
from sigmaff.data import GraphDataset, read_structures
from sigmaff.evaluation.datasets import foreign_dataset
from sigmaff.evaluation.metrics import auroc, spearman
from sigmaff.heads import LNK, LNKConfig
from sigmaff.heads.lnk.fit import LENGTHSCALES, LINEAR_SCALES
from sigmaff.heads.observations import HELD_OUT_ROWS, TRAINING_ROWS, RowLimit, Rows
from sigmaff.heads.posterior import FORCE_WEIGHTS, Moments, Posterior, held_out_score, posteriors
from sigmaff.models import Potential
from sigmaff.models.file import load_potential, read_header
from sigmaff.models.solve import LabelledObservations
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import load_data

ALL_ROWS = RowLimit(n_rows=10**9, work=10**15)
N_TEST = 60
KNOWN_SETS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A kernel up to the scale of its linear part."""

    name: str
    function: LNK
    linear_scales: tuple[float, ...] = (1.0,)

    def scales(self, linear_scale: float) -> Tensor:
        kernel = self.function.kernel
        scales = torch.ones(kernel.n_weights, dtype=torch.float64)
        scales[kernel.n_inducing :] = linear_scale**0.5
        return scales


def priors(potential: Potential, train: GraphDataset) -> Iterator[Prior]:
    features = LabelledObservations(potential, train).embeddings()
    for name in ("linear", "linear, elements alike", "rbf", "matern52", "rbf+linear"):
        kernel, _, alike = name.partition(", ")
        for lengthscale in (1.0,) if kernel == "linear" else LENGTHSCALES:
            head = potential.with_head(LNKConfig(kernel=kernel, by_element=not alike)).head
            assert isinstance(head, LNK)
            head.initialize(*features)
            if kernel != "linear":
                head.kernel.log_lengthscale.data.add_(math.log(lengthscale / LENGTHSCALES[0]))
            two_parts = "+" in kernel
            yield Prior(
                name=name,
                function=head,
                linear_scales=LINEAR_SCALES if two_parts else (1.0,),
            )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Rows of one set of structures under one kernel: of energies, and of force components."""

    energy: Rows
    forces: Rows
    n_structures: int

    def kinds(self, scales: Tensor) -> list[Rows]:
        return [self.energy.scaled(scales), self.forces.scaled(scales)]


def seen(potential: Potential, found: list[Prior], dataset: GraphDataset, limit: RowLimit) -> list[Seen]:
    parts: list[tuple[list[Rows], list[Rows]]] = [([], []) for _ in found]
    functions = [prior.function for prior in found]
    for rows_of_kernels, _ in LabelledObservations(potential, dataset).rows(functions, limit, seed=0):
        for (energies, forces), (energy_rows, force_rows) in zip(parts, rows_of_kernels, strict=True):
            energies.append(energy_rows)
            forces.extend([] if force_rows is None else [force_rows])
    return [
        Seen(energy=Rows.joined(energies), forces=Rows.joined(forces), n_structures=len(dataset))
        for energies, forces in parts
    ]


def first(dataset: GraphDataset, n: int) -> GraphDataset:
    return GraphDataset(dataset.structures.subset(np.arange(min(n, len(dataset)))), dataset.cutoff)


@dataclass(frozen=True, kw_only=True)
class Measured:
    score: float  # of held-out structures, which chooses
    cells: list[str]


def measure(prior: Prior, labels: str, sets: dict[str, Seen]) -> Measured:
    """The best posterior of a kernel, by held-out likelihood, on test structures and on others."""
    weights = FORCE_WEIGHTS if labels == "energy+forces" else FORCE_WEIGHTS[:1]
    found: list[tuple[float, Posterior, Tensor, float]] = []
    for linear_scale in prior.linear_scales:
        scales = prior.scales(linear_scale)
        energy, forces = (Moments.empty(len(scales)).plus(rows) for rows in sets["train"].kinds(scales))
        held_out = [rows.undetermined() for rows in sets["validation"].kinds(scales)]
        for candidate in posteriors(energy, forces, weights):
            score, _ = held_out_score(candidate, held_out, [rows.targets for rows in held_out])
            found.append((score, candidate, scales, linear_scale))
    score, best, scales, linear_scale = min(found, key=lambda choice: choice[0])
    variances = {name: [best.variance(r) for r in of.kinds(scales)] for name, of in sets.items() if name != "train"}
    test = sets["test"].kinds(scales)
    nll = [
        negative_log_likelihood(rows, variance, held, held_variance)
        for rows, variance, held, held_variance in zip(
            test, variances["test"], sets["validation"].kinds(scales), variances["validation"], strict=True
        )
    ]
    ranking = [
        spearman(variance.numpy(), rows.targets.abs().numpy())
        for rows, variance in zip(test, variances["test"], strict=True)
    ]
    known = scores_of(variances["test"], sets["test"].n_structures)
    told_apart = [
        " / ".join(f"{auroc(a, b):.3f}" for a, b in zip(known, scores_of(pair, sets[name].n_structures), strict=True))
        for name, pair in variances.items()
        if name not in KNOWN_SETS
    ]
    pairs = [f"{energy:.3f} / {forces:.3f}" for energy, forces in (nll, ranking)]
    choice = f"λ {best.noise:.1g}, ω {best.force_weight:g}"
    choice += f", linear × {linear_scale:g}" if "+" in prior.name else ""
    return Measured(score=score, cells=[f"{score:.3f}", *pairs, *told_apart, choice])


def scores_of(variances: list[Tensor], n_structures: int) -> list[np.ndarray]:
    """Of each structure: variance of its energy, and of its forces together."""
    energy, forces = variances
    return [energy.numpy(), forces.reshape(n_structures, -1).sum(-1).numpy()]


def negative_log_likelihood(rows: Rows, variance: Tensor, held: Rows, held_variance: Tensor) -> float:
    """Of a normal distribution, in the model's unit, with σ scaled on held-out structures."""
    scaled = variance * (held.targets.square() / held_variance).mean()
    return float(0.5 * (scaled.log() + rows.targets.square() / scaled + math.log(2.0 * math.pi)).mean())


@torch.no_grad()
def table(directory: Path) -> list[str]:
    path = directory / "backbone" / "model.sigmaff"
    config = RunConfig.model_validate(read_header(path).record.config)
    data, potential = load_data(config), load_potential(path).eval()
    assert data.test is not None
    found = list(priors(potential, data.train))
    datasets = {"train": (data.train, TRAINING_ROWS), "validation": (data.validation, HELD_OUT_ROWS)}
    datasets["test"] = (first(data.test, N_TEST), ALL_ROWS)
    for name, other in config.ood.items():
        structures = read_structures(other.source)
        if set(structures.elements) <= set(potential.elements):
            datasets[name] = (first(foreign_dataset(potential, structures), N_TEST), ALL_ROWS)
    by_set = {name: seen(potential, found, dataset, limit) for name, (dataset, limit) in datasets.items()}
    others = [f"AUROC {name}" for name in datasets if name not in KNOWN_SETS]
    header = ["kernel", "labels of σ", "held-out score", "NLL", "Spearman", *others, "chosen"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for labels in ("energy+forces", "energy"):
        for name in dict.fromkeys(prior.name for prior in found):
            tried = [
                measure(prior, labels, {key: sets[k] for key, sets in by_set.items()})
                for k, prior in enumerate(found)
                if prior.name == name
            ]
            best = min(tried, key=lambda measured: measured.score)
            lines.append(f"| {name} | {labels} | {' | '.join(best.cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path, help="of comparisons whose backbone is trained")
    arguments = parser.parse_args()
    keep_large_blocks()
    print(f"energies / forces; NLL in the model's unit; {N_TEST} structures of each set; {describe_machine()}")
    for directory in arguments.directories:
        print(f"\n{directory}\n")
        print("\n".join(table(directory)), flush=True)


if __name__ == "__main__":
    main()
