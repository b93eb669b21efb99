"""CHGNet: a network with bonds and angles of the package chgnet, by the name of weights that it ships, or from a file.

Its magnetic moments are not read.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sigmaff.backbones.hosts.base import Host, HostConfig, Reading
from sigmaff.backbones.hosts.reading import (
    IN_MEMORY,
    contained,
    directed_pairs,
    index_of,
    origin_of,
    places_of,
    trusted_file,
)
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph

SHIPPED = ("0.3.0", "0.2.0", "r2scan")


class CHGNet(Host):
    """Features: what enters the readout of the energy. (Its last hidden layer has but one direction that varies.)"""

    package: ClassVar[str] = "chgnet"
    element_index: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        with contained(self.package):
            from chgnet.model import CHGNet as Network

            self.network = Network(**config.description["settings"])
        n_elements = self.network.atom_embedding.embedding.num_embeddings
        self.register_buffer("element_index", index_of(range(1, n_elements + 1)), persistent=False)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read a file; or 0.3.0, 0.2.0 or r2scan, which came with the installed package and so need no trust."""
        with contained(cls.package):
            import chgnet
            from chgnet.model import CHGNet as Network

            if source in SHIPPED:
                path = next((Path(chgnet.__file__).parent / "pretrained" / source).glob("*.pth.tar"))
                network = Network.load(model_name=source, use_device="cpu", verbose=False)
            else:
                path = trusted_file(source, trust)
                network = Network.from_file(str(path))
        return cls._of(network, source, path)

    @classmethod
    def describe(cls, calculator: Any) -> Reading:
        return cls._of(deepcopy(calculator.model).cpu(), IN_MEMORY, None)

    @classmethod
    def _of(cls, network: Any, source: str, path: Path | None) -> Reading:
        """Of a network that may be changed."""
        settings = network.model_args
        if not (network.mlp_first and network.is_intensive):
            raise ConfigError(f"{source}: a CHGNet that does not sum energies of atoms cannot be adopted")
        energies = _reference_energies(source, network)
        network.composition_model = None
        config = HostConfig(
            adapter="chgnet",
            cutoff=settings["atom_graph_cutoff"],
            n_features=network.atom_fea_dim,
            description={"settings": settings | {"composition_model": None}},
            origin=origin_of(f"chgnet:{source}", cls.package, path, shipped=source in SHIPPED),
        )
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        references = dict(enumerate(energies, start=1))
        return Reading(config=config, references=references, tensors=tensors)

    def forward(self, graph: AtomicGraph) -> Tensor:
        from chgnet.model.model import BatchedGraph

        network = self.network
        n_pairs = graph.pair_index.shape[1]
        bonds, vectors = directed_pairs(graph)
        pair_of_bond = torch.arange(n_pairs, device=bonds.device).repeat(2)
        distance = vectors[:n_pairs].norm(dim=-1)
        unit = vectors / distance.repeat(2).unsqueeze(-1)
        atom, first, second = _angles(
            bonds[0], distance.repeat(2) < self.config.description["settings"]["bond_graph_cutoff"]
        )
        inputs = BatchedGraph(
            atomic_numbers=places_of(graph, self.element_index) + 1,
            bond_bases_ag=network.bond_basis_expansion.rbf_expansion_ag(distance),
            bond_bases_bg=network.bond_basis_expansion.rbf_expansion_bg(distance),
            angle_bases=network.angle_basis_expansion(unit[first], unit[second]),
            batched_atom_graph=bonds.T,
            batched_bond_graph=torch.stack([atom, pair_of_bond[first], pair_of_bond[second]], dim=-1),
            atom_owners=torch.arange(graph.n_atoms, device=bonds.device),  # each atom apart: energies are not summed
            directed2undirected=pair_of_bond,
            atom_positions=[],
            strains=[],
            volumes=[],
        )
        found = network._compute(inputs, return_crystal_feas=True)
        return torch.cat([found["crystal_fea"], found["e"].unsqueeze(-1)], dim=-1)


def _reference_energies(source: str, network: Any) -> list[float]:
    """eV, of hydrogen and all elements after it."""
    from chgnet.model.composition_model import AtomRef

    if network.composition_model is None:
        return [0.0] * network.atom_embedding.embedding.num_embeddings
    if not isinstance(network.composition_model, AtomRef):
        raise ConfigError(f"{source}: a CHGNet whose energies of compositions are no sum over atoms cannot be adopted")
    energies: list[float] = network.composition_model.fc.weight.detach().double().flatten().tolist()
    return energies


def _angles(start: Tensor, is_short: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two different short bonds that start at one atom, in both orders: the atom, the bonds, each (n_angles,)."""
    short = is_short.nonzero().squeeze(-1)
    short = short[start[short].argsort(stable=True)]
    size = torch.bincount(start[short])[start[short]]  # bonds of the same atom
    begin = torch.searchsorted(start[short], start[short])
    first = torch.repeat_interleave(torch.arange(len(short), device=short.device), size)
    rank = torch.arange(len(first), device=short.device) - torch.repeat_interleave(size.cumsum(0) - size, size)
    second = begin[first] + rank
    different = first != second
    first, second = short[first[different]], short[second[different]]
    return start[first], first, second
