"""The random numbers behind the sampled functions of the LNK."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sigmaff.errors import ConfigError
from sigmaff.heads.kernels import RBF
from sigmaff.heads.lnk.kernel import LocalKernel
from sigmaff.heads.lnk.unseen import UnseenSurroundings, Waves

SEED = 0
MAX_DRAWS = 2**27
"""Random numbers behind sampled force σ (a gigabyte)."""


class Draws(NamedTuple):
    """They are the same for every model of the same sizes."""

    phases: Tensor  # (n_frequencies,)
    frequencies: Tensor  # (n_frequencies, d)
    prior: Tensor  # (n_elements + 1, n_frequencies, n_samples)
    posterior: Tensor  # (p, n_samples)
    unseen: Tensor  # (n_linear, n_samples)
    waves: Waves | None  # of unseen surroundings

    def to(self, device: torch.device) -> "Draws":
        moved: dict[str, Any] = {name: value.to(device) for name, value in self._asdict().items() if value is not None}
        return self._replace(**moved)


def draw(
    kernel: LocalKernel,
    surroundings: UnseenSurroundings | None,
    n_samples: int,
    n_frequencies: int,
    kind: Literal["orthogonal", "independent"],
) -> Draws:
    n_features, n_elements = kernel.embedding.n_features, kernel.n_elements
    if n_samples * ((n_elements + 1) * n_frequencies + kernel.n_weights) + n_frequencies * n_features > MAX_DRAWS:
        raise ConfigError(
            f"{n_samples} samples with {n_frequencies} frequencies and {n_elements} elements take more memory than "
            "sampled force σ may use; lower n_samples or n_frequencies, or ask for exact force σ"
        )
    generator = torch.Generator("cpu").manual_seed(SEED)
    phases = torch.rand(n_frequencies, generator=generator, dtype=torch.float64, device="cpu")
    frequencies = (kernel.stationary or RBF).draw_frequencies(n_frequencies, n_features, generator)
    prior = _normal(generator, n_elements + 1, n_frequencies, n_samples)
    weights = orthogonal if kind == "orthogonal" else independent
    return Draws(
        phases=2.0 * math.pi * phases,
        frequencies=frequencies,
        prior=prior * math.sqrt(2.0 / n_frequencies),
        posterior=weights(kernel.n_weights, n_samples, generator),
        unseen=weights(kernel.n_linear, n_samples, generator),
        waves=None if surroundings is None else Waves.drawn(surroundings, n_samples, generator),
    )


def orthogonal(n_weights: int, n_samples: int, generator: torch.Generator) -> Tensor:
    """Weights of samples, (n_weights, n_samples), each with E[w wᵀ] = 1.

    Up to n_weights of them are orthogonal: they sample the weights more evenly than independent ones, and n_weights of
    them exactly. More samples come in blocks that are independent of each other.
    """
    blocks = [torch.zeros(n_weights, 0, dtype=torch.float64, device="cpu")]
    for first in range(0, n_samples, n_weights) if n_weights else ():
        gaussian = _normal(generator, n_weights, min(n_weights, n_samples - first))
        directions, triangle = torch.linalg.qr(gaussian)
        blocks.append(directions * triangle.diagonal().sign())  # of uniform distribution over all rotations
    return math.sqrt(n_weights) * torch.cat(blocks, dim=1)


def independent(n_weights: int, n_samples: int, generator: torch.Generator) -> Tensor:
    """The same, with all samples independent."""
    return _normal(generator, n_weights, n_samples)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
