"""Heads that are computed, not trained, on the frozen backbone of a potential with a deterministic head."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from sigmaff.data import GraphDataset
from sigmaff.heads import HeadConfig
from sigmaff.models import Potential
from sigmaff.training.closed_form import fit_closed_form
from sigmaff.training.exact_gp import fit_exact_gp
from sigmaff.training.latent_distance import fit_latent_distance
from sigmaff.training.shallow_ensemble import fit_shallow_ensemble

FitProgress = Callable[[int, int], None]
"""Called with the number of structures done and their total."""


class FitHead(Protocol):
    """A potential with a fitted head on the backbone of the given one, and a dataclass that tells what was chosen."""

    def __call__(
        self,
        potential: Potential,
        config: Any,
        train_set: GraphDataset,
        held_out: GraphDataset,
        *,
        seed: int,
        progress: FitProgress | None,
    ) -> tuple[Potential, Any]: ...


FITS: dict[str, FitHead] = {
    "gp": fit_exact_gp,
    "latent_distance": fit_latent_distance,
    "llpr": fit_closed_form,
    "lnk": fit_closed_form,
    "shallow_ensemble": fit_shallow_ensemble,
}
"""By name of the head."""


def fit_head(
    potential: Potential,
    config: HeadConfig,
    train_set: GraphDataset,
    held_out: GraphDataset,
    *,
    seed: int = 0,
    progress: FitProgress | None = None,
) -> tuple[Potential, dict[str, Any]]:
    """The potential with its new head, and what the fit chose, for the record in its file."""
    fitted, result = FITS[config.name](potential, config, train_set, held_out, seed=seed, progress=progress)
    return fitted, asdict(result)
