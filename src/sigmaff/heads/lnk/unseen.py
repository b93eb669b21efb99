"""What the LNK does not know about surroundings that its training set does not hold.

Beside the function that the labels determine stands one that they say nothing about,

    f(x, e) = s a(x, e) g(x, e),      g ~ GP(0, δ(e, e') κ(|y − y'|²/ℓ²)),      y = W_e (x − x̄_e)

of the fixed surroundings x of an atom (``backbones.Surroundings``) with the Matérn-5/2 kernel κ. W_e whitens the
surroundings of one kind, such as those of carbon atoms in methyl groups: differences between kinds are not spread.
The amplitude is zero on training atoms and one far from all of them:

    a² = 1 / (1 + Σ_m (r/|y − y_m|)⁸)

over known surroundings y_m of the element. So an atom at a distance below the reach r of one of them is known, the more
so the more of them there are; of one beyond, all that is known is the prior s, the energy that an atom is worth. The
energy of a structure gets the sum over its atoms. Two atoms of one element in like surroundings are wrong alike.

| symbol | here |
|---|---|
| x | ``surroundings`` (n_atoms, d) |
| x̄, W | ``means`` (n_elements + 1, d), ``whitening`` (n_elements + 1, d, d); last: all elements together |
| y_m | ``points`` (n_points, d) of the elements ``point_elements`` |
| r, s | ``reach``, ``prior`` |
"""

import math
import warnings
from typing import NamedTuple, Self

import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from sigmaff.graph import AtomicGraph
from sigmaff.heads.kernels import MATERN52, squared_distances
from sigmaff.heads.lnk.inducing import farthest_points

N_KINDS, ATOMS_PER_KIND, ROUNDS = 8, 20, 2
"""Kinds of surroundings of an element that are told apart at most, training atoms of each at least on average, and how
often they are found anew."""
N_POINTS = 256
"""Known surroundings of each element, at most."""
MAX_ATOMS = 20_000
"""Training atoms of an element that are looked at, at most; of more, a random choice."""
RIDGE = 1e-2
"""Added to the eigenvalues of the covariance of surroundings, in units of their mean."""
LENGTH = 2.0
"""ℓ in units of the reach."""
NEAREST = 1e-8
"""Added to squared distances, in units of the squared reach."""
N_WAVES = 128
"""Random Fourier features of a draw: they add 6 % to the error of its variance, where 16 draws have 18 %."""
MAX_PAIRS = 2**22
"""Pairs of atoms whose covariance is held in memory at once."""


class Waves(NamedTuple):
    """The random numbers behind draws of g: random Fourier features."""

    frequencies: Tensor  # (n_frequencies, d)
    phases: Tensor  # (n_frequencies,) uniform in [0, 2π)
    weights: Tensor  # (n_elements + 1, n_frequencies, n_samples) of variance 2/n_frequencies

    @classmethod
    def drawn(cls, of: "UnseenSurroundings", n_samples: int, generator: torch.Generator) -> Self:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

        phases = 2.0 * math.pi * torch.rand(N_WAVES, generator=generator, dtype=torch.float64, device="cpu")
        frequencies = MATERN52.draw_frequencies(N_WAVES, of.n_features, generator)
        weights = normal(of.n_elements + 1, N_WAVES, n_samples) * math.sqrt(2.0 / N_WAVES)
        return cls(frequencies, phases, weights)

    def to(self, device: torch.device) -> Self:
        return type(self)(*(tensor.to(device) for tensor in self))


class UnseenSurroundings(nn.Module):
    """Its algebra is float64. ``elements`` index the model's elements; all that it has not seen are ``n_elements``."""

    def __init__(self, n_features: int, n_elements: int) -> None:
        super().__init__()
        self.n_features, self.n_elements = n_features, n_elements
        zeros = torch.zeros(n_elements + 1, n_features, dtype=torch.float64)
        identity = torch.eye(n_features, dtype=torch.float64).expand(n_elements + 1, -1, -1)
        self.means = nn.Buffer(zeros)
        self.whitening = nn.Buffer(identity.clone())
        self.points = nn.Buffer(torch.zeros(n_elements * N_POINTS, n_features, dtype=torch.float64))
        self.point_elements = nn.Buffer(torch.full((n_elements * N_POINTS,), -1, dtype=torch.int64))
        self.reach = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.prior = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def learn(self, surroundings: Tensor, elements: Tensor) -> None:
        """Remember the surroundings of training atoms, (n_atoms, d): their means, spread and outermost points."""
        self.point_elements.fill_(-1)
        self._whiten(_some(surroundings), self.n_elements)
        for element in range(self.n_elements):
            own = _some(surroundings[elements == element])
            if not len(own):
                continue
            self._whiten(own, element)
            distinct = self._standardized(own, element).unique(dim=0)
            chosen = farthest_points(distinct, min(N_POINTS, len(distinct)))
            place = slice(element * N_POINTS, element * N_POINTS + len(chosen))
            self.points[place], self.point_elements[place] = chosen, element

    def _whiten(self, surroundings: Tensor, element: int) -> None:
        mean = surroundings.mean(0)
        centred = surroundings - mean
        whitening = _whitening(centred)
        for _ in range(ROUNDS if element < self.n_elements else 0):
            whitening = _whitening(centred - _nearest_means(centred, centred @ whitening))
        self.means[element] = mean
        self.whitening[element] = whitening

    def _standardized(self, surroundings: Tensor, element: int) -> Tensor:
        return (surroundings - self.means[element]) @ self.whitening[element]

    def coordinates(self, surroundings: Tensor, elements: Tensor) -> Tensor:
        """y, (n_atoms, d)."""
        return self._mapped(surroundings - self.means[elements], elements)

    def moved(self, tangents: Tensor, elements: Tensor) -> Tensor:
        """Directions (..., n_atoms, d) of surroundings as directions of y."""
        return self._mapped(tangents, elements)

    def _mapped(self, values: Tensor, elements: Tensor) -> Tensor:
        result = torch.zeros_like(values)
        for element in map(int, elements.unique()):
            own = (elements == element).nonzero().squeeze(-1)
            result = result.index_copy(-2, own, values[..., own, :] @ self.whitening[element])
        return result

    def distances(self, coordinates: Tensor, elements: Tensor) -> Tensor:
        """(Σ_m |y − y_m|⁻⁸)^(−1/8), (n_atoms,); infinite where nothing is known."""
        return self._closeness(coordinates, elements, torch.ones_like(self.reach))[0].sum(-1) ** -0.125

    def spacing(self) -> float:
        """Of the known surroundings: median distance of one from all others of its element; 0 if there are none."""
        own = self.point_elements >= 0
        points, elements = self.points[own], self.point_elements[own]
        closeness, _ = self._closeness(points, elements, torch.ones_like(self.reach))
        one_hot = self.point_elements[own, None] == self.point_elements
        others = closeness.masked_fill(torch.eye(len(own), dtype=torch.bool, device=own.device)[own], 0.0).sum(-1)
        distances = others[one_hot.sum(-1) > 1] ** -0.125
        return float(distances.median()) if len(distances) else 0.0

    def _closeness(self, coordinates: Tensor, elements: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """(r/|y − y_m|)⁸ of each point, 0 for those of other elements, and |y − y_m|², (n_atoms, n_points) each."""
        squares = squared_distances(coordinates, self.points) + NEAREST * reach.square()
        own = elements.unsqueeze(-1) == self.point_elements
        near = (reach.square() / squares).square()
        return torch.where(own, near * near, 0.0), squares

    def amplitude(self, coordinates: Tensor, elements: Tensor) -> Tensor:
        """a, (n_atoms,)."""
        return (1.0 + self._closeness(coordinates, elements, self.reach)[0].sum(-1)).rsqrt()

    def amplitude_with_slope(self, coordinates: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        """a, and ∂a/∂y (n_atoms, d)."""
        closeness, squares = self._closeness(coordinates, elements, self.reach)
        amplitude = (1.0 + closeness.sum(-1)).rsqrt()
        pulls = closeness / squares
        slope = coordinates * pulls.sum(-1, keepdim=True) - pulls @ self.points
        return amplitude, 4.0 * amplitude.pow(3).unsqueeze(-1) * slope

    def node_variance(self, surroundings: Tensor, elements: Tensor) -> Tensor:
        """s² a², (n_atoms,)."""
        return (self.prior * self.amplitude(self.coordinates(surroundings, elements), elements)).square()

    def variance(self, surroundings: Tensor, elements: Tensor, graph: AtomicGraph) -> Tensor:
        """Of Σ_i f_i of each structure, (n_structures,)."""
        coordinates = self.coordinates(surroundings, elements)
        amplitude = self.amplitude(coordinates, elements)
        scaled, kind, amplitude = self._padded(coordinates, amplitude, elements, graph)
        total = scaled.new_zeros(graph.n_structures)
        block = max(1, MAX_PAIRS // (scaled.shape[0] * scaled.shape[1]))
        weights = amplitude * kind
        parts = zip(scaled.split(block, dim=1), weights.split(block, dim=1), strict=True)
        for rows, weights_of_rows in parts:
            same = weights_of_rows @ weights.transpose(-1, -2)  # a_i a_j δ(e_i, e_j)
            total = total + (same * MATERN52.value(squared_distances(rows, scaled))).sum((-1, -2))
        return self.prior.square() * total

    def slope_variance(self, surroundings: Tensor, tangents: Tensor, elements: Tensor, graph: AtomicGraph) -> Tensor:
        """Of the slope of Σ_i f_i along directions (c, n_atoms, d) of the surroundings, (c, n_structures)."""
        coordinates, moved = self.coordinates(surroundings, elements), self.moved(tangents, elements)
        amplitude, slope = self.amplitude_with_slope(coordinates, elements)
        rising = graph.pad((moved * slope).sum(-1, keepdim=True))  # ∂a of each atom
        scaled, kind, amplitude = self._padded(coordinates, amplitude, elements, graph)
        t = graph.pad(moved) / (LENGTH * self.reach)
        u = squared_distances(scaled, scaled)
        same = kind @ kind.transpose(-1, -2)
        value, first, second = (
            same * part(u) for part in (MATERN52.value, MATERN52.first_derivative, MATERN52.second_derivative)
        )
        crossed = t @ scaled.transpose(-1, -2)  # t_i · y_j
        own = crossed.diagonal(dim1=-2, dim2=-1)
        along = own.unsqueeze(-1) - crossed  # t_i · (y_i − y_j)
        both = amplitude @ amplitude.transpose(-1, -2)
        curved = -2.0 * first * (t @ t.transpose(-1, -2)) + 4.0 * second * along * along.transpose(-1, -2)
        mixed = 4.0 * first * along * (amplitude @ rising.transpose(-1, -2))
        total = value * (rising @ rising.transpose(-1, -2)) + mixed + both * curved
        return self.prior.square() * total.sum((-1, -2))

    def _padded(
        self, coordinates: Tensor, amplitude: Tensor, elements: Tensor, graph: AtomicGraph
    ) -> tuple[Tensor, Tensor, Tensor]:
        """y/ℓ, one-hot elements (zero where there is no atom) and amplitudes (…, 1) by structure."""
        one_hot = torch.nn.functional.one_hot(elements, self.n_elements + 1).to(coordinates.dtype)
        scaled = coordinates / (LENGTH * self.reach)
        return graph.pad(scaled), graph.pad(one_hot), graph.pad(amplitude.unsqueeze(-1))

    def sampled(self, surroundings: Tensor, elements: Tensor, waves: Waves) -> Tensor:
        """Draws of f, (n_atoms, n_samples), differentiable in the surroundings."""
        coordinates = self.coordinates(surroundings, elements)
        angles = coordinates @ waves.frequencies.T / (LENGTH * self.reach) + waves.phases
        drawn = torch.einsum("nf,nfs->ns", torch.cos(angles), waves.weights[elements])
        return self.prior * self.amplitude(coordinates, elements).unsqueeze(-1) * drawn

    def sampled_slopes(self, surroundings: Tensor, elements: Tensor, waves: Waves) -> Tensor:
        """Derivatives of Σ_i f_i of the draws by the surroundings, (n_samples, n_atoms, d)."""
        coordinates, length = self.coordinates(surroundings, elements), LENGTH * self.reach
        amplitude, slope = self.amplitude_with_slope(coordinates, elements)
        angles = coordinates @ waves.frequencies.T / length + waves.phases
        slopes = torch.zeros(waves.weights.shape[-1], *surroundings.shape, dtype=angles.dtype, device=angles.device)
        for element in map(int, elements.unique()):
            own = (elements == element).nonzero().squeeze(-1)
            weights = waves.weights[element]  # (n_frequencies, n_samples)
            drawn = torch.cos(angles[own]) @ weights
            turned = (torch.sin(angles[own]).unsqueeze(0) * weights.T.unsqueeze(1)) @ waves.frequencies
            of_amplitude = drawn.T.unsqueeze(-1) * slope[own]
            of_function = amplitude[own].unsqueeze(-1) / length * turned
            slopes[:, own] = (of_amplitude - of_function) @ self.whitening[element].T
        return self.prior * slopes


def _some(surroundings: Tensor) -> Tensor:
    """At most MAX_ATOMS rows, drawn at random: every n-th could be atoms of the same site."""
    if len(surroundings) <= MAX_ATOMS:
        return surroundings
    chosen = torch.randperm(len(surroundings), generator=torch.Generator("cpu").manual_seed(0))[:MAX_ATOMS]
    return surroundings[chosen.to(surroundings.device)]


def _whitening(residuals: Tensor) -> Tensor:
    """W (d, d) such that residuals (n, d) times W have unit variance, but for directions in which they hardly vary."""
    eigenvalues, eigenvectors = torch.linalg.eigh(residuals.T @ residuals / len(residuals))
    eigenvalues = eigenvalues.clamp(min=0.0)
    typical = eigenvalues.mean()
    ridge = RIDGE * torch.where(typical > 0, typical, torch.ones_like(typical))
    return eigenvectors * (eigenvalues + ridge).rsqrt()


def _nearest_means(values: Tensor, coordinates: Tensor) -> Tensor:
    """Mean of the values (n, d) of the kind that each belongs to: kinds are clusters of the coordinates (k-means)."""
    n_kinds = max(1, min(N_KINDS, len(values) // ATOMS_PER_KIND))
    start = farthest_points(coordinates, n_kinds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kind may lose all of its atoms
        _, labels = kmeans2(coordinates.cpu().numpy(), start.cpu().numpy(), minit="matrix")
    kinds = torch.nn.functional.one_hot(torch.as_tensor(labels, dtype=torch.int64), n_kinds).to(values)
    return kinds @ (kinds.T @ values / kinds.sum(0).clamp(min=1.0).unsqueeze(-1))
