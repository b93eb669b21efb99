"""The figures of a report, each drawn on axes of its own ``Figure``: no pyplot, no state left behind.

Colours are from the Okabe-Ito set, so that they are told apart with any colour vision and in grey.
"""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from sigmaff.errors import DataError
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import auroc, mae, retention_curve, rmse
from sigmaff.evaluation.samples import Sample
from sigmaff.models.prediction import UNCALIBRATED

Array = npt.NDArray[np.float64]
Panel = Callable[[Axes], None]

BLUE, ORANGE, GREY, INK = "#0072b2", "#d55e00", "#8a9199", "#1d2329"
MAX_POINTS = 5000
ENERGY_STD_LABEL = "energy σ (meV/atom)"
COVERAGE_CAPTION = "How many {} errors lie within the interval that should hold the share on the horizontal axis."
FORCE_STD_LABEL = "force σ, rms over the structure (eV/Å)"
N_BINS = 12
TINY = 1e-12  # eV or eV/Å: the least value on a logarithmic axis
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "font.family": "sans-serif",
    "font.size": 8.5,
    "grid.color": "#e6e7e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "svg.fonttype": "none",
}


def energy_std_per_atom(evaluation: Evaluation) -> Array | None:
    """Calibrated energy σ over the number of atoms, meV/atom."""
    std = evaluation.per_atom(evaluation.energy_std)
    return None if std is None else 1e3 * std


def forces_std_rms(evaluation: Evaluation) -> Array | None:
    """Calibrated force σ of each structure, eV/Å."""
    return evaluation.structure_rms(evaluation.forces_std)


def subsample(n: int, limit: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Sorted indices of at most ``limit`` of n samples; the same ones every time."""
    if n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, limit, replace=False))


def draw_energy_parity(axes: Axes, evaluation: Evaluation) -> None:
    """Predicted against true energy about the mean; per atom where structures differ in size."""
    assert evaluation.energy is not None
    sizes = evaluation.atoms_per_structure
    same = bool(np.all(sizes == sizes[0]))
    divisor, unit = (1.0, "eV") if same else (sizes.astype(float), "eV/atom")
    true, predicted = evaluation.energy / divisor, evaluation.energy_predicted / divisor
    _draw_parity(axes, true - true.mean(), predicted - true.mean(), "energy about the mean", unit)


def draw_force_parity(axes: Axes, evaluation: Evaluation) -> None:
    """Predicted against true force components."""
    assert evaluation.forces is not None
    true, predicted = evaluation.forces.ravel(), evaluation.forces_predicted.ravel()
    _draw_parity(axes, true, predicted, "force component", "eV/Å")


def _draw_parity(axes: Axes, true: Array, predicted: Array, label: str, unit: str) -> None:
    chosen = subsample(len(true))
    low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
    margin = 0.04 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color=GREY, linewidth=0.9, zorder=1)
    axes.scatter(true[chosen], predicted[chosen], s=7, color=BLUE, alpha=0.35, linewidths=0, rasterized=True, zorder=2)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    axes.set(xlabel=f"true {label} ({unit})", ylabel=f"predicted {label} ({unit})")
    axes.locator_params(nbins=6)
    axes.set_title(f"MAE {mae(predicted - true):.3g}, RMSE {rmse(predicted - true):.3g} {unit}")


def prepare_coverage(axes: Axes, label: str | None = None, zorder: int = 2) -> None:
    """Axes of observed over expected coverage, with the line on which they agree."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle="--", label=label, zorder=zorder)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="expected coverage", ylabel="observed coverage")


def draw_calibration(axes: Axes, sample: Sample) -> None:
    """Observed against expected coverage of central intervals, for raw and calibrated σ."""
    prepare_coverage(axes, label="ideal", zorder=3)
    curves = [(sample.uncalibrated, GREY, "raw σ")]
    if sample.calibration != UNCALIBRATED:
        curves.append((sample, BLUE, "calibrated σ"))
    expected = np.linspace(0.0, 1.0, 101)
    for curve, color, name in curves:
        label = f"{name}: {curve.calibration_score():.3f}"
        axes.plot(expected, curve.coverage(expected), color=color, linewidth=1.8, label=label)
    axes.set_title(f"{sample.name}: central intervals")
    axes.legend(loc="upper left", title="calibration score", alignment="left", title_fontsize=8.0)


def draw_std_versus_error(axes: Axes, sample: Sample, ood: Sample | None) -> None:
    """Density of |error| over σ, and the rms error in bins of σ: on the line where σ is right."""
    size, std = sample.sizes, sample.std
    drawn = size > max(0.01 * float(np.median(size)), TINY)  # the logarithm of chance hits says nothing
    axes.set(xscale="log", yscale="log")
    density: dict[str, Any] = {"mincnt": 1, "bins": "log", "vmin": 0.3, "cmap": "Blues", "linewidths": 0.1}
    axes.hexbin(std[drawn], size[drawn], gridsize=44, xscale="log", yscale="log", rasterized=True, **density)
    _draw_binned(axes, sample, INK, "rms error, in distribution")
    if ood is not None:
        _draw_binned(axes, ood, ORANGE, "rms error, out of distribution")
    ends = np.array(axes.get_xlim())
    width = float(sample.calibration.multiplier(0.95))
    axes.plot(ends, ends, color=INK, linewidth=0.9, label="rms error = σ (ideal)")
    if np.isfinite(width):
        axes.plot(ends, width * ends, color=GREY, linewidth=0.9, linestyle="--", label="95 % lie below (ideal)")
    axes.set(xlim=ends, xlabel=f"{sample.name} σ ({sample.unit})", ylabel=f"|{sample.name} error| ({sample.unit})")
    plain_ticks(axes.xaxis, *axes.get_xlim())
    plain_ticks(axes.yaxis, *axes.get_ylim())
    axes.legend(loc="lower right", frameon=True, framealpha=0.8, edgecolor="none", fancybox=False)


def draw_growth(axes: Axes, sample: Sample, ood: Sample | None) -> None:
    """Rms force error in bins of σ, with and without growth; both σ have the same rms error/σ in distribution."""
    if sample.std_grown is None:
        raise ValueError("this calibration of force σ has no growth")
    factor = rmse(sample.errors / sample.std_raw) / rmse(sample.errors / sample.std_grown)
    axes.set(xscale="log", yscale="log")
    for part, color, name in ((sample, INK, "in distribution"), (ood, ORANGE, "out of distribution")):
        if part is not None:
            plain = replace(part, std_raw=factor * part.std_raw, std_grown=None)
            _draw_binned(axes, plain, color, f"{name}, without growth", "o:", alpha=0.5)
            _draw_binned(axes, part, color, f"{name}, with growth")
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=INK, linewidth=0.9, label="rms error = σ (ideal)")
    axes.set(xlim=ends, xlabel=f"force σ ({sample.unit})", ylabel=f"rms force error ({sample.unit})")
    plain_ticks(axes.xaxis, *axes.get_xlim())
    plain_ticks(axes.yaxis, *axes.get_ylim())
    axes.legend(loc="lower right", frameon=True, framealpha=0.8, edgecolor="none", fancybox=False)


def draw_std_histogram(axes: Axes, std: Array, ood: Array | None, label: str) -> None:
    """Histograms of σ by structure on shared logarithmic bins, and how well σ tells the two sets apart."""
    everything = _positive(std if ood is None else np.concatenate([std, ood]))
    low, high = float(everything.min()), float(everything.max())
    bins = np.geomspace(low / 1.05, high * 1.05, 41).tolist()
    for values, color, name in ((std, BLUE, "in distribution"), (ood, ORANGE, "out of distribution")):
        if values is not None:
            weights = np.full(values.size, 1 / values.size)
            axes.hist(values, bins, weights=weights, histtype="stepfilled", color=color, alpha=0.7, label=name)
    if ood is not None:
        axes.set_title(f"AUROC {auroc(std, ood):.3f}")
    axes.set(xscale="log", xlabel=label, ylabel="share of structures")
    axes.grid(visible=False, axis="x")
    plain_ticks(axes.xaxis, low, high)
    axes.legend()


def draw_retention(axes: Axes, error: Array, std: Array, label: str) -> None:
    """Mean error left if the structures of lowest σ are predicted and all others computed exactly."""
    size = np.abs(error)
    drawn = np.unique(np.linspace(0, size.size, 401).astype(int))
    orders = ((std, BLUE, 1.8, "by lowest σ"), (size, INK, 0.9, "by lowest error (best)"))
    for order, color, width, name in orders:
        share, left = retention_curve(size, _positive(order))
        axes.plot(share[drawn], left[drawn], color=color, linewidth=width, label=name)
    axes.plot([0, 1], [0, size.mean()], color=GREY, linewidth=0.9, linestyle="--", label="at random")
    axes.set(xlim=(0, 1), xlabel="share of structures predicted", ylabel=f"mean {label} left")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_binned(axes: Axes, sample: Sample, color: str, name: str, line: str = "o-", *, alpha: float = 1.0) -> None:
    """Rms error over rms σ in bins of equal count along σ."""
    error, std = sample.errors, sample.std
    bins = [members for members in np.array_split(np.argsort(std, kind="stable"), N_BINS) if members.size]
    points = np.array([(rmse(std[members]), rmse(error[members])) for members in bins])
    axes.plot(*points.T, line, color=color, markersize=4, linewidth=0.8, label=name, alpha=alpha)


def _positive(values: Array) -> Array:
    """Values for a logarithmic axis: zeros at a millionth of the largest."""
    return np.maximum(values, max(1e-6 * float(values.max()), TINY))


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Plain numbers at the powers of ten of a logarithmic axis; also at 2 and 5 times them if few."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    plain_numbers(axis)


def plain_numbers(axis: Axis) -> None:
    """No powers of ten and no minor ticks on a logarithmic axis."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def new_figure(*panels: Panel, width: float = 5.0, height: float = 4.2) -> Figure:
    """A figure with one column for each panel; sizes in inches, ``width`` that of one column."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        figure.patch.set_alpha(0.0)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.patch.set_alpha(0.0)
            panel(axes)
    return figure


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element for a page: ids begin with ``name``, texts stay texts, no metadata."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(text, format="svg", dpi=180, metadata={"Date": None})
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)


def readme_figure(evaluation: Evaluation, ood: Evaluation) -> Figure:
    """Force parity, calibration of the force σ, and σ in and out of distribution, side by side on white."""
    sample, std, std_ood = evaluation.samples.get("forces"), forces_std_rms(evaluation), forces_std_rms(ood)
    if sample is None or std is None or std_ood is None:
        raise DataError("the README figure needs force labels, and force σ of both data sets")
    figure = new_figure(
        lambda axes: draw_force_parity(axes, evaluation),
        lambda axes: draw_calibration(axes, sample),
        lambda axes: draw_std_histogram(axes, std, std_ood, FORCE_STD_LABEL),
        width=4.2,
        height=3.9,
    )
    figure.patch.set(facecolor="white", alpha=1.0)
    return figure
