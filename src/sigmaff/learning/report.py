"""Errors on new labels before they are learned from, and the HTML page of a campaign."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase import Atoms

from sigmaff.learning.directory import Directory, Round
from sigmaff.learning.labels import selected_in
from sigmaff.learning.records import Explored, FreshErrors, RoundSummary, read_file
from sigmaff.report.campaign_page import CampaignRound, PickedStructure, write_campaign_page
from sigmaff.simulation.md import Threshold


def fresh_errors(round_: Round, *, drawn: bool) -> FreshErrors | None:
    """Errors of the model of the round before on the labels of this one; ``None`` without labels.

    Arguments:
        drawn: of those drawn at random to hold out; else of those that were selected.
    """
    pairs = [(one, two) for _, one, two in selected_in(round_) if two is not None and _is_drawn(one) == drawn]
    if not pairs:
        return None
    energy = [(one.get_potential_energy() - two.get_potential_energy()) / len(one) for one, two in pairs]
    forces = np.concatenate([one.get_forces() - two.get_forces() for one, two in pairs])
    stds = [one.arrays["forces_uncertainty"] for one, _ in pairs if "forces_uncertainty" in one.arrays]
    return FreshErrors(
        energy_mae_per_atom=float(np.mean(np.abs(energy))),
        forces_mae=float(np.mean(np.abs(forces))),
        forces_rmse=float(np.sqrt(np.mean(forces**2))),
        forces_std=float(np.sqrt(np.mean(np.concatenate(stds) ** 2))) if stds else None,
    )


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
        trained=summary.backbone.round == summary.round,
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


def _is_drawn(atoms: Atoms) -> bool:
    """Whether a structure was drawn at random to hold out. In version 0.1 none was."""
    return bool(atoms.info.get("held_out", False))


def _why(atoms: Atoms, index: int) -> str:
    if _is_drawn(atoms):
        return "drawn at random from the exploration, and held out"
    if "variance_share" in atoms.info:
        share = float(atoms.info["variance_share"])
        return f"choice {index + 1}: its label takes away {share:.1%} of the variance of candidates' forces"
    if "variance_left" in atoms.info:
        left = float(atoms.info["variance_left"])
        return f"choice {index + 1}: earlier choices leave {left:.1%} of the variance of its energy"
    return "drawn at random" if atoms.info["method"] == "random" else f"choice {index + 1} by largest force σ"
