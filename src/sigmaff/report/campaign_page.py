"""A campaign of active learning as a page: how the error fell, what was picked and why, what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from ase.data import chemical_symbols, covalent_radii
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sigmaff.report import figures
from sigmaff.report.figures import BLUE, GREY, INK, ORANGE, TINY, Array
from sigmaff.report.page import write_page
from sigmaff.report.sections import Card
from sigmaff.report.tables import BLANK, quantity
from sigmaff.report.viewer import COLOUR_STOPS, MAX_ATOMS, bonds, face_on

MAX_SHOWN = 6
"""Structures of a round that the viewer offers."""


@dataclass(frozen=True, kw_only=True)
class CampaignRound:
    """Figures of one round; ``None`` where there is none. eV, Å."""

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
    wanted = [
        (
            "learning-curve",
            _draw_learning_curve,
            "Force MAE against the number of labels: of test structures, where there are any, and of the structures "
            "of each round before the model had learned from them.",
        ),
        (
            "rounds",
            _draw_rounds,
            "What the model said of the structures that it picked, and how wrong it was: rms σ and rms error of force "
            "components, before it learned from them.",
        ),
        ("exploration", _draw_exploration, "Share of the exploration that lay beyond the limit on σ, or was cut off."),
        ("cost", _draw_cost, "Calls of the engine, failures included, and labels that came of them."),
    ]
    return [
        Card(svg=Markup(figures.to_svg(figures.new_figure(partial(draw, rounds=rounds)), name)), caption=caption)
        for name, draw, caption in wanted
    ]


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


def _round_rows(rounds: Sequence[CampaignRound]) -> list[tuple[str, ...]]:
    header = (
        "Round",
        "Labels",
        "Engine calls",
        "Set aside",
        "Backbone",
        "Fit (s)",
        "Limit on σ (eV/Å)",
        "Beyond it",
        "F MAE of the new ones (eV/Å)",
        "Test F MAE (eV/Å)",
        "Test E MAE (eV)",
    )
    return [
        header,
        *(
            (
                f"{r.number}",
                f"{r.n_labels}",
                f"{r.engine_calls}",
                f"{r.n_set_aside}",
                "trained" if r.trained else "kept",
                f"{r.seconds:.0f}",
                _number(r.limit),
                BLANK if r.share_above is None else f"{r.share_above:.1%}",
                _number(r.fresh_forces_mae),
                _number(r.test_forces_mae),
                _number(r.test_energy_mae),
            )
            for r in rounds
        ),
    ]


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


def _number(value: float | None) -> str:
    return BLANK if value is None else quantity(value)


# --- viewer


def _viewer(picks: Sequence[PickedStructure]) -> dict[str, object] | None:
    """Some structures of each round, on one logarithmic scale of colours; ``None`` where there is no σ to show."""
    shown = [pick for pick in picks if pick.forces_std is not None and len(pick.atomic_numbers) <= MAX_ATOMS]
    if not shown:
        return None
    sets = []
    for number in sorted({pick.round for pick in shown}):
        own = [pick for pick in shown if pick.round == number][:MAX_SHOWN]
        sets.append({"name": f"Round {number}", "frames": [_frame(pick, k) for k, pick in enumerate(own)]})
    std = np.concatenate([_rms(pick.forces_std) for pick in shown])
    high = max(float(std.max()), TINY)
    low = min(max(float(std.min()), 1e-3 * high), 0.8 * high)
    return {"stops": COLOUR_STOPS, "low": low, "middle": (low * high) ** 0.5, "high": high, "sets": sets}


def _frame(pick: PickedStructure, index: int) -> dict[str, object]:
    std, radii = _rms(pick.forces_std), covalent_radii[pick.atomic_numbers]
    return {
        "label": pick.name,
        "index": index,
        "rms": float(np.sqrt(np.mean(std**2))),
        "elements": [chemical_symbols[number] for number in pick.atomic_numbers],
        "positions": np.round(face_on(pick.positions), 3).tolist(),
        "radii": np.round(0.15 + 0.5 * radii, 3).tolist(),
        "std": np.maximum(std, TINY).tolist(),
        "error": None if pick.forces_error is None else _rms(pick.forces_error).tolist(),
        "bonds": bonds(pick.positions, radii),
    }


def _rms(vectors: Array | None) -> Array:
    """Root mean square of the three components, (n_atoms, 3) -> (n_atoms,)."""
    assert vectors is not None
    return np.asarray(np.sqrt(np.mean(vectors**2, axis=1)))
