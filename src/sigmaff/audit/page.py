"""Audits as a page: the table of the six desiderata, and for each of them its plots, sentences, numbers and limits."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from sigmaff.audit.audit import DESIDERATA, Audit, audit_table
from sigmaff.audit.finding import Finding, Series, Tolerance
from sigmaff.report import figures
from sigmaff.report.page import write_page
from sigmaff.report.sections import Card, card
from sigmaff.report.tables import BLANK, quantity

_OTHER_COLORS = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # of the Okabe-Ito set
COLORS = (figures.BLUE, figures.ORANGE, *_OTHER_COLORS, figures.INK, figures.GREY)
STYLES = ("-", "--", ":", "-.")
LEADS = {
    "Symmetry": "Nothing may depend on how a structure is turned, mirrored or placed, or its atoms are numbered.",
    "Energy conservation": "Forces are the slope of the energy: work around closed paths is zero, and a simulation "
    "at constant energy keeps it.",
    "Locality": "What is far away does not matter: energies of far copies add up, and σ grows with their number by a "
    "law, σ ∝ n where their errors are the same, σ² ∝ n where they are taken as independent.",
    "Accuracy": "A σ must not cost accuracy.",
    "Confidence": "σ is as large as errors are, larger where they are larger, and largest where all is new.",
    "Speed": "σ costs little beside the energy and forces themselves.",
}

Lines = Sequence[tuple[str, Series]]
"""Subjects and their series."""


def write_audit_page(path: Path, audits: Sequence[Audit], *, title: str, force: bool = False) -> None:
    """One file without network; an existing one is replaced only with ``force``."""
    values = {
        "title": title,
        "verdict": " ".join(_verdict(audit) for audit in audits),
        "names": [audit.name for audit in audits],
        "rows": audit_table(audits),
        "sections": [_section(name, audits) for name in DESIDERATA],
    }
    write_page(path, "audit_page.html", values, force=force)


def _verdict(audit: Audit) -> str:
    counts = [sum(finding.verdict == verdict for finding in audit.findings) for verdict in ("holds", "approximately")]
    nearly = f" and {counts[1]} approximately" if counts[1] else ""
    return f"{audit.name} holds {counts[0]} of {len(DESIDERATA)}{nearly}."


def _section(name: str, audits: Sequence[Audit]) -> dict[str, object]:
    """A desideratum."""
    found = [(audit.name, audit[name]) for audit in audits]
    return {
        "heading": name,
        "lead": LEADS[name],
        "cards": _cards([(subject, series) for subject, finding in found for series in finding.series]),
        "sentences": [(subject, finding.mark, finding.sentence) for subject, finding in found],
        "numbers": _rows([finding for _, finding in found]),
    }


def _rows(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """The numbers of all subjects, judged ones first, and their limits."""
    tolerances = {key: tolerance for finding in findings for key, tolerance in finding.tolerances.items()}
    keys = dict.fromkeys([*tolerances, *(key for finding in findings for key in finding.numbers)])
    return [
        {
            "label": key.replace("_", " "),
            "limits": _limits(tolerances[key]) if key in tolerances else "",
            "reason": tolerances[key].reason if key in tolerances else "",
            "cells": [_number(finding.numbers.get(key)) for finding in findings],
        }
        for key in keys
    ]


def _number(value: float | None) -> str:
    if value is None:
        return BLANK
    small = 0 < abs(value) < 1e-3
    return f"{value:.1e}".replace("-", "−") if small else quantity(value)


def _limits(tolerance: Tolerance) -> str:
    sign = "≥" if tolerance.at_least else "≤"
    return f"{sign} {tolerance.holds:.3g}; {sign} {tolerance.approximately:.3g} {tolerance.unit}".rstrip()


# --- plots: one line for each subject


def _cards(lines: Lines) -> list[Card]:
    cards = []
    for plot, (draw, caption) in PLOTS.items():
        own = [(subject, series) for subject, series in lines if series.plot == plot]
        if own:
            cards.append(card(plot.replace(" ", "-"), partial(draw, lines=own), caption))
    return cards


def _draw(axes: Axes, lines: Lines) -> None:
    for number, (subject, series) in enumerate(lines):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        axes.plot(series.x, series.y, color=color, linestyle=style, linewidth=1.4, label=subject)
    axes.legend()


def _draw_locality(axes: Axes, lines: Lines) -> None:
    n = np.array(max((series.x for _, series in lines), key=len))
    for exponent, name in ((1.0, "∝ n"), (0.5, "∝ √n")):
        axes.plot(n, n**exponent, color=figures.GREY, linewidth=0.8, linestyle=":")
        axes.annotate(name, (n[-1], n[-1] ** exponent), xytext=(3, 0), textcoords="offset points", fontsize=8)
    _draw(axes, lines)
    axes.set(xscale="log", yscale="log", xlabel="copies n, 15 Å apart", ylabel="energy σ of n copies over that of one")
    axes.set_xticks(n)
    for axis in (axes.xaxis, axes.yaxis):
        figures.plain_numbers(axis)


def _draw_nve(axes: Axes, lines: Lines) -> None:
    _draw(axes, lines)
    axes.set(xlabel="time (ps)", ylabel="total energy about its mean (meV/atom)")


def _draw_calibration(axes: Axes, lines: Lines) -> None:
    figures.prepare_coverage(axes)
    _draw(axes, lines)
    axes.legend(loc="upper left")


PLOTS: dict[str, tuple[Callable[..., None], str]] = {
    "nve": (
        _draw_nve,
        "Total energy of a run at constant energy, averaged over short times; velocity Verlet, steps of 0.5 fs.",
    ),
    "locality": (_draw_locality, "Energy σ of far copies of one structure, on logarithmic axes."),
    "calibration of energies": (_draw_calibration, figures.COVERAGE_CAPTION.format("energy")),
    "calibration of forces": (_draw_calibration, figures.COVERAGE_CAPTION.format("force")),
    "calibration of stress": (_draw_calibration, figures.COVERAGE_CAPTION.format("stress")),
}
