"""The fit of the exact Gaussian process: rows of energies and forces, and its hyper-parameters.

Lengthscale, noises and scale are those of the greatest marginal likelihood y ~ N(0, s²(K + noise)) of rows of a few
structures; s² = yᵀ(K + noise)⁻¹y/n is profiled out, once more on all rows at the end.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from sigmaff.errors import DataError
from sigmaff.graph import Embedding
from sigmaff.graph.ops import unit_displacements
from sigmaff.heads.base import FitSummary, pooled
from sigmaff.heads.gp.rows import Geometry, ValuesAndSlopes, factorized, prior_variance
from sigmaff.heads.kernels import StationaryKernel
from sigmaff.heads.observations import Observations, ObservedBatch
from sigmaff.heads.posterior import at_ends
from sigmaff.progress import Listener

if TYPE_CHECKING:
    from sigmaff.heads.gp.head import GP, GPConfig

SEARCH_ROWS = 800
"""Rows, a quarter of them energies, whose likelihood chooses the hyper-parameters; it costs their third power."""
LEAST_SPREAD = 0.05
"""Smallest spread of a feature, in units of the largest: a feature that hardly varies is not amplified."""
LENGTHSCALES = (1.0, 5.0)
"""From which the search starts, in units of the rms distance between structures."""
LENGTH_BOUNDS = (0.1, 100.0)
FIRST_NOISE = 1e-4
"""Noise variance from which the search starts: of energies over s², of forces over their mean prior variance."""
NOISE_BOUNDS = (1e-10, 1e-1)
SEARCH = {"maxiter": 40}


@dataclass(frozen=True, kw_only=True)
class GPFit(FitSummary):
    """What the fit chose. Noises and scale are σ in eV and eV/Å."""

    kernel: str
    n_energy_rows: int
    n_force_rows: int
    lengthscale: float  # in units of the rms distance between structures
    scale: float
    energy_noise: float
    forces_noise: float
    log_likelihood: float  # of a row in the search, in the model's normalised unit
    at_ends: tuple[str, ...]  # hyper-parameters at the smallest or largest value that the search allows


class _Observed(NamedTuple):
    """Rows before standardisation, and their labels."""

    rows: ValuesAndSlopes
    energies: Tensor  # (n,)
    forces: Tensor  # (m,)


class _Choice(NamedTuple):
    lengthscale: float
    noise: Tensor  # (2,) relative to s²
    log_likelihood: float
    at_ends: tuple[str, ...]


@torch.no_grad()
def solve(head: "GP", train: Observations, held_out: Observations, *, seed: int, listener: Listener) -> GPFit:
    """Compute the Gaussian process of some training structures. Nothing is chosen on the held-out structures."""
    chosen, components = draw(head.config, train, seed)
    observed = _observe(head.embedding, train, chosen, components, listener)
    rows = _standardised(head, observed.rows)
    head.constant.copy_(observed.energies.mean())
    targets = torch.cat([observed.energies - head.constant, observed.forces])
    choice = _choose(head.kernel, *_for_search(rows, targets))
    head.set_rows(rows, targets, choice.lengthscale, 1.0, choice.noise)
    head.scale.copy_((targets @ head.weights / len(rows)).sqrt())
    for end in choice.at_ends:
        listener.warn(f"{end} that the search allows: σ may depend on where it ends")
    unit = float(head.scale) * train.scale
    return GPFit(
        kernel=head.config.kernel,
        n_energy_rows=len(chosen),
        n_force_rows=len(components),
        lengthscale=choice.lengthscale / _rms_distance(rows),
        scale=unit,
        energy_noise=unit * math.sqrt(float(choice.noise[0])),
        forces_noise=unit * math.sqrt(float(choice.noise[1])),
        log_likelihood=choice.log_likelihood,
        at_ends=choice.at_ends,
    )


def draw(config: "GPConfig", train: Observations, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Structures in random order, and some of the force components on all their atoms, in increasing order."""
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(train))[: config.n_structures]
    n_components = 3 * int(train.n_atoms[chosen].sum()) if train.has_forces else 0
    return chosen, np.sort(generator.permutation(n_components)[: config.n_force_rows])


def _observe(
    embedding: Embedding, train: Observations, chosen: np.ndarray, components: np.ndarray, listener: Listener
) -> _Observed:
    """Energies of the chosen structures, and the chosen force components."""
    inputs, energies, tangents, forces, owners = [], [], [], [], []
    done = first = 0
    for batch in train.batches(chosen):
        graph = batch.graph
        energy, force = batch.targets()
        inputs.append(pooled(embedding, batch.embeddings(), graph))
        energies.append(energy)
        own = components[(components >= first) & (components < first + 3 * graph.n_atoms)] - first
        if len(own) and force is not None:
            which = torch.as_tensor(own, device=force.device)
            structure = graph.structure_index[which // 3]
            direction = 3 * graph.atom_rank()[which // 3] + which % 3
            tangents.append(-_all_tangents(embedding, batch)[direction, structure])
            forces.append(force.flatten()[which])
            owners.append(structure + done)
        done, first = done + graph.n_structures, first + 3 * graph.n_atoms
        listener.advance(done, len(chosen))
    z = torch.cat(inputs)
    none = (z.new_zeros(0, z.shape[1]), torch.zeros(0, dtype=torch.int64, device=z.device), z.new_zeros(0))
    rows = ValuesAndSlopes(z, torch.cat([none[0], *tangents]), torch.cat([none[1], *owners]))
    return _Observed(rows, torch.cat(energies), torch.cat([none[2], *forces]))


def _all_tangents(embedding: Embedding, batch: ObservedBatch) -> Tensor:
    """∂z/∂x for every coordinate of the structures of a batch, (3 · n_largest, n_structures, d)."""
    n_largest = int(batch.graph.atoms_per_structure().max())
    directions = unit_displacements(batch.graph.atom_rank(), n_largest, batch.graph.positions.dtype)
    return torch.cat([pooled(embedding, part, batch.graph) for part in batch.tangents(directions)])


def _standardised(head: "GP", rows: ValuesAndSlopes) -> ValuesAndSlopes:
    """ValuesAndSlopes as the head sees them, with the center and spread that it gets from them."""
    spread = rows.inputs.std(0, correction=0)
    if not spread.any():
        raise DataError("a Gaussian process needs training structures that differ; all of these look the same")
    head.center.copy_(rows.inputs.mean(0))
    head.spread.copy_(spread.clamp(min=LEAST_SPREAD * float(spread.max())))
    return ValuesAndSlopes((rows.inputs - head.center) / head.spread, rows.tangents / head.spread, rows.owners)


def _for_search(rows: ValuesAndSlopes, targets: Tensor) -> tuple[ValuesAndSlopes, Tensor]:
    """The first structures, which are in random order, and some of their force rows, evenly spaced."""
    n = min(len(rows.inputs), SEARCH_ROWS // 4)
    own = (rows.owners < n).nonzero().squeeze(-1)
    own = own[:: max(1, math.ceil(len(own) / (SEARCH_ROWS - n)))]
    fewer = ValuesAndSlopes(rows.inputs[:n], rows.tangents[own], rows.owners[own])
    return fewer, torch.cat([targets[:n], targets[len(rows.inputs) + own]])


def _choose(kernel: StationaryKernel, rows: ValuesAndSlopes, targets: Tensor) -> _Choice:
    """Lengthscale and noises of the greatest likelihood, by L-BFGS from each of a few lengthscales."""
    geometry, unit = Geometry.between(rows, rows), _rms_distance(rows)
    slopes = prior_variance(rows, kernel, torch.tensor(unit, dtype=torch.float64))[len(rows.inputs) :]
    slope = float(slopes.mean()) if len(slopes) else 1.0

    def parameters(logs: Tensor) -> tuple[Tensor, Tensor]:
        length, noise_energy, noise_slope = logs.exp().unbind()
        return unit * length, torch.stack([noise_energy, noise_slope * slope / length.square()])

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            variables = torch.tensor(logs, requires_grad=True)
            value = -log_likelihood(geometry, kernel, *parameters(variables), targets)
            (gradient,) = torch.autograd.grad(value, variables)
        return float(value), gradient.numpy()

    bounds = [tuple(map(math.log, pair)) for pair in (LENGTH_BOUNDS, NOISE_BOUNDS, NOISE_BOUNDS)]
    starts = [np.log([length, FIRST_NOISE, FIRST_NOISE]) for length in LENGTHSCALES]
    found = [
        scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=SEARCH)
        for start in starts
    ]
    best = min(found, key=lambda result: result.fun)
    length, noise = parameters(torch.as_tensor(best.x))
    names = ("lengthscale", "noise of energies", "noise of forces")
    limits = (LENGTH_BOUNDS, NOISE_BOUNDS, NOISE_BOUNDS)
    ends = at_ends(zip(names, np.exp(best.x).tolist(), limits, strict=True))
    return _Choice(float(length), noise, -float(best.fun), ends)


def log_likelihood(
    geometry: Geometry, kernel: StationaryKernel, lengthscale: Tensor, noise: Tensor, targets: Tensor
) -> Tensor:
    """Log-density of a row's target under N(0, s²(K + noise)), on average, for the s² that makes it greatest."""
    factor = factorized(geometry, kernel, lengthscale, noise)
    whitened = torch.linalg.solve_triangular(factor, targets.unsqueeze(-1), upper=False)
    log_scale = whitened.square().mean().log()
    return -0.5 * (log_scale + 1.0 + math.log(2.0 * math.pi)) - factor.diagonal().log().mean()


def _rms_distance(rows: ValuesAndSlopes) -> float:
    """Between structures."""
    return math.sqrt(2.0 * float(rows.inputs.var(0, correction=0).sum()))
