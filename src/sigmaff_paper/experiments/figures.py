"""The figures of the experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigmaff.report.figures import BLUE, GREY, INK, ORANGE, STYLE, Panel, new_figure, to_svg
from sigmaff_paper.experiments.experiment import ResultTable

Matrix = npt.NDArray[np.float64]
COLORS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00", INK)
"""Okabe-Ito colours."""
LEGIBLE = 0.6
"""Numbers above this value are white on the dark heat map."""


def on_white(*panels: Panel, width: float = 5.0, height: float = 4.2) -> Figure:
    figure = new_figure(*panels, width=width, height=height)
    figure.patch.set(facecolor="white", alpha=1.0)
    return figure


def png(figure: Figure, path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format="png", dpi=160)


def svg(figure: Figure, name: str) -> str:
    """Return the content of an SVG file."""
    return '<?xml version="1.0" encoding="utf-8"?>\n' + to_svg(figure, name)


def dots(table: ResultTable, *, logarithmic: bool = True, label: str = "") -> Figure:
    """Plot our entries of a table as dots with the paper's, row by row from the top."""
    entries = [
        (", ".join((*labels, column)), entry)
        for labels, row in table.rows.items()
        for column, entry in zip(table.columns, row, strict=True)
        if entry.ours is not None
    ]

    def panel(axes: Axes) -> None:
        places = -np.arange(len(entries))
        ours = [entry.ours for _, entry in entries if entry.ours is not None]
        published = [(place, entry.paper) for place, (_, entry) in zip(places, entries, strict=True) if entry.paper]
        axes.plot(ours, places, "o", color=BLUE, markersize=5, label="here")
        if published:
            where, values = zip(*published, strict=True)
            axes.plot(values, where, "o", markerfacecolor="none", color=ORANGE, markersize=6, label="paper")
        axes.set_yticks(places, [name for name, _ in entries])
        axes.set(xlabel=label, title=table.title.partition(":")[0], ylim=(0.3 - max(len(entries), 1), 0.7))
        if logarithmic and entries:
            axes.set_xscale("log")
        axes.legend(loc="best")

    return on_white(panel, width=7.5, height=max(2.2, 0.9 + 0.2 * len(entries)))


def heat_maps(maps: Mapping[str, Matrix], names: Sequence[str]) -> Figure:
    """Plot AUROC by trained (rows) and other molecule (columns); NaN is blank."""

    def panel_of(title: str, values: Matrix) -> Panel:
        def panel(axes: Axes) -> None:
            axes.imshow(values, cmap="Blues", vmin=0.0, vmax=1.0)
            axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names)
            axes.set_title(title)
            axes.grid(visible=False)
            for (row, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    color = "white" if value > LEGIBLE else INK
                    axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=7.5)

        return panel

    return on_white(*(panel_of(title, values) for title, values in maps.items()), width=3.4, height=3.6)


def growth(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Plot σ of n distant copies relative to σ of one, with n and √n."""

    def panel(axes: Axes) -> None:
        n = np.arange(1, 1 + max(len(curve) for curve in curves.values()))
        for exponent, name, style in ((1.0, "n", "--"), (0.5, "√n", ":")):
            axes.plot(n, n**exponent, style, color=GREY, linewidth=0.9, label=name)
        for (name, curve), color in zip(curves.items(), COLORS, strict=False):
            axes.plot(n[: len(curve)], curve, "o-", color=color, markersize=3.5, linewidth=1.2, label=name)
        axes.set(xlabel="copies, 15 Å apart", ylabel="energy σ / energy σ of one", xscale="log", yscale="log")
        axes.set_xticks(n, [str(count) for count in n])
        axes.minorticks_off()
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    return on_white(panel, width=7.0)
