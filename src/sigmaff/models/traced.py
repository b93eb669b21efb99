"""What compiled code is made of: predictions of a potential without a branch that depends on numbers.

Graphs are of known elements, with a layout and a cell (of zeros for molecules).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigmaff.graph import AtomicGraph
from sigmaff.models.force_std import sampled_forces_variance, with_hidden
from sigmaff.models.prediction import Prediction

if TYPE_CHECKING:
    from sigmaff.models.potential import Potential


def predicted(potential: "Potential", graph: AtomicGraph, *, sampled: bool) -> Prediction:
    """As ``Potential.compute``; sampled: with sampled force σ and σ of atoms."""
    head = potential.head
    with head.prepared():
        response = potential.linear_response(graph)
        distribution, forces, virial, samples = potential.responses(graph, response, sampled=sampled)
        prediction = potential.in_physical_units(graph, distribution, forces, virial)
        if samples is None:
            return prediction
        variance = sampled_forces_variance(response, head, graph, samples)
        node_variance = head.node_variance(response.embeddings, graph)
    return _with_std(potential, prediction, variance, node_variance)


def predicted_slopes(potential: "Potential", graph: AtomicGraph) -> tuple[Prediction, Tensor, Tensor]:
    """As ``predicted`` with samples, for networks through which these go one by one, with ``pulled``.

    Returns a prediction with the σ of forces that no sample holds, slopes of samples by what the network learned,
    (n_samples, n_atoms, n_learned), and derivatives of the samples by positions through all else, (n_samples, n_atoms,
    3), normalised.
    """
    head = potential.head
    with head.prepared():
        response = potential.linear_response(graph)
        distribution, forces, virial, _ = potential.responses(graph, response, sampled=False)
        node_variance = head.node_variance(response.embeddings, graph)
        slopes = head.deviation_slopes(response.embeddings, graph)
        hidden = with_hidden(torch.zeros_like(forces), response, head, graph)
    prediction = potential.in_physical_units(graph, distribution, forces, virial)
    n_learned = response.learned.embeddings.shape[-1]
    if response.fixed is None:
        moved = slopes.new_zeros(slopes.shape[0], graph.n_atoms, 3)
    else:
        moved = response.fixed.pull_back(slopes[..., n_learned:])[0].contiguous()
    learned = slopes[..., :n_learned].to(graph.dtype).contiguous()
    return _with_std(potential, prediction, hidden, node_variance), learned, moved.to(graph.dtype)


def pulled(potential: "Potential", graph: AtomicGraph, slopes: Tensor) -> Tensor:
    """Derivative by positions of a function with these slopes by what the network learned, (n_atoms, 3)."""
    response = potential.backbone.linear_response(graph, all_layers=potential.config.head.wants_layers)
    return response.pull_back(slopes.unsqueeze(0))[0].squeeze(0)


def _with_std(
    potential: "Potential", prediction: Prediction, variance: Tensor, node_variance: Tensor | None
) -> Prediction:
    """Variances are normalised."""
    scale = potential.statistics.scale
    node_std = None if node_variance is None else scale * node_variance.clamp(min=0.0).sqrt()
    return replace(prediction, forces_std=scale * variance.clamp(min=0.0).sqrt(), node_energy_std=node_std)
