"""The HTML page of a campaign."""

from collections.abc import Iterator, Sequence

from ase import Atoms

from sigmaff.learning.directory import Directory, Round
from sigmaff.learning.labels import is_drawn, selected_in
from sigmaff.learning.records import Explored, RoundSummary, read_file
from sigmaff.report.campaign_page import CampaignRound, PickedStructure, write_campaign_page
from sigmaff.simulation.md import Threshold


def write_campaign_report(directory: Directory, rounds: Sequence[RoundSummary], reason: str | None) -> None:
    """Write ``report.html``. reason: why the campaign is over; ``None``: it is not."""
    last = rounds[-1]
    state = f"ended: {reason}" if reason else f"under way, {len(rounds) - 1} rounds done"
    limit = _last_limit(directory, last.round)
    write_campaign_page(
        directory.report,
        [_round(directory, summary) for summary in rounds],
        [pick for summary in rounds[1:] for pick in _picks(directory.round(summary.round))],
        title=f"Campaign {directory.path.name}",
        verdict=f"{last.n_labels} labels from {last.engine_calls} calls of the engine; {state}.",
        limit=None if limit is None else limit.statement,
        force=True,
    )


def _last_limit(directory: Directory, number: int) -> Threshold | None:
    """Of the last exploration: after the last round, if one has begun, else that of the round."""
    paths = [directory.round(number + 1).explored, directory.round(number).explored]
    explored = [read_file(path, Explored) for path in paths if path.exists()]
    return explored[0].limit if explored else None


def _round(directory: Directory, summary: RoundSummary) -> CampaignRound:
    explored = read_file(directory.round(summary.round).explored, Explored) if summary.round else None
    fresh, random = ({} if errors is None else errors.model_dump() for errors in (summary.fresh, summary.random))
    return CampaignRound(
        **summary.model_dump(include={"n_labels", "n_new", "n_held_out", "n_set_aside", "engine_calls"}),
        number=summary.round,
        trained=summary.backbone is not None and summary.backbone.round == summary.round,
        seconds=summary.seconds or 0.0,
        limit=None if explored is None or explored.limit is None else explored.limit.value,
        share_above=None if explored is None else explored.share_above,
        fresh_forces_mae=fresh.get("forces_mae"),
        fresh_forces_rmse=fresh.get("forces_rmse"),
        fresh_forces_std=fresh.get("forces_std"),
        random_forces_mae=random.get("forces_mae"),
        test_energy_mae=summary.test_value("energy_mae"),
        test_forces_mae=summary.test_value("forces_mae"),
    )


def _picks(round_: Round) -> Iterator[PickedStructure]:
    for index, predicted, true in selected_in(round_):
        yield PickedStructure(
            name=round_.label_id(index),
            round=round_.number,
            origin=_origin(predicted),
            why=_why(predicted, index),
            atomic_numbers=predicted.numbers,
            positions=predicted.positions,
            forces_std=predicted.arrays.get("forces_uncertainty"),
            forces_error=None if true is None else predicted.get_forces() - true.get_forces(),
        )


def _origin(atoms: Atoms) -> str:
    info = atoms.info
    if "pool_index" in info:
        return f"structure {info['pool_index']} of the pool"
    return f"{info['temperature']:g} K, replica {info['replica']}, step {info['step']}"


def _why(atoms: Atoms, index: int) -> str:
    if is_drawn(atoms):
        return "drawn at random from the exploration, and held out"
    if "variance_share" in atoms.info:
        share = float(atoms.info["variance_share"])
        return f"choice {index + 1}: its label takes away {share:.1%} of the variance of candidates' forces"
    if "variance_left" in atoms.info:
        left = float(atoms.info["variance_left"])
        return f"choice {index + 1}: earlier choices leave {left:.1%} of the variance of its energy"
    return "drawn at random" if atoms.info["method"] == "random" else f"choice {index + 1} by largest force σ"
