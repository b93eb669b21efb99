"""The report: one HTML file that holds its figures, tables, style and script."""

import os
from collections.abc import Mapping
from pathlib import Path

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.stability import Stability
from sigmaff.evaluation.summary import summarize
from sigmaff.files import refuse_overwrite
from sigmaff.report.page import write_page
from sigmaff.report.path import EnergyPath, path_section
from sigmaff.report.sections import all_sections
from sigmaff.report.stability import stability_section
from sigmaff.report.tables import group_rows, key_figures, meaning_of_std, timing_table, verdict
from sigmaff.report.viewer import MAX_ATOMS, viewer_data


def write_report(
    path: str | os.PathLike[str],
    evaluation: Evaluation,
    ood: Evaluation | None = None,
    *,
    title: str,
    model_info: Mapping[str, object],
    along: EnergyPath | None = None,
    stability: Stability | None = None,
    timings: Mapping[str, float] | None = None,
    force: bool = False,
) -> None:
    """Write the report of an evaluation, and of one out of distribution (``ood``), to ``path``.

    ``model_info`` is shown as it is, mappings in it as nested tables; ``along`` is a path of structures
    (``follow_path``); ``stability`` is a stability test; ``timings`` are in seconds. An existing file is replaced only
    with ``force``; the file is written whole or not at all.
    """
    refuse_overwrite(Path(path), force)
    summary, of_ood = summarize(evaluation, ood), None if ood is None else summarize(ood)
    values = {
        "title": title,
        "verdict": verdict(summary, evaluation.name, of_ood, None if ood is None else ood.name),
        "name": evaluation.name,
        "ood_name": "" if ood is None else ood.name,
        "has_ood": ood is not None,
        "groups": key_figures(summary, of_ood),
        "by_group": group_rows(evaluation),
        "sections": [
            *([] if stability is None else [stability_section(stability)]),
            *([] if along is None else [path_section(along)]),
            *all_sections(evaluation, ood),
        ],
        "viewer": viewer_data(evaluation, ood),
        "no_viewer": _no_viewer(evaluation),
        "meaning": meaning_of_std(evaluation),
        "timings": timing_table(evaluation, timings or {}),
        "model_info": model_info,
    }
    write_page(Path(path), "report_page.html", values, force=force)


def _no_viewer(evaluation: Evaluation) -> str:
    if evaluation.forces_std is None:
        return "Not shown: there is no force σ to colour the atoms by."
    return f"Not shown: all structures have more than {MAX_ATOMS} atoms."
