"""A comparison of methods as a table: JSON, Markdown, HTML."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sigmaff.experiments.compare import Cell
from sigmaff.files import write_json, written_whole
from sigmaff.report import write_table_page
from sigmaff.units import KCAL_PER_MOL


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure of all methods."""

    label: str
    value: Callable[[Cell], float | None]
    digits: int = 3

    def text(self, cell: Cell) -> str:
        value = None if cell.failed is not None else self.value(cell)
        return "–" if value is None or not math.isfinite(value) else f"{value:.{self.digits}f}"


def _metric(key: str, scale: float = 1.0) -> Callable[[Cell], float | None]:
    def value(cell: Cell) -> float | None:
        found = cell.record.get("metrics", {}).get(key)
        return None if found is None else scale * found

    return value


def _ood(name: str, key: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell.record.get("ood", {}).get(name, {}).get(key)


def columns(cells: Sequence[Cell]) -> list[Column]:
    """All measures; energies in kcal/mol, so that errors can be held against the literature."""
    found = []
    for quantity, unit, letter in (("energy", "kcal/mol", "E"), ("forces", "kcal/mol/Å", "F")):
        found += [
            Column(label=f"{letter} MAE ({unit})", value=_metric(f"{quantity}_mae", 1.0 / KCAL_PER_MOL), digits=4),
            Column(label=f"{letter} calibration, raw", value=_metric(f"{quantity}_calibration_raw")),
            Column(label=f"{letter} calibration", value=_metric(f"{quantity}_calibration")),
            Column(label=f"{letter} NLL", value=_metric(f"{quantity}_nll"), digits=2),
            Column(label=f"{letter} CRPS ({unit})", value=_metric(f"{quantity}_crps", 1.0 / KCAL_PER_MOL), digits=4),
            Column(label=f"{letter} Spearman", value=_metric(f"{quantity}_spearman")),
        ]
    sets = list(dict.fromkeys(name for cell in cells for name in cell.record.get("ood", {})))
    for name in sets:
        found += [
            Column(label=f"AUROC {name}, E σ per atom", value=_ood(name, "energy_auroc"), digits=4),
            Column(label=f"AUROC {name}, F σ", value=_ood(name, "forces_auroc"), digits=4),
        ]
    return [
        *found,
        Column(label="ms, E + F + E σ", value=lambda cell: cell.milliseconds.get("none"), digits=2),
        Column(label="ms, with F σ", value=lambda cell: cell.milliseconds.get("auto"), digits=2),
        Column(label="training (min)", value=lambda cell: cell.training_seconds / 60, digits=1),
        Column(label="fit (s)", value=lambda cell: cell.fit_seconds, digits=0),
        Column(label="parameters", value=lambda cell: cell.n_parameters, digits=0),
    ]


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A header, then one row for each method."""
    measures = columns(cells)
    return [
        ["method", *(column.label for column in measures)],
        *([cell.method, *(column.text(cell) for column in measures)] for cell in cells),
    ]


def markdown(cells: Sequence[Cell]) -> str:
    header, *body = rows(cells)
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
    lines += [f"\n{cell.method}: {cell.failed}" for cell in cells if cell.failed is not None]
    return "\n".join(lines) + "\n"


def write_comparison(directory: Path, cells: Sequence[Cell]) -> list[Path]:
    """``comparison.json``, ``.md`` and ``.html``, replaced where they are."""
    paths = [directory / f"comparison.{ending}" for ending in ("json", "md", "html")]
    write_json(paths[0], [_content(cell) for cell in cells], force=True)
    with written_whole(paths[1], force=True) as temporary:
        temporary.write_text(markdown(cells), encoding="utf-8")
    failures = {cell.method: cell.failed for cell in cells if cell.failed is not None}
    write_table_page(paths[2], "Methods compared", rows(cells), notes=failures, force=True)
    return paths


def _content(cell: Cell) -> dict[str, Any]:
    """Without the split, which every model file holds."""
    content = asdict(cell)
    content["record"].pop("split", None)
    return content
