"""Graphs of atoms: the input of every model, and the embedding of an atom that backbones and heads agree on."""

from sigmaff.graph.embedding import Embedding
from sigmaff.graph.graph import AtomicGraph, Labels, batch_graphs, build_graph

__all__ = ["AtomicGraph", "Embedding", "Labels", "batch_graphs", "build_graph"]
