"""An active-learning campaign as a page: how the error fell, which structures were picked and why, the cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sigmaff.report.figures import BLUE, GREY, INK, ORANGE, Array
from sigmaff.report.page import write_page
from sigmaff.report.sections import Card, card
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
    n_set_aside: int  # so far
    engine_calls: int  # so far
    trained: bool  # the backbone; else only the head was fitted
    seconds: float  # of training and fitting
    limit: float | None  # on the largest force σ of an atom, in the exploration that led here
    share_above: float | None  # of that exploration, beyond the limit
    fresh_forces_mae: float | None  # of the model before, on the structures of this round
    fresh_forces_rmse: float | None
    fresh_forces_std: float | None  # rms σ of the same
    test_energy_mae: float | None
    test_forces_mae: float | None


@dataclass(frozen=True, kw_only=True)
class PickedStructure:
    """A structure that was selected, as the model before its label saw it."""

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
    force: bool = False,
) -> None:
    """One file without network; an existing one is replaced only with ``force``."""
    values = {
        "title": title,
        "verdict": verdict,
        "cards": _cards(rounds),
        "rows": _round_rows(rounds),
        "picks": [_pick_row(pick) for pick in picks],
        "viewer": _viewer(picks),
    }
    write_page(path, "campaign_page.html", values, force=force)


# --- figures


def _cards(rounds: Sequence[CampaignRound]) -> list[Card]:
    wanted = {
        "learning-curve": (
            _draw_learning_curve,
            "Force MAE against the number of labels: of test structures, if there are any, and of the structures of "
            "each round before the model learned from them.",
        ),
        "rounds": (
            _draw_rounds,
            "Predicted and true errors of the structures that the model picked: rms σ and rms error of force "
            "components, before the model learned from them.",
        ),
        "exploration": (_draw_exploration, "Share of the exploration that exceeded the limit on σ, or was cut off."),
        "cost": (_draw_cost, "Calls of the engine, failures included, and labels from them."),
    }
    return [card(name, partial(draw, rounds=rounds), caption) for name, (draw, caption) in wanted.items()]


def _line(axes: Axes, points: Sequence[tuple[int, float | None]], color: str, name: str) -> None:
    known = [(x, y) for x, y in points if y is not None]
    if known:
        axes.plot(*np.array(known, dtype=float).T, "o-", color=color, markersize=4, linewidth=1.4, label=name)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.set_ylim(bottom=0)
        axes.legend()


def _draw_learning_curve(axes: Axes, rounds: Sequence[CampaignRound]) -> None:
    _line(axes, [(r.n_labels, r.test_forces_mae) for r in rounds], BLUE, "test structures")
    _line(axes, [(r.n_labels - r.n_new, r.fresh_forces_mae) for r in rounds], ORANGE, "next structures to be labelled")
    _finish(axes, "labels that the model knows", "force MAE (eV/Å)")


def _draw_rounds(axes: Axes, rounds: Sequence[CampaignRound]) -> None:
    _line(axes, [(r.number, r.fresh_forces_std) for r in rounds], BLUE, "σ of the picks")
    _line(axes, [(r.number, r.fresh_forces_rmse) for r in rounds], ORANGE, "error of the picks")
    _line(axes, [(r.number, r.limit) for r in rounds], GREY, "limit on σ (largest of an atom)")
    _finish(axes, "round", "eV/Å")


def _draw_exploration(axes: Axes, rounds: Sequence[CampaignRound]) -> None:
    _line(axes, [(r.number, r.share_above) for r in rounds], INK, "beyond the limit")
    _finish(axes, "round", "share of the exploration")


def _draw_cost(axes: Axes, rounds: Sequence[CampaignRound]) -> None:
    _line(axes, [(r.number, r.engine_calls) for r in rounds], ORANGE, "calls of the engine")
    _line(axes, [(r.number, r.n_labels) for r in rounds], BLUE, "labels")
    _finish(axes, "round", "so far")


# --- tables


COLUMNS: dict[str, Callable[[CampaignRound], str]] = {
    "Round": lambda r: f"{r.number}",
    "Labels": lambda r: f"{r.n_labels}",
    "Engine calls": lambda r: f"{r.engine_calls}",
    "Set aside": lambda r: f"{r.n_set_aside}",
    "Backbone": lambda r: "trained" if r.trained else "kept",
    "Fit (s)": lambda r: f"{r.seconds:.0f}",
    "Limit on σ (eV/Å)": lambda r: quantity(r.limit),
    "Beyond it": lambda r: BLANK if r.share_above is None else f"{r.share_above:.1%}",
    "F MAE of the new ones (eV/Å)": lambda r: quantity(r.fresh_forces_mae),
    "Test F MAE (eV/Å)": lambda r: quantity(r.test_forces_mae),
    "Test E MAE (eV)": lambda r: quantity(r.test_energy_mae),
}


def _round_rows(rounds: Sequence[CampaignRound]) -> list[list[str]]:
    return [list(COLUMNS), *([cell(r) for cell in COLUMNS.values()] for r in rounds)]


def _pick_row(pick: PickedStructure) -> tuple[str, ...]:
    return (
        pick.name,
        pick.origin,
        pick.why,
        _largest(pick.forces_std),
        "no label" if pick.forces_error is None else _largest(pick.forces_error),
    )


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
