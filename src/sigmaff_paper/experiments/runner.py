"""Cells side by side: what is done is kept, what fails is told of, what waits for it is not tried."""

from collections.abc import Sequence
from functools import partial

from sigmaff.errors import ConfigError
from sigmaff.progress import Listener
from sigmaff.tasks import ClusterConfig, run_tasks, workers
from sigmaff_paper.experiments.cell import Cell, CellResult, Place, do_cell, finished


def run_cells(cells: Sequence[Cell], place: Place, cluster: ClusterConfig, listener: Listener) -> dict[str, CellResult]:
    """Results by name, of all cells. Processes are started only where there is something left to do."""
    results: dict[str, CellResult] = {}
    for cell in cells:
        if (known := _known(cell, place)) is not None:
            results[cell.name] = known
    if _ready(cells, results):
        with workers(cluster) as client:
            while ready := _ready(cells, results):
                listener.stage(f"{len(results)} of {len(cells)} cells done, {len(ready)} can be made now")
                for outcome in run_tasks(partial(do_cell, place), ready, client):
                    cell = ready[outcome.index]
                    results[cell.name] = _became(cell, place, outcome.error)
                    if outcome.error is not None:
                        listener.warn(f"{cell.name} has no result: {outcome.error}")
                    listener.advance(len(results), len(cells))
    return {cell.name: results.get(cell.name) or _stuck(cell, results) for cell in cells}


def _known(cell: Cell, place: Place) -> CellResult | None:
    """What can be said of a cell before any work."""
    try:
        if (result := finished(cell, place)) is not None:
            return result
    except ConfigError as error:
        return CellResult(name=cell.name, status="failed", reason=str(error))
    lacking = cell.missing()
    return None if lacking is None else CellResult(name=cell.name, status="missing", reason=lacking)


def _ready(cells: Sequence[Cell], results: dict[str, CellResult]) -> list[Cell]:
    """Cells that are not tried yet, and wait for none."""
    done = {name for name, result in results.items() if result.status == "done"}
    return [cell for cell in cells if cell.name not in results and done.issuperset(cell.after)]


def _became(cell: Cell, place: Place, error: str | None) -> CellResult:
    if error is not None:
        return CellResult(name=cell.name, status="failed", reason=error)
    result = finished(cell, place)
    assert result is not None
    return result


def _stuck(cell: Cell, results: dict[str, CellResult]) -> CellResult:
    """A cell that waits for one without a result, which may itself wait."""
    lost = next(name for name in cell.after if name not in results or results[name].status != "done")
    reason = f"needs {lost}, which has no result"
    status = results[lost].status if lost in results else "failed"
    return CellResult(name=cell.name, status=status, reason=reason)
