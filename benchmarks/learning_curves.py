"""Active learning of ethanol with GFN2-xTB: labels chosen by σ against labels drawn at random, from 20 frames on.

| strategy | explores | picks |
|---|---|---|
| σ | guarded by σ | by the share of variance that a label takes away |
| largest σ | guarded by σ | by largest σ |
| random | guarded by σ | at random |
| without σ | unguarded | at random |

Each seed and strategy is a campaign in a directory of its own; the same command resumes. All
start from the same labels, train in the same way, and are tested on the same structures.

python benchmarks/learning_curves.py runs/learning_curves
"""

import argparse
import json
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from machine import describe_machine, prepare, progress
from matplotlib.axes import Axes
from xtb_ethanol import ENGINE, data_file

from sigmaff.learning import CampaignConfig, learn
from sigmaff.report import figures

STRATEGIES = {"σ": "variance_reduction", "largest σ": "sigma", "random": "random", "without σ": "random"}
COLORS = {"σ": figures.BLUE, "largest σ": "#009e73", "random": figures.ORANGE, "without σ": figures.GREY}
BASELINES = ("random", "without σ")
BACKBONE = {"name": "schnet", "n_hidden": 64, "n_filters": 64, "n_interactions": 3, "n_gaussians": 32}
TRAINING = {
    "batch_size": 5,
    "validate_every": 5,
    "learning_rate": 2e-3,
    "schedule": {"name": "cosine", "warmup_steps": 20, "final_fraction": 0.0},
    "ema_decay": 0.99,
    "threads": 1,
    "tensorboard": False,
    "accelerator": "cpu",
}
Curve = dict[int, float]
"""Test force MAE, eV/Å, by number of labels."""


def campaign(folder: Path, strategy: str, seed: int, options: argparse.Namespace) -> CampaignConfig:
    start = data_file(folder / f"start-{seed}.extxyz", [options.start_temperature], options.start, 100 + seed)
    test = data_file(folder / "test.extxyz", options.temperature, options.test, 0)
    return CampaignConfig.model_validate(
        {
            "start": {"source": str(start), "n_labels": options.start, "use_labels": True},
            "engine": ENGINE,
            "model": {"backbone": BACKBONE, "head": {"name": "lnk"}},
            "training": TRAINING | {"max_epochs": options.epochs},
            "retrain": {"every": 1},
            "explore": {
                "temperature": options.temperature,
                "starts": 4,
                "replicas": options.replicas,
                "steps": options.steps,
                "trust_below": None if strategy == "without σ" else "auto",
                "error_above": options.error_above,
                "risk": 0.2,
            },
            "select": {"n": options.n, "method": STRATEGIES[strategy], "lower": 0.0, "upper": options.upper},
            "stop": {
                "max_rounds": 1000,
                "max_labels": options.labels * (1 + (strategy in BASELINES)),
                "share_above": None,
            },
            "test": str(test),
            "cluster": {"n_workers": options.workers},
            "output": folder / f"{strategy.replace(' ', '-').replace('σ', 'sigma')}-{seed}",
            "seed": seed,
        }
    )


def labels_needed(curve: Curve, error: float) -> float:
    """Labels at which a curve first comes down to this error, on a line between its points; infinite if never."""
    points = sorted(curve.items())
    for (n_before, before), (n_after, after) in pairwise(points):
        if after <= error < before:
            return n_before + (n_after - n_before) * (before - error) / (before - after)
    return points[0][0] if points[0][1] <= error else np.inf


def mean_curve(curves: list[Curve]) -> Curve:
    shared = set.intersection(*(set(curve) for curve in curves))
    return {n: float(np.mean([curve[n] for curve in curves])) for n in sorted(shared)}


def table(curves: dict[str, list[Curve]]) -> str:
    """Mean over seeds at each number of labels, and the labels that a random choice needs for as small an error."""
    means = {strategy: mean_curve(found) for strategy, found in curves.items()}
    lines = [f"| labels | {' | '.join(f'{strategy} (eV/Å)' for strategy in means)} |", "|---" * (len(means) + 1) + "|"]
    for n in sorted(set.union(*(set(mean) for mean in means.values()))):
        errors = (f"{mean[n]:.4f}" if n in mean else "–" for mean in means.values())
        lines.append(f"| {n} | {' | '.join(errors)} |")
    for strategy, baseline in product(means, BASELINES):
        if strategy not in BASELINES and baseline in means:
            lines += [
                "",
                f"labels that {baseline} needs for the error of {strategy}, by the means and by each seed:",
                "",
            ]
            lines += [f"| labels of {strategy} | means |{' seed |' * len(curves[strategy])}"]
            lines += ["|---" * (2 + len(curves[strategy])) + "|"]
            pairs = [(means[strategy], means[baseline]), *zip(curves[strategy], curves[baseline], strict=True)]
            for n in means[strategy]:
                lines.append(f"| {n} | {' | '.join(times(n, drawn, curve[n]) for curve, drawn in pairs)} |")
    return "\n".join(lines)


def times(n: int, drawn: Curve, error: float) -> str:
    """Labels that a random choice needs for this error, and how many times n they are."""
    needed = labels_needed(drawn, error)
    return f"{needed:.0f} ({needed / n:.2f} ×)" if np.isfinite(needed) else f"> {max(drawn)} (> {max(drawn) / n:.2f} ×)"


def draw(axes: Axes, curves: dict[str, list[Curve]]) -> None:
    for strategy, found in curves.items():
        for curve in found:
            axes.plot(*zip(*sorted(curve.items()), strict=True), color=COLORS[strategy], linewidth=0.6, alpha=0.6)
        mean = sorted(mean_curve(found).items())
        name = f"{strategy}, mean of {len(found)}"
        axes.plot(*zip(*mean, strict=True), "o-", color=COLORS[strategy], markersize=4, linewidth=1.8, label=name)
    axes.set(xscale="log", yscale="log", xlabel="labels", ylabel="test force MAE (eV/Å)")
    for axis, ticks in ((axes.xaxis, (20, 30, 40, 60, 80, 120)), (axes.yaxis, (0.07, 0.1, 0.15, 0.2))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="directory of all campaigns")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["σ", "random", "without σ"])
    parser.add_argument("--start", type=int, default=20, help="labelled frames to begin with")
    parser.add_argument("--start-temperature", type=float, default=300.0, help="K, of these")
    parser.add_argument("--temperature", type=float, nargs="+", default=[300.0, 500.0, 1000.0], help="K")
    parser.add_argument(
        "--labels", type=int, default=60, help="of campaigns that pick by σ; others continue to twice that"
    )
    parser.add_argument("--n", type=int, default=10, help="labels of a round")
    parser.add_argument("--upper", type=float, default=1.5, help="limits on σ at which a replica is stopped")
    parser.add_argument("--steps", type=int, default=1000, help="of each exploring replica")
    parser.add_argument("--replicas", type=int, default=2, help="of each start at each temperature")
    parser.add_argument(
        "--error-above", type=float, default=1.0, help="eV/Å, force error that exploration guards against"
    )
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--test", type=int, default=300, help="test structures")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    prepare()
    curves: dict[str, list[Curve]] = {strategy: [] for strategy in options.strategies}
    with progress() as terminal:
        for seed in range(options.seeds):
            for strategy in options.strategies:
                result = learn(campaign(options.folder, strategy, seed, options), terminal)
                curves[strategy].append({r.n_labels: r.test_value("forces_mae") for r in result.rounds})
    figure = figures.new_figure(lambda axes: draw(axes, curves))
    figure.patch.set(facecolor="white", alpha=1.0)
    figure.savefig(options.folder / "learning_curves.svg")
    (options.folder / "learning_curves.json").write_text(json.dumps(curves, indent=2) + "\n")
    text = f"{options.seeds} seeds, {describe_machine()}\n\n{table(curves)}\n"
    (options.folder / "learning_curves.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
