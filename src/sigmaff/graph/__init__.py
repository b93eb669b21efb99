"""Graphs of atoms, the input of every model; the embedding of an atom, the interface of backbones and heads."""

from sigmaff.graph.builder import GraphBuilder
from sigmaff.graph.element_groups import ElementGroups
from sigmaff.graph.embedding import Embedding
from sigmaff.graph.graph import AtomicGraph, Labels, batch_graphs, build_graph
from sigmaff.graph.layout import Layout
from sigmaff.graph.skin import Pairs, SkinList
