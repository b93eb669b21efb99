"""Atoms by element: what is done with each element is done with its own atoms."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sigmaff.graph.layout import Layout


class ElementGroups:
    """The atoms of a batch by element.

    Arguments:
        elements: (n_atoms,) of each atom, from 0 to n_elements − 1.
        layout: of the atoms, in compiled code. Groups then are of one length; what is done with the rows that fill
            them up does not matter.
    """

    def __init__(self, elements: Tensor, n_elements: int, layout: Layout | None = None) -> None:
        if layout is not None:
            n_known, n_most = layout.of_element.shape
            self.present, self._counts = list(range(n_known)), [n_most] * n_known
            self._order, self._place = layout.of_element.flatten(), layout.place
            return
        counts = list(map(int, torch.bincount(elements, minlength=n_elements)))  # tolist fails under torch.func in 2.6
        self.present = [element for element, count in enumerate(counts) if count > 0]
        self._counts = [count for count in counts if count > 0]
        self._order = elements.argsort()
        self._place = self._order.argsort()

    def of(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., n_atoms, d) -> (..., m, d) for each element that is present."""
        return values.index_select(-2, self._order).split(self._counts, dim=-2)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse, of (..., m, d) or (m,)."""
        dim = -min(2, parts[0].ndim)
        return torch.cat(list(parts), dim=dim).index_select(dim, self._place)
