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

An atom without neighbours within the cutoff d of its surroundings has an x of zero, wherever it is. The slopes of f
vanish there, and yet nothing is known of the force. So each of its components has the variance (s a/d)², as if the
atom won or lost its energy over that distance; times (1 − 2n)⁴ with n = Σ_j f(d_ij) neighbours, and zero from n = ½ on,
where slopes tell more. A structure of one atom has no force, by symmetry, and none of this.

| symbol | here |
|---|---|
| x | ``surroundings`` (n_atoms, d) |
| x̄, W | ``means`` (n_elements + 1, d), ``whitening`` (n_elements + 1, d, d); last: all elements together |
| y_m | ``points`` (n_points, d) of the elements ``point_elements`` |
| r, s | ``reach``, ``prior`` |
| d | ``surroundings.CUTOFF`` |
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple, Self

import scipy
import torch
from torch import Tensor, nn

from sigmaff.backbones.surroundings import CUTOFF
from sigmaff.graph import AtomicGraph, ElementGroups, Layout
from sigmaff.graph.ops import kept
from sigmaff.heads.cache import Cached
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
SUM_OF_GAUSSIANS = math.sqrt(2.0 * math.pi)
"""Σ_k g_k of a distance within the range of centres that are one width apart, to 10⁻⁸."""
MAX_PAIRS = 2**19
"""Pairs of atoms whose covariance is computed at once: more of them leave the cache."""


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
        self._known = Cached(self._compute_known)
        self._keeps = False
        self._kept: Place | None = None

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
            distinct = ((own - self.means[element]) @ self.whitening[element]).unique(dim=0)
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

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Within, what follows from the buffers is computed once, and the atoms that were looked at last are kept."""
        with self._known.prepared(self.buffers()):
            self._keeps = True
            try:
                yield
            finally:
                self._keeps, self._kept = False, None

    def at(self, surroundings: Tensor, elements: Tensor, layout: Layout | None = None) -> "Place":
        """Where atoms with these surroundings (n_atoms, d) stand, differentiable in the surroundings."""
        return Place(*self._known(), self.prior, surroundings, elements, layout)

    def again_at(self, surroundings: Tensor, elements: Tensor, layout: Layout | None = None) -> "Place":
        """The same, not differentiable: variances and slopes of one prediction look at the same atoms."""
        if layout is not None:  # the compiler finds what is computed twice
            return self.at(surroundings, elements, layout)
        if self._kept is not None and self._kept.is_of(surroundings, elements):
            return self._kept
        place = self.at(surroundings, elements)
        self._kept = place if self._keeps else None
        return place

    def spacing(self) -> float:
        """Of the known surroundings: median distance of one from all others of its element; 0 if there are none."""
        distances = [self.reach.new_zeros(0)]
        for element, known in enumerate(self._known()[0][:-1]):
            own = self.points[self.point_elements == element] / self.reach
            if len(own) > 1:
                distances.append(known.near(own)[0].fill_diagonal_(0.0).sum(-1) ** -0.125)
        found = self.reach * torch.cat(distances)
        return float(found.median()) if len(found) else 0.0

    def _compute_known(self) -> "tuple[list[Known], Known]":
        """Of each element, last of all that the model has not seen; and of those that it has seen, stacked."""
        points, whitening = self.points / self.reach, self.whitening / self.reach
        squares = points.square().sum(-1) + NEAREST
        squares = torch.where(self.point_elements >= 0, squares, torch.inf)
        parts = zip(
            self.means.unbind(),
            whitening.unbind(),
            (*points.split(N_POINTS), points[:0]),
            (*squares.split(N_POINTS), squares[:0]),
            strict=True,
        )
        seen = (self.n_elements, N_POINTS)
        stacked = Known(self.means[:-1], whitening[:-1], points.unflatten(0, seen), squares.unflatten(0, seen))
        return [Known(*part) for part in parts], stacked


class Known(NamedTuple):
    """What is known of the surroundings of one element, or of several, stacked. Coordinates are in units of the reach:
    z = y/r."""

    mean: Tensor  # x̄ (d,)
    whitening: Tensor  # W/r (d, d)
    points: Tensor  # z_m (n_points, d)
    squares: Tensor  # |z_m|² (n_points,); infinite where there is no point

    def coordinates(self, surroundings: Tensor) -> Tensor:
        """z of atoms (m, d) of the element."""
        return (surroundings - self.mean.unsqueeze(-2)) @ self.whitening

    def near(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """|z − z_m|⁻⁸ and |z − z_m|², (m, n_points) each, of atoms (m, d) of the element."""
        if coordinates.ndim == 2:
            products = torch.addmm(self.squares, coordinates, self.points.T, alpha=-2.0)
        else:  # a compiled loop adds for nothing
            products = self.squares.unsqueeze(-2) - 2.0 * kept(coordinates @ self.points.mT)
        squares = (products + coordinates.square().sum(-1, keepdim=True)).clamp(min=NEAREST)
        return squares.reciprocal().square().square(), squares


class Place:
    """Where atoms stand among the known surroundings, in units of the reach, and what is unknown there.

    Arguments:
        known: of each element; the last one, of all that the model has not seen.
        stacked: of all that it has seen, for compiled code: one product instead of one for each element.
        prior: s.
        surroundings: (n_atoms, d); draws are differentiable in them.
        elements: (n_atoms,).
        layout: of the atoms, in compiled code.
    """

    def __init__(
        self,
        known: "list[Known]",
        stacked: Known,
        prior: Tensor,
        surroundings: Tensor,
        elements: Tensor,
        layout: Layout | None = None,
    ) -> None:
        self.prior, self.elements = prior, elements
        self._surroundings, self._version = surroundings, surroundings._version
        self.groups = groups = ElementGroups(elements, len(known), layout)
        self.known = [known[element] for element in groups.present]
        if layout is None:
            parts = groups.of(surroundings)
            self._parts = [one.coordinates(x) for x, one in zip(parts, self.known, strict=True)]
            self._near = [one.near(part) for part, one in zip(self._parts, self.known, strict=True)]
        else:
            coordinates = stacked.coordinates(surroundings[layout.of_element])
            self._parts = list(coordinates.unbind())
            self._near = list(zip(*(values.unbind() for values in stacked.near(coordinates)), strict=True))
        self.coordinates = groups.joined(self._parts)  # z (n_atoms, d)
        self._closeness = groups.joined([closeness.sum(-1) for closeness, _ in self._near])
        self.amplitude = (1.0 + self._closeness).rsqrt()  # a (n_atoms,)

    @property
    def distance(self) -> Tensor:
        """(Σ_m |z − z_m|⁻⁸)^(−1/8), (n_atoms,); infinite where nothing is known."""
        return self._closeness**-0.125

    def is_of(self, surroundings: Tensor, elements: Tensor) -> bool:
        same = self._surroundings.is_set_to(surroundings) and self._version == surroundings._version
        return same and torch.equal(self.elements, elements)

    @cached_property
    def slope(self) -> Tensor:
        """∂a/∂z, (n_atoms, d)."""
        slopes = []
        for part, one, (closeness, squares) in zip(self._parts, self.known, self._near, strict=True):
            pulls = closeness / squares
            slopes.append(part * pulls.sum(-1, keepdim=True) - pulls @ one.points)
        return 4.0 * self.amplitude.pow(3).unsqueeze(-1) * self.groups.joined(slopes)

    def node_variance(self) -> Tensor:
        """s² a², (n_atoms,)."""
        return (self.prior * self.amplitude).square()

    def variance(self, graph: AtomicGraph) -> Tensor:
        """Of Σ_i f_i of each structure, (n_structures,)."""
        weights = torch.cat([self._kind, self.amplitude.unsqueeze(-1)], dim=-1)
        scaled, weights = graph.pad_each(self.coordinates / LENGTH, weights)
        total, n_done = scaled.new_zeros(graph.n_structures), 0
        for rows, weights_of_rows in graph.row_blocks(scaled, weights, MAX_PAIRS):
            total = total + _covariance(rows, weights_of_rows, rows, weights_of_rows)
            n_done += rows.shape[1]
            if graph.layout is None and n_done < scaled.shape[1]:  # pairs with later rows count twice
                total = total + 2.0 * _covariance(rows, weights_of_rows, scaled[:, n_done:], weights[:, n_done:])
        return self.prior.square() * total

    def hidden_slope_variance(self, graph: AtomicGraph) -> Tensor:
        """(s a/d)² (1 − 2n)⁴ of each atom, (n_atoms,), per Å²: of the force on an atom without neighbours."""
        has_others = graph.sum_of_structures(torch.ones_like(self.amplitude)) > 1
        n_neighbors = self._surroundings.sum(-1) / SUM_OF_GAUSSIANS
        emptiness = (1.0 - 2.0 * n_neighbors).clamp(min=0.0).square()
        return (emptiness / CUTOFF).square() * self.node_variance() * has_others[graph.structure_index]

    def slope_variance(self, tangents: Tensor, graph: AtomicGraph) -> Tensor:
        """Of the slope of Σ_i f_i along directions (c, n_atoms, d) of the surroundings, (c, n_structures)."""
        parts = zip(self.groups.of(tangents), self.known, strict=True)
        moved = self.groups.joined([part @ one.whitening for part, one in parts])
        rising, t = graph.pad_each((moved * self.slope).sum(-1, keepdim=True), moved / LENGTH)  # ∂a of each atom, ∂z/ℓ
        scaled, kind, amplitude = graph.pad_each(self.coordinates / LENGTH, self._kind, self.amplitude.unsqueeze(-1))
        u = squared_distances(scaled, scaled)
        same = kind == kind.transpose(-1, -2)
        value, first, second = (
            same * part(u) for part in (MATERN52.value, MATERN52.first_derivative, MATERN52.second_derivative)
        )
        crossed = t @ scaled.transpose(-1, -2)  # t_i · z_j
        own = crossed.diagonal(dim1=-2, dim2=-1)
        along = own.unsqueeze(-1) - crossed  # t_i · (z_i − z_j)
        both = amplitude @ amplitude.transpose(-1, -2)
        curved = -2.0 * first * (t @ t.transpose(-1, -2)) + 4.0 * second * along * along.transpose(-1, -2)
        mixed = 4.0 * first * along * (amplitude @ rising.transpose(-1, -2))
        total = value * (rising @ rising.transpose(-1, -2)) + mixed + both * curved
        return self.prior.square() * total.sum((-1, -2))

    def sampled(self, waves: Waves) -> Tensor:
        """Draws of f, (n_atoms, n_samples)."""
        cosines = self.groups.of(torch.cos(self._angles(waves)))
        drawn = [part @ waves.weights[element] for part, element in zip(cosines, self.groups.present, strict=True)]
        return self.prior * self.amplitude.unsqueeze(-1) * self.groups.joined(drawn)

    def sampled_slopes(self, waves: Waves, dtype: torch.dtype = torch.float64) -> Tensor:
        """Derivatives of Σ_i f_i of the draws by the surroundings, (n_samples, n_atoms, d), summed in ``dtype``."""
        angles, frequencies, slopes = self._angles(waves), waves.frequencies / LENGTH, []
        falling = kept(-self.amplitude.unsqueeze(-1) * torch.sin(angles))
        parts = (self.groups.of(values) for values in (kept(torch.cos(angles)), falling, self.slope))
        for element, one, cosines, sines, rising in zip(self.groups.present, self.known, *parts, strict=True):
            weights = waves.weights[element].T.to(dtype)  # (n_samples, n_frequencies)
            turned = (sines.to(dtype) * weights.unsqueeze(1)) @ (frequencies @ one.whitening.T).to(dtype)
            drawn = (weights @ cosines.to(dtype).T).unsqueeze(-1)
            slopes.append(torch.addcmul(turned, drawn, (rising @ one.whitening.T).to(dtype)))
        return self.prior.to(dtype) * self.groups.joined(slopes)

    def _angles(self, waves: Waves) -> Tensor:
        return torch.addmm(waves.phases, self.coordinates, waves.frequencies.T, alpha=1.0 / LENGTH)

    @property
    def _kind(self) -> Tensor:
        """The element of each atom as a number that pads with the others, (n_atoms, 1)."""
        return self.elements.to(self.amplitude.dtype).unsqueeze(-1)


def _covariance(z: Tensor, weights: Tensor, other_z: Tensor, other_weights: Tensor) -> Tensor:
    """Σ_ij a_i a_j δ(e_i, e_j) κ(|z_i − z_j|²) of rows of structures, (n_structures, n, d); weights: e, a."""
    kind, amplitude = weights.split(1, dim=-1)
    other_kind, other_amplitude = other_weights.transpose(-1, -2).split(1, dim=-2)
    same = (kind == other_kind) * (amplitude * other_amplitude)
    return (same * MATERN52.value(squared_distances(z, other_z))).sum((-1, -2))


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
        _, labels = scipy.cluster.vq.kmeans2(coordinates.cpu().numpy(), start.cpu().numpy(), minit="matrix")
    kinds = torch.nn.functional.one_hot(torch.as_tensor(labels, dtype=torch.int64), n_kinds).to(values)
    return kinds @ (kinds.T @ values / kinds.sum(0).clamp(min=1.0).unsqueeze(-1))
