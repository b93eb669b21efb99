"""The section of a report on the stability test."""

from functools import partial

from matplotlib.axes import Axes

from sigmaff.evaluation.stability import Stability
from sigmaff.report.figures import BLUE, GREY, INK, ORANGE
from sigmaff.report.sections import Section, card


def stability_section(found: Stability) -> Section:
    lead = "Dynamics at constant energy from some of these structures. Small test errors do not make it stable."
    caption = "Each run in time: blue within the range of σ, orange beyond it; ┃ bonds change, ✕ it breaks."
    remarks = [
        f"{found.headline[0].upper()}{found.headline[1:]}.",
        f"Time step {found.timestep:g} fs; temperature: {found.temperature_from}.",
        *([f"Limits on σ: {found.limits}."] if found.limits else []),
    ]
    panel = card("stability", partial(draw_stability, found=found), caption)
    return Section("Is it stable in dynamics?", lead, [panel], remarks, found.rows())


def draw_stability(axes: Axes, found: Stability) -> None:
    """One bar for each run."""
    for row, run in enumerate(found.runs):
        known = run.length if run.crossed_at is None else run.crossed_at
        axes.barh(row, known, height=0.5, color=BLUE if found.limits else GREY)
        axes.barh(row, run.length - known, left=known, height=0.5, color=ORANGE)
        for at, marker in ((run.bonds_at, "|"), (run.broke_at, "x")):
            if at is not None:
                axes.plot([at], [row], marker=marker, color=INK, markersize=9, markeredgewidth=1.8, linestyle="none")
    axes.set_yticks(range(len(found.runs)), [f"frame {run.frame}" for run in found.runs])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.03 * found.length), xlabel="time (fs)")
    axes.grid(visible=False, axis="y")
