"""An adopted network as a potential: alone, and with the reference energies of the user's labels."""

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from sigmaff.backbones.hosts import AdoptConfig, Host, Reading, read_host
from sigmaff.data import DatasetStatistics, GraphDataset, LabelledStructures, ReferenceEnergies
from sigmaff.data.statistics import start_references, statistics_from
from sigmaff.errors import DataError
from sigmaff.heads import DeterministicConfig
from sigmaff.models.model import Model
from sigmaff.models.potential import Potential, PotentialConfig
from sigmaff.models.solve import LabelledObservations


def read_potential(config: AdoptConfig) -> Potential:
    """Read a network of another program as a potential without σ, which predicts what its program predicts.

    What was read last is kept as long as its file is the same: the steps of a run share it.
    """
    path = network_file(config)
    state = None if path is None else (path.stat().st_mtime_ns, path.stat().st_size)
    return _read(config.adopt, config.trust, state)


@lru_cache(maxsize=1)
def _read(source: str, trust: bool, state: tuple[int, int] | None) -> Potential:
    return host_potential(read_host(source, trust=trust))


def host_potential(reading: Reading) -> Potential:
    """A potential without σ from what an adapter has read. It knows all elements of the host."""
    references = dict(sorted(reading.references.items()))
    statistics = DatasetStatistics(
        elements=tuple(references), reference_energies=references, scale=1.0, mean_neighbors=0.0, n_structures=0
    )
    potential = Potential(PotentialConfig(backbone=reading.config, head=DeterministicConfig()), statistics)
    potential.set_precision(_precision(reading))
    potential.backbone.load_state_dict(reading.tensors)
    return potential.eval().requires_grad_(False)


def network_file(config: AdoptConfig) -> Path | None:
    """The file that a source names; ``None`` if it is a name that the host's package knows."""
    path = Path(config.adopt.partition(":")[2]).expanduser()
    return path if path.is_file() else None


def network_alone(model: Model) -> Potential | None:
    """The adopted network of a model, with the reference energies of its labels; ``None`` if it has none."""
    potential = model.potentials[0]
    if not isinstance(potential.backbone, Host):
        return None
    return potential.with_head(DeterministicConfig()).eval().requires_grad_(False)


def _precision(reading: Reading) -> torch.dtype:
    """That of most of the host's numbers; constants may be more precise."""
    sizes = {torch.float32: 1, torch.float64: 0}
    for tensor in reading.tensors.values():
        if tensor.dtype in sizes:
            sizes[tensor.dtype] += tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def _left(host: Potential, train: GraphDataset) -> LabelledStructures:
    """The structures with labels less what the network predicts, in float64: total energies may be large."""
    graphs = (batch.graph for batch in LabelledObservations(host, train).batches())
    predictions = [host.compute(graph, "none", stress_std=False, unseen_elements=False) for graph in graphs]
    structures, forces = train.structures, train.structures.forces
    if forces is not None:
        predicted = torch.cat([prediction.forces for prediction in predictions]).double().cpu().numpy()
        parts = np.split(predicted, np.cumsum([len(values) for values in forces])[:-1])
        forces = tuple(label - part for label, part in zip(forces, parts, strict=True))
    energy = torch.cat([prediction.energy for prediction in predictions]).cpu().numpy()
    return replace(structures, energy=structures.energy - energy, forces=forces, stress=None)


def with_references(host: Potential, train: GraphDataset, reference: ReferenceEnergies) -> Potential:
    """The network with the reference energies of the labels: another program, functional or pseudopotential has others.

    Its statistics are those of what is left to learn, the labels less its energies. Its unit of energy is a power of
    two, so that dividing and multiplying by it leaves the host's energies as they are.

    Arguments:
        host: a potential without σ, as ``host_potential`` makes it.
        train: labelled structures.
        reference: energy of each element in the labels; fitted to what is left, or given.
    """
    if train.structures.energy is None:
        raise DataError(f"{train.structures.source}: adopting a potential needs energies; the data set has none")
    own, left = host.statistics.reference_energies, _left(host, train)
    start, source = start_references(left, reference)
    if source not in ("least_squares", "isolated_atoms"):  # energies of atoms in the labels, of which own ones are left
        start = {number: energy - own.get(number, 0.0) for number, energy in start.items()}
    found = statistics_from(GraphDataset(left, train.cutoff), start, source)
    statistics = replace(
        found,
        scale=2.0 ** round(math.log2(found.scale)),
        reference_energies={number: own[number] + shift for number, shift in found.reference_energies.items()},
    )
    potential = Potential(host.config, statistics, host.backbone)
    potential.set_precision(host.dtype)
    return potential.to(host.device).eval().requires_grad_(False)
