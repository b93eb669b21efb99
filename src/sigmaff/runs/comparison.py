"""A comparison of methods as a table: JSON, Markdown, HTML."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sigmaff.files import atomic_write, write_json
from sigmaff.report import write_table_page
from sigmaff.runs.compare import Cell
from sigmaff.units import KCAL_PER_MOL

Value = Callable[[Cell], float | None]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One measure of all methods: of energies and of forces, or of the whole."""

    label: str
    values: tuple[Value, ...]
    digits: int = 3

    def text(self, cell: Cell) -> str:
        found = [None if cell.failed is not None else value(cell) for value in self.values]
        if all(number is None for number in found):
            return "–"
        return " / ".join("–" if number is None else f"{number:.{self.digits}f}" for number in found)


def _metrics(key: str, scale: float = 1.0) -> tuple[Value, Value]:
    """Of energies, and of forces."""

    def of(quantity: str) -> Value:
        def value(cell: Cell) -> float | None:
            found = (cell.record.metrics or {}).get(f"{quantity}_{key}")
            return scale * found if isinstance(found, float | int) else None

        return value

    return of("energy"), of("forces")


def _auroc(name: str) -> tuple[Value, Value]:
    """By energy σ per atom, and by force σ."""
    return (
        lambda cell: cell.record.ood.get(name, {}).get("energy_auroc"),
        lambda cell: cell.record.ood.get(name, {}).get("forces_auroc"),
    )


def columns(cells: Sequence[Cell]) -> list[Column]:
    """All measures, energies / forces; in kcal/mol and Å, so that errors can be held against the literature."""
    sets = dict.fromkeys(name for cell in cells for name in cell.record.ood)
    return [
        Column(label="MAE (kcal/mol, /Å)", values=_metrics("mae", 1.0 / KCAL_PER_MOL), digits=4),
        Column(label="calibration, raw", values=_metrics("calibration_raw")),
        Column(label="calibration", values=_metrics("calibration")),
        Column(label="NLL (eV, eV/Å)", values=_metrics("nll"), digits=2),
        Column(label="CRPS (kcal/mol, /Å)", values=_metrics("crps", 1.0 / KCAL_PER_MOL), digits=4),
        Column(label="Spearman", values=_metrics("spearman")),
        *(Column(label=f"AUROC {name}", values=_auroc(name), digits=4) for name in sets),
        Column(
            label="ms: with energy σ / every σ",
            values=(lambda cell: cell.milliseconds.get("none"), lambda cell: cell.milliseconds.get("auto")),
            digits=2,
        ),
        Column(label="training (min)", values=(lambda cell: cell.training_seconds / 60,), digits=1),
        Column(label="fit (s)", values=(lambda cell: cell.fit_seconds,), digits=0),
        Column(label="parameters", values=(lambda cell: cell.n_parameters,), digits=0),
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
    with atomic_write(paths[1], force=True) as temporary:
        temporary.write_text(markdown(cells), encoding="utf-8")
    failures = {cell.method: cell.failed for cell in cells if cell.failed is not None}
    write_table_page(paths[2], "Methods compared", rows(cells), notes=failures, force=True)
    return paths


def _content(cell: Cell) -> dict[str, Any]:
    """Without the split, which every model file holds."""
    return asdict(cell) | {"record": cell.record.model_dump(mode="json", exclude={"split"})}
