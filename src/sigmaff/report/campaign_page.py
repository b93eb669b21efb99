"""An active-learning campaign as a page: how the error fell, which structures were picked and why, the cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sigmaff.report.figures import BLUE, GREY, INK, ORANGE, Array
from sigmaff.report.page import write_page
from sigmaff.report.sections import card
from sigmaff.report.tables import BLANK, quantity
from sigmaff.report.viewer import MAX_ATOMS, Frame, viewer_content

MAX_SHOWN = 6
"""Structures of a round that the viewer offers."""


@dataclass(frozen=True, kw_only=True)
class CampaignRound:
    """Figures of one round; ``None``: undefined. eV, Å."""

    number: int
    n_labels: int  # so far
    n_new: int
    n_held_out: int | None  # so far
    n_set_aside: int  # so far
    engine_calls: int  # so far
    trained: bool  # the backbone; else only the head was fitted
    seconds: float  # of training and fitting
    limit: float | None  # on the largest force σ of an atom, in the exploration that led here
    share_above: float | None  # of that exploration, beyond the limit
    fresh_forces_mae: float | None  # of the model before, on the selected structures of this round
    fresh_forces_rmse: float | None
    fresh_forces_std: float | None  # rms σ of the same
    random_forces_mae: float | None  # of the model before, on frames drawn at random from the exploration
    test_energy_mae: float | None
    test_forces_mae: float | None


@dataclass(frozen=True, kw_only=True)
class PickedStructure:
    """A structure that was selected or drawn at random, as the model before its label saw it."""

    name: str
    round: int
    origin: str
    why: str
    atomic_numbers: npt.NDArray[np.int64]  # (n_atoms,)
    positions: Array  # (n_atoms, 3)
    forces_std: Array | None  # (n_atoms, 3)
    forces_error: Array | None  # (n_atoms, 3); None: no label


def write_campaign_page(
    path: Path,
    rounds: Sequence[CampaignRound],
    picks: Sequence[PickedStructure],
    *,
    title: str,
    verdict: str,
    limit: str | None = None,
    force: bool = False,
) -> None:
    """One file without network; an existing one is replaced only with ``force``.

    Arguments:
        limit: what the last limit on σ promises; ``None``: there is none.
    """
    values = {
        "title": title,
        "verdict": verdict,
        "limit": limit,
        "cards": [card(name, partial(_draw, plot=plot, rounds=rounds), plot.caption) for name, plot in PLOTS.items()],
        "rows": [list(COLUMNS), *([cell(r) for cell in COLUMNS.values()] for r in rounds)],
        "picks": [_pick_row(pick) for pick in picks],
        "viewer": _viewer(picks),
    }
    write_page(path, "campaign_page.html", values, force=force)


# --- figures


class Line(NamedTuple):
    name: str
    color: str
    point: Callable[[CampaignRound], tuple[int, float | None]]


class Plot(NamedTuple):
    """Lines with one point for each round in which their value is known, and the labels of the axes."""

    x: str
    y: str
    caption: str
    lines: tuple[Line, ...]


PLOTS = {
    "learning-curve": Plot(
        "labels that the model knows",
        "force MAE (eV/Å)",
        "Force MAE against the number of labels: of test structures, if there are any, and of the structures of "
        "each round before their labels were known: those selected to be learned from, and those drawn at random from "
        "the exploration to be held out.",
        (
            Line("test structures", BLUE, lambda r: (r.n_labels, r.test_forces_mae)),
            Line("next structures to be selected", ORANGE, lambda r: (r.n_labels - r.n_new, r.fresh_forces_mae)),
            Line("random frames of the exploration", GREY, lambda r: (r.n_labels - r.n_new, r.random_forces_mae)),
        ),
    ),
    "rounds": Plot(
        "round",
        "eV/Å",
        "Predicted and true errors of the structures that the model picked: rms σ and rms error of force "
        "components, before the model learned from them.",
        (
            Line("σ of the picks", BLUE, lambda r: (r.number, r.fresh_forces_std)),
            Line("error of the picks", ORANGE, lambda r: (r.number, r.fresh_forces_rmse)),
            Line("limit on σ (largest of an atom)", GREY, lambda r: (r.number, r.limit)),
        ),
    ),
    "exploration": Plot(
        "round",
        "share of the exploration",
        "Share of the exploration that exceeded the limit on σ, or was cut off.",
        (Line("beyond the limit", INK, lambda r: (r.number, r.share_above)),),
    ),
    "cost": Plot(
        "round",
        "so far",
        "Calls of the engine, failures included, and labels from them.",
        (
            Line("calls of the engine", ORANGE, lambda r: (r.number, r.engine_calls)),
            Line("labels", BLUE, lambda r: (r.number, r.n_labels)),
        ),
    ),
}


def _draw(axes: Axes, plot: Plot, rounds: Sequence[CampaignRound]) -> None:
    for line in plot.lines:
        known = [(x, y) for x, y in map(line.point, rounds) if y is not None]
        if known:
            points = np.array(known, dtype=float).T
            axes.plot(*points, "o-", color=line.color, markersize=4, linewidth=1.4, label=line.name)
    axes.set(xlabel=plot.x, ylabel=plot.y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.set_ylim(bottom=0)
        axes.legend()


# --- tables


COLUMNS: dict[str, Callable[[CampaignRound], str]] = {
    "Round": lambda r: f"{r.number}",
    "Labels": lambda r: f"{r.n_labels}",
    "Held out": lambda r: BLANK if r.n_held_out is None else f"{r.n_held_out}",
    "Engine calls": lambda r: f"{r.engine_calls}",
    "Set aside": lambda r: f"{r.n_set_aside}",
    "Backbone": lambda r: "trained" if r.trained else "kept",
    "Fit (s)": lambda r: f"{r.seconds:.0f}",
    "Limit on σ (eV/Å)": lambda r: quantity(r.limit),
    "Beyond it": lambda r: BLANK if r.share_above is None else f"{r.share_above:.1%}",
    "F MAE of the selected (eV/Å)": lambda r: quantity(r.fresh_forces_mae),
    "F MAE of random frames (eV/Å)": lambda r: quantity(r.random_forces_mae),
    "Test F MAE (eV/Å)": lambda r: quantity(r.test_forces_mae),
    "Test E MAE (eV)": lambda r: quantity(r.test_energy_mae),
}


def _pick_row(pick: PickedStructure) -> tuple[str, ...]:
    error = "no label" if pick.forces_error is None else _largest(pick.forces_error)
    return pick.name, pick.origin, pick.why, _largest(pick.forces_std), error


def _largest(vectors: Array | None) -> str:
    return BLANK if vectors is None else quantity(float(np.linalg.norm(vectors, axis=1).max()))


# --- viewer


def _viewer(picks: Sequence[PickedStructure]) -> dict[str, object] | None:
    """Some structures of each round; ``None`` if none has a σ."""
    rounds: dict[int, list[Frame]] = {number: [] for number in sorted({pick.round for pick in picks})}
    for pick in picks:
        own = rounds[pick.round]
        if pick.forces_std is not None and len(pick.atomic_numbers) <= MAX_ATOMS and len(own) < MAX_SHOWN:
            own.append(
                Frame(
                    label=pick.name,
                    index=len(own),
                    atomic_numbers=pick.atomic_numbers,
                    positions=pick.positions,
                    forces_std=pick.forces_std,
                    forces_error=pick.forces_error,
                )
            )
    return viewer_content([(f"Round {number}", False, frames) for number, frames in rounds.items()])
