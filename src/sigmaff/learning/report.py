"""What a campaign's files tell: errors of structures before they were learned from, and the page of it all."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ase import Atoms

from sigmaff.learning.directory import Directory, Round, read_frames, read_json
from sigmaff.learning.labels import label_id
from sigmaff.report.campaign_page import CampaignRound, PickedStructure, write_campaign_page


def fresh_errors(place: Round) -> dict[str, float | None] | None:
    """Of the model of the round before on the labels of this one, eV and Å; ``None`` where there are no labels."""
    pairs = [(predicted, true) for _, predicted, true in _selected(place) if true is not None]
    if not pairs:
        return None
    energy = [(one.get_potential_energy() - two.get_potential_energy()) / len(one) for one, two in pairs]
    forces = np.concatenate([_forces_error(one, two) for one, two in pairs])
    stds = [one.arrays["forces_uncertainty"] for one, _ in pairs if "forces_uncertainty" in one.arrays]
    return {
        "energy_mae_per_atom": float(np.mean(np.abs(energy))),
        "forces_mae": float(np.mean(np.abs(forces))),
        "forces_rmse": float(np.sqrt(np.mean(forces**2))),
        "forces_std": float(np.sqrt(np.mean(np.concatenate(stds) ** 2))) if stds else None,
    }


def write_campaign_report(directory: Directory, rounds: Sequence[dict[str, Any]], reason: str | None) -> None:
    places = [directory.round(figures["round"]) for figures in rounds]
    picks = [pick for place in places[1:] for pick in _picks(place)]
    last = rounds[-1]
    state = f"ended: {reason}" if reason else f"under way, {len(rounds) - 1} rounds done"
    write_campaign_page(
        directory.report,
        [_round(directory, figures) for figures in rounds],
        picks,
        title=f"Campaign {directory.path.name}",
        verdict=f"{last['n_labels']} labels from {last['engine_calls']} calls of the engine; {state}.",
        force=True,
    )


def _round(directory: Directory, figures: dict[str, Any]) -> CampaignRound:
    number = figures["round"]
    explored = read_json(directory.round(number).explored) if number else {"limit": None, "share_above": None}
    fresh, test = figures["fresh"] or {}, figures["test"] or {}
    return CampaignRound(
        number=number,
        n_labels=figures["n_labels"],
        n_new=figures["n_new"],
        n_set_aside=figures["n_set_aside"],
        engine_calls=figures["engine_calls"],
        trained=figures["backbone"]["round"] == number,
        seconds=figures["seconds"],
        limit=None if explored["limit"] is None else explored["limit"]["value"],
        share_above=explored["share_above"],
        fresh_forces_mae=fresh.get("forces_mae"),
        fresh_forces_rmse=fresh.get("forces_rmse"),
        fresh_forces_std=fresh.get("forces_std"),
        test_energy_mae=test.get("energy_mae"),
        test_forces_mae=test.get("forces_mae"),
    )


def _picks(place: Round) -> Iterator[PickedStructure]:
    for index, predicted, true in _selected(place):
        yield PickedStructure(
            name=label_id(place, index),
            round=place.number,
            origin=_origin(predicted),
            why=_why(predicted, index),
            atomic_numbers=predicted.numbers,
            positions=predicted.positions,
            forces_std=predicted.arrays.get("forces_uncertainty"),
            forces_error=None if true is None else _forces_error(predicted, true),
        )


def _selected(place: Round) -> Iterator[tuple[int, Atoms, Atoms | None]]:
    """Index, structure with predictions, structure with its label, if it has one."""
    for index, predicted in enumerate(read_frames(place.selected)):
        path = place.label(index)
        yield index, predicted, read_frames(path)[0] if path.exists() else None


def _origin(atoms: Atoms) -> str:
    info = atoms.info
    if "pool_index" in info:
        return f"structure {info['pool_index']} of the pool"
    return f"{info['temperature']:g} K, replica {info['replica']}, step {info['step']}"


def _why(atoms: Atoms, index: int) -> str:
    if "variance_share" in atoms.info:
        share = float(atoms.info["variance_share"])
        return f"choice {index + 1}: its label takes away {share:.1%} of the variance of candidates' forces"
    return "drawn at random" if atoms.info["method"] == "random" else f"choice {index + 1} by largest force σ"


def _forces_error(predicted: Atoms, true: Atoms) -> np.ndarray:
    return np.asarray(predicted.get_forces() - true.get_forces())
