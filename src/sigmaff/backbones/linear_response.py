"""How the embeddings of a backbone respond to small displacements: products with ∂h/∂x from either side."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import forward_slope, kept

MAX_ELEMENTS = 2**25
"""Numbers held at once in the batched derivative passes; bounds memory, not accuracy."""
ELEMENTS_PER_PAIR = 2048
"""Numbers that a derivative pass holds for each pair, roughly."""

PULLED_PAIRS = 1024
"""Pairs, times derivatives, of a pass back: more of them are slower than one pass after the other, for they leave the
cache. A pass forward computes the embeddings anew, so that more at once are faster."""


class LinearResponse(ABC):
    """Embeddings of a graph and their first derivatives, for prediction: nothing here is differentiated again.

    Displacements are those of atoms and of the periodic images that pairs reach, in Å.
    """

    @property
    @abstractmethod
    def embeddings(self) -> Tensor:
        """(n_atoms, n_blocks · n_features)."""

    @property
    def learned(self) -> "LinearResponse":
        """Of the part of the embeddings that a network learned."""
        return self

    @property
    def fixed(self) -> "LinearResponse | None":
        """Of the part that no network learned, behind the learned one."""
        return None

    @property
    @abstractmethod
    def n_at_once(self) -> int:
        """Derivatives that are computed together; more take more memory."""

    @abstractmethod
    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of functions of the embeddings, given their derivatives by the embeddings.

        Arguments:
            cotangents: (k, n_atoms, n_blocks · n_features), of k functions.

        Returns the derivatives by positions, (k, n_atoms, 3), and by shifts of pairs, (k, n_pairs, 3).
        """

    @abstractmethod
    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        """Derivatives of the embeddings along displacements.

        Arguments:
            directions: (c, n_atoms, 3), of atoms.
            shift_directions: (c, n_pairs, 3), of the images that pairs reach.

        Not more than ``n_at_once``. Returns (c, n_atoms, n_blocks · n_features).
        """


class AutomaticResponse(LinearResponse):
    """By automatic differentiation: one forward pass, then batched passes back; or batched passes forward.

    Arguments:
        embed: the backbone.
        graph: prepared for it.
    """

    def __init__(self, embed: Callable[[AtomicGraph], Tensor], graph: AtomicGraph) -> None:
        self._embed, self._graph = embed, graph
        self._inputs = [graph.positions.detach().requires_grad_(), graph.pair_shift.detach().requires_grad_()]

    @cached_property
    def _recorded(self) -> Tensor:
        with torch.enable_grad():
            return self._embed_at(*self._inputs)

    @property
    def embeddings(self) -> Tensor:
        return self._recorded.detach()

    @property
    def n_at_once(self) -> int:
        graph = self._graph
        return max(1, MAX_ELEMENTS // (ELEMENTS_PER_PAIR * max(graph.pair_index.shape[1], graph.n_atoms)))

    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        n_at_once = max(1, PULLED_PAIRS // max(1, self._graph.pair_index.shape[1]))
        parts = [self._pulled_back(part) for part in cotangents.to(self._recorded.dtype).split(n_at_once)]
        by_position, by_shift = zip(*parts, strict=True)
        return torch.cat(by_position), torch.cat(by_shift)

    def _pulled_back(self, cotangents: Tensor) -> tuple[Tensor, ...]:
        batched = len(cotangents) > 1
        slopes = torch.autograd.grad(
            self._recorded,
            self._inputs,
            cotangents if batched else cotangents[0],
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
        )
        shaped = ((len(cotangents), *values.shape) for values in self._inputs)
        return tuple(
            values.new_zeros(shape) if slope is None else slope.reshape(shape)
            for values, slope, shape in zip(self._inputs, slopes, shaped, strict=True)
        )

    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        def tangent(direction: Tensor, shift_direction: Tensor) -> Tensor:
            inputs = (self._graph.positions, self._graph.pair_shift)
            return forward_slope(self._embed_at, inputs, (direction, shift_direction))

        return torch.func.vmap(tangent)(directions, shift_directions)

    def _embed_at(self, positions: Tensor, pair_shift: Tensor) -> Tensor:
        return self._embed(replace(self._graph, positions=positions, pair_shift=pair_shift))


class CompiledResponse(LinearResponse):
    """For compiled code: derivatives by the vectors of pairs, all at once, on a graph with a layout."""

    def __init__(self, graph: AtomicGraph) -> None:
        assert graph.layout is not None
        self.layout = graph.layout

    @abstractmethod
    def by_vectors(self, cotangents: Tensor) -> Tensor:
        """Derivatives of functions by the vectors of pairs, (n_pairs, k, 3); cotangents as of ``pull_back``."""

    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        by_vector = kept(self.by_vectors(cotangents))
        return self.layout.sum_by_side(by_vector).transpose(0, 1), by_vector.transpose(0, 1)

    @property
    def n_at_once(self) -> int:
        raise TypeError("compiled code computes all derivatives at once")

    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        raise TypeError("compiled code has no forward derivatives")


class CompiledAutomaticResponse(CompiledResponse):
    """By automatic differentiation, of one function: torch cannot batch its derivatives and leave lengths open.

    Arguments:
        embed: the backbone.
        graph: with a layout.
    """

    def __init__(self, embed: Callable[[AtomicGraph], Tensor], graph: AtomicGraph) -> None:
        super().__init__(graph)
        found = torch.func.vjp(lambda vectors: embed(replace(graph, vectors=vectors)), graph.pair_vectors())
        self._embeddings, self._pull = found[0], found[1]

    @property
    def embeddings(self) -> Tensor:
        return self._embeddings

    def by_vectors(self, cotangents: Tensor) -> Tensor:
        (given,) = cotangents.to(self._embeddings.dtype)
        return self._pull(given)[0].unsqueeze(1)


class CompiledJoinedResponse(CompiledResponse):
    """Of two descriptions of atoms side by side: embeddings in the precision of the second, slopes in the first's."""

    def __init__(self, first: CompiledResponse, second: CompiledResponse, graph: AtomicGraph) -> None:
        super().__init__(graph)
        self._first, self._second = first, second

    @property
    def embeddings(self) -> Tensor:
        second = self._second.embeddings
        return torch.cat([self._first.embeddings.to(second.dtype), second], dim=-1)

    @property
    def learned(self) -> LinearResponse:
        return self._first

    @property
    def fixed(self) -> LinearResponse:
        return self._second

    def by_vectors(self, cotangents: Tensor) -> Tensor:
        n_first = self._first.embeddings.shape[-1]
        first = self._first.by_vectors(cotangents[..., :n_first])
        return first + self._second.by_vectors(cotangents[..., n_first:]).to(first.dtype)


class PlainResponse(AutomaticResponse):
    """By reverse passes alone, for networks that torch.func does not go through.

    The derivative of uᵀ ∂h/∂x along a displacement is linear in u: its slope by u is the derivative of h.
    """

    @cached_property
    def _transposed(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Some u, and uᵀ ∂h/∂x."""
        cotangent = torch.zeros_like(self._recorded, requires_grad=True)
        with torch.enable_grad():
            pulled = torch.autograd.grad(
                self._recorded, self._inputs, cotangent, create_graph=True, retain_graph=True, allow_unused=True
            )
        return cotangent, pulled

    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        cotangent, pulled = self._transposed
        given = zip(pulled, (directions, shift_directions), strict=True)
        used = [(slope, along) for slope, along in given if slope is not None]
        slopes = torch.autograd.grad(
            [slope for slope, _ in used],
            cotangent,
            [along.to(slope.dtype) for slope, along in used],
            retain_graph=True,
            is_grads_batched=True,
        )
        return slopes[0].detach()


class JoinedResponse(LinearResponse):
    """Of two descriptions of atoms side by side, in the precision of the second."""

    def __init__(self, first: LinearResponse, second: LinearResponse) -> None:
        self._first, self._second = first, second
        self._n_first = first.embeddings.shape[-1]

    @cached_property
    def _joined(self) -> Tensor:
        second = self._second.embeddings
        return torch.cat([self._first.embeddings.to(second.dtype), second], dim=-1)

    @property
    def embeddings(self) -> Tensor:
        return self._joined

    @property
    def learned(self) -> LinearResponse:
        return self._first

    @property
    def fixed(self) -> LinearResponse:
        return self._second

    @property
    def n_at_once(self) -> int:
        return min(self._first.n_at_once, self._second.n_at_once)

    def pull_back(self, cotangents: Tensor) -> tuple[Tensor, Tensor]:
        of_first = cotangents[..., : self._n_first].to(self._first.embeddings.dtype)
        parts = (self._first.pull_back(of_first), self._second.pull_back(cotangents[..., self._n_first :]))
        by_position, by_shift = zip(*parts, strict=True)
        return by_position[0] + by_position[1], by_shift[0] + by_shift[1]

    def push_forward(self, directions: Tensor, shift_directions: Tensor) -> Tensor:
        first, second = (part.push_forward(directions, shift_directions) for part in (self._first, self._second))
        return torch.cat([first.to(second.dtype), second], dim=-1)
