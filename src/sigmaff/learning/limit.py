"""The limit on σ of an exploration: what the frames drawn at random from earlier explorations promise of it.

The promise is that of conformal risk control (``sigmaff.simulation.md.threshold``), for a structure that is
exchangeable with the calibration structures. Selected structures are not like frames of an exploration, because they
were selected for their σ, nor are those of the start. So only frames count that were drawn at random from all that an
exploration visited, those included that stopped a replica.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from sigmaff.errors import ConfigError
from sigmaff.learning.config import ExploreConfig
from sigmaff.simulation.md import Scores, Threshold, choose_threshold


def choose_limit(config: ExploreConfig, scores: Scores, drawn_in: Sequence[int | None]) -> Threshold:
    """The largest force σ of a held-out structure, or less to keep the risk; ``accepted`` is set if it is kept.

    The latest exploration resembles the next one most: its frames are the calibration structures if they are enough for
    the risk, else those of all explorations.

    Arguments:
        scores: of all held-out structures.
        drawn_in: for each of them the round from whose exploration it was drawn at random, or ``None``.
    """
    rounds, n_needed = np.array([number or 0 for number in drawn_in]), ceil(1.0 / config.risk) - 1
    latest = int(rounds.max())
    first = latest if latest and np.sum(rounds == latest) >= n_needed else 1
    drawn = replace(scores.part(rounds >= first), chose_model=True)  # early stopping and calibration look at them
    largest = float(scores.forces_std.max())
    words = f"limit on force σ: {largest:.4g} eV/Å, the largest of a held-out structure"
    if len(drawn) < n_needed:
        count = f"{n_needed} labels drawn at random from explorations, and there are {len(drawn)}"
        return Threshold(value=largest, statement=f"{words}. No promise yet: a risk of {config.risk:g} takes {count}")
    try:
        risk = choose_threshold("auto", config.error_above, config.risk, drawn)
    except ConfigError as reason:
        return Threshold(value=largest, statement=f"{words}. No promise yet: {reason}")
    assert risk is not None  # only without a limit
    oldest = int(rounds[rounds >= first].min())
    where = f"exploration of round {latest}" if oldest == latest else f"explorations of rounds {oldest} to {latest}"
    origin = f"drawn at random from the {where}, labelled and not trained on"
    assumed = "assumed: this exploration visits structures like them"
    if risk.accepted != 1.0:
        return Threshold(
            value=risk.value,
            statement=f"{risk.statement}. The calibration structures were {origin}; {assumed}",
            accepted=risk.accepted,
        )
    statement = (
        f"{words}. The risk asks for no smaller one: whatever its σ, a structure like {len(drawn)} that were {origin}, "
        f"has a force error above {config.error_above:g} eV/Å with a chance of at most {config.risk:g} (conformal risk "
        f"control; {assumed})"
    )
    return Threshold(value=largest, statement=statement, accepted=1.0)
