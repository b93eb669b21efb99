"""AIMNet2: networks in TorchScript files (.jpt), with their Coulomb and dispersion energies. Neutral molecules only.

The program is in the file, so the weights stay there: a model file refers to it.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sigmaff.backbones.hosts.base import Host, HostConfig, Reading
from sigmaff.backbones.hosts.reading import (
    Outside,
    contained,
    index_of,
    origin_of,
    places_of,
    plain_execution,
    referenced_file,
    trusted_program,
)
from sigmaff.errors import ConfigError, DataError
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import scatter_sum

FEATURES = 4
"""Layers of the readout of the energy whose output are the features; one linear layer follows."""


class AIMNet2(Host):
    """Features: the last hidden layer of the readout of the local energy.

    The energy of charges and dispersion belongs to no atom: each atom of a molecule has the same share of it.
    The file computes in float32, whatever the precision of the model.
    """

    package: ClassVar[str] = "torch"
    element_index: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        network = _loaded(referenced_file(config.origin))
        network.outputs.atomic_shift.shifts.weight.detach().zero_()  # reference energies are added elsewhere
        self._outside = Outside(network)
        self.register_buffer("element_index", index_of(config.description["elements"]), persistent=False)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read a .jpt file."""
        path = trusted_program(source, trust)
        try:
            network = _loaded(path)
            shifts = network.outputs.atomic_shift.shifts.weight.detach().double().flatten().tolist()
            cutoff, n_features = network.aev.rc_s.item(), _readout(network)[FEATURES].weight.shape[1]
        except (RuntimeError, AttributeError, IndexError) as error:
            raise ConfigError(f"{source}: not a TorchScript file of AIMNet2 ({str(error).splitlines()[0]})") from None
        references = {z: energy for z, energy in enumerate(shifts) if energy}  # the others were not trained
        config = HostConfig(
            adapter="aimnet2",
            cutoff=cutoff,
            n_features=n_features,
            description={"elements": list(references)},
            origin=origin_of(f"aimnet2:{source}", cls.package, path, shipped=False, weights="referenced"),
        )
        return Reading(config=config, references=references, tensors={})

    def forward(self, graph: AtomicGraph) -> Tensor:
        if graph.cell is not None and graph.cell.any():
            raise DataError("AIMNet2 from a .jpt file takes molecules; this structure is periodic")
        places_of(graph, self.element_index)
        network = self._outside.on(graph.positions.device)
        data = {
            "coord": graph.pad(graph.positions.float()),
            "numbers": graph.pad(graph.atomic_numbers.unsqueeze(-1)).squeeze(-1),
            "charge": torch.zeros(graph.n_structures, device=graph.positions.device),
        }
        layers = _readout(network)
        with plain_execution():
            found = network(data)
            features = found["aim"][graph.structure_index, graph.atom_rank()]
            for layer in layers[:FEATURES]:
                features = layer(features)
            local = layers[FEATURES](features).squeeze(-1).to(found["energy"].dtype)
        rest = found["energy"] - scatter_sum(local, graph.structure_index, graph.n_structures)
        energy = local + (rest / graph.atoms_per_structure())[graph.structure_index]
        return torch.cat([features.to(graph.dtype), energy.to(graph.dtype).unsqueeze(-1)], dim=-1)


def _loaded(path: Path) -> Any:
    with contained("torch"):
        network = torch.jit.load(str(path), map_location="cpu").eval()
    for weight in network.parameters():
        weight.requires_grad_(False)
    return network


def _readout(network: Any) -> list[Any]:
    return list(network.outputs.energy_mlp.mlp.children())
