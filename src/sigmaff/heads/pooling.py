"""Structures as wholes: the sum of the embeddings of their atoms."""

from torch import Tensor

from sigmaff.graph import AtomicGraph, Embedding


def pooled(embedding: Embedding, values: Tensor, graph: AtomicGraph) -> Tensor:
    """Σ_i h_i of each structure in float64, or of tangents: (..., n_atoms, d) -> (..., n_structures, d)."""
    compared = embedding.compared(values.double())
    shape = (*compared.shape[:-2], graph.n_structures, compared.shape[-1])
    return compared.new_zeros(shape).index_add(-2, graph.structure_index, compared)
