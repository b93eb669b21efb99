"""The fit of the latent distance: Gaussians of the training embeddings, and a scale of σ from held-out energies."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import Tensor

from sigmaff.errors import ConfigError, DataError
from sigmaff.heads.base import FitSummary
from sigmaff.heads.latent_distance.mixture import Mixture, Regularization, fit_mixture, ledoit_wolf_shrinkage
from sigmaff.heads.lnk.inducing import share_out
from sigmaff.heads.observations import Observations
from sigmaff.progress import Listener

if TYPE_CHECKING:
    from sigmaff.heads.latent_distance.head import LatentDistance

MAX_ATOMS = 20_000
"""Most training atoms of an element that are used; if there are more, they are drawn at random."""
UNSEEN_FACTOR = 10.0
"""Distance of an element without training atoms, in units of the largest distance of a training or held-out atom."""
CHUNK = 4096
"""Atoms whose distances are computed at once."""


@dataclass(frozen=True, kw_only=True)
class LatentDistanceFit(FitSummary):
    """What the fit found."""

    distance: str
    n_atoms: dict[str, int]  # by element, of those looked at
    shrinkage: dict[str, float]  # of the covariance of an element's embeddings
    n_points: int
    scale: float  # normalised energy for a unit of distance
    largest_distance: float


@torch.no_grad()
def solve(
    head: "LatentDistance", train: Observations, held_out: Observations, *, seed: int, listener: Listener
) -> LatentDistanceFit:
    """Describe the training embeddings, and scale σ to the errors of held-out energies."""
    generator, config = np.random.default_rng(seed), head.config
    features, numbers, _ = train.embeddings()
    clouds = _by_element(head, features, numbers, generator)
    listener.advance(len(train), len(train) + len(held_out))
    shrinkage = _describe(head, clouds, generator)
    if config.distance == "knn":
        _keep_points(head, clouds, generator)
    parts = zip(features.split(CHUNK), numbers.split(CHUNK), strict=True)
    largest = max(*(float(head.distances(*part).max()) for part in parts), _scale(head, held_out))
    head.unseen_distance.fill_(UNSEEN_FACTOR * (largest or 1.0))
    listener.advance(len(train) + len(held_out), len(train) + len(held_out))
    symbols = [chemical_symbols[number] for number in head.elements]
    return LatentDistanceFit(
        distance=config.distance,
        n_atoms=dict(zip(symbols, map(len, clouds), strict=True)),
        shrinkage=dict(zip(symbols, shrinkage, strict=True)),
        n_points=int((head.point_numbers > 0).sum()),
        scale=float(head.scale),
        largest_distance=largest,
    )


def _by_element(
    head: "LatentDistance", features: Tensor, numbers: Tensor, generator: np.random.Generator
) -> list[Tensor]:
    """The embeddings that are looked at, of each element of the head."""
    clouds = []
    for number in head.elements:
        atoms = (numbers == number).nonzero().squeeze(-1).cpu().numpy()
        if not len(atoms):
            raise DataError(f"no training structure holds {chemical_symbols[number]}, an element of the backbone")
        if len(atoms) > MAX_ATOMS:
            atoms = np.sort(generator.choice(atoms, MAX_ATOMS, replace=False))
        clouds.append(head.compared(features[torch.as_tensor(atoms)]))
    return clouds


def _describe(head: "LatentDistance", clouds: list[Tensor], generator: np.random.Generator) -> list[float]:
    """Write the Gaussians of each element into the head; the shrinkage of each element's covariance."""
    variances = torch.stack([cloud.var(0, correction=0).mean() for cloud in clouds])
    spread = float(torch.tensor([len(cloud) for cloud in clouds], device=variances.device).double() @ variances)
    spread = spread / sum(len(cloud) for cloud in clouds) or 1.0
    shrinkage = [ledoit_wolf_shrinkage(cloud) for cloud in clouds]
    for element, cloud in enumerate(clouds):
        regularization = Regularization(shrinkage=shrinkage[element], spread=spread)
        mixture = fit_mixture(cloud, head.means.shape[1], regularization, generator)
        head.means[element] = mixture.means
        head.whitening[element] = mixture.whitening
        head.log_heights[element] = _relative_heights(mixture)
    return shrinkage


def _relative_heights(mixture: Mixture) -> Tensor:
    """log(weight · density at the mean) of each Gaussian, relative to the density at the highest of the means."""
    at_means = mixture.log_parts(mixture.means)
    return at_means.diagonal() - at_means.logsumexp(-1).max()


def _keep_points(head: "LatentDistance", clouds: list[Tensor], generator: np.random.Generator) -> None:
    """Training embeddings drawn at random, which keeps their density: shared out by the root of their numbers."""
    n_points, n_atoms = head.config.n_points, [len(cloud) for cloud in clouds]
    if n_points < len(clouds):
        raise ConfigError(f"n_points is {n_points}, but {len(clouds)} elements need at least one point each")
    shares = share_out(min(n_points, sum(n_atoms)), [n**0.5 for n in n_atoms], n_atoms)
    first = 0
    for element, (cloud, share) in enumerate(zip(clouds, shares, strict=True)):
        chosen = torch.as_tensor(generator.permutation(len(cloud))[:share])
        place = slice(first, first + share)
        head.points[place] = head.standardized(cloud[chosen], element)[0]
        head.point_numbers[place] = head.elements[element]
        first += share


def _scale(head: "LatentDistance", held_out: Observations) -> float:
    """Set s so that σ and the error of held-out energies have the same mean square. The largest distance there."""
    misses, distances, largest = [], [], 0.0
    for batch in held_out.batches():
        energy_miss, _ = batch.misses()
        features = batch.embeddings()
        distribution = head(features, batch.graph)
        assert distribution.variance is not None
        misses.append(energy_miss)
        distances.append(distribution.variance)
        largest = max(largest, float(head.distances(features, batch.graph.atomic_numbers).max()))
    ratio = float(torch.cat(misses).square().mean() / torch.cat(distances).mean())
    if 0.0 < ratio < float("inf"):
        head.scale.fill_(ratio**0.5)
    return largest
