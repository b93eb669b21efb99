"""Other implementations of the backbones, driven by our graphs: each gives the energies of a graph.

A program is imported where its network is made: not all of them can be installed together.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sigmaff.backbones.hosts.reading import contained
from sigmaff.graph import AtomicGraph
from sigmaff.graph.ops import scatter_sum


def directed_edges(graph: AtomicGraph) -> tuple[Tensor, Tensor]:
    """Atoms that edges end at, and atoms that they come from; edges 2p and 2p + 1 are the two of pair p."""
    return graph.pair_index.T.flatten(), graph.pair_index.flip(0).T.flatten()


def edge_vectors(graph: AtomicGraph, positions: Tensor) -> Tensor:
    """From the start to the end of each edge."""
    vectors = graph.with_positions(positions).pair_vectors()
    return torch.stack([-vectors, vectors], dim=1).flatten(0, 1)


class PygSchNet(nn.Module):
    """PyTorch Geometric's SchNet at the paper's size."""

    def __init__(self, graph: AtomicGraph) -> None:
        from torch_geometric.nn.models import SchNet

        super().__init__()
        end, start = directed_edges(graph)
        self.graph = graph
        self.edges = torch.stack([start, end])
        self.model = SchNet(cutoff=10.0, interaction_graph=self._interaction_graph)

    def _interaction_graph(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edges, edge_vectors(self.graph, positions).norm(dim=-1)

    def forward(self, positions: Tensor) -> Tensor:
        return self.model(self.graph.atomic_numbers, positions, self.graph.structure_index).squeeze(-1)


class PygDimeNetPP(nn.Module):
    """The layers of PyTorch Geometric's DimeNet++ at the paper's size, on our edges and the triplets that follow."""

    def __init__(self, graph: AtomicGraph) -> None:
        from torch_geometric.nn.models import DimeNetPlusPlus

        super().__init__()
        self.graph = graph
        self.end, self.start = directed_edges(graph)
        self.first, self.second = triplets(graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its symbolic functions use names that SymPy has deprecated
            self.model = DimeNetPlusPlus(128, 1, 4, 64, 8, 256, 7, 6)

    def forward(self, positions: Tensor) -> Tensor:
        model, graph = self.model, self.graph
        vectors = edge_vectors(graph, positions)
        distance = vectors.pow(2).sum(-1).sqrt()
        onto, from_ = vectors[self.second], vectors[self.first]
        angle = torch.atan2(torch.linalg.cross(onto, from_).norm(dim=-1), (onto * from_).sum(-1))
        radial, spherical = model.rbf(distance), model.sbf(distance, angle, self.first)
        messages = model.emb(graph.atomic_numbers, radial, self.end, self.start)
        output = model.output_blocks[0](messages, radial, self.end, num_nodes=graph.n_atoms)
        for interaction, block in zip(model.interaction_blocks, model.output_blocks[1:], strict=True):
            messages = interaction(messages, radial, spherical, self.first, self.second)
            output = output + block(messages, radial, self.end, num_nodes=graph.n_atoms)
        return scatter_sum(output.squeeze(-1), graph.structure_index, graph.n_structures)


def triplets(graph: AtomicGraph) -> tuple[Tensor, Tensor]:
    """All pairs of edges k→j, j→i that are not the two directions of one pair."""
    graph = graph.with_incoming()
    assert graph.incoming is not None
    _, start = directed_edges(graph)
    incoming = graph.incoming[start]
    second = torch.arange(len(start))[:, None].expand_as(incoming)
    kept = (incoming < len(start)) & (incoming != second ^ 1)
    return incoming[kept], second[kept]


class SchNetPack(nn.Module):
    """SchNetPack's SchNet at the paper's size; it differentiates by itself."""

    def __init__(self, graph: AtomicGraph) -> None:
        super().__init__()
        from torch.utils.data import dataloader

        dataloader.T_co = object  # type: ignore[attr-defined]  # SchNetPack 2.0 imports it; torch has removed it
        import schnetpack
        from schnetpack.atomistic import Atomwise, Forces, PairwiseDistances

        basis = schnetpack.nn.GaussianRBF(n_rbf=50, cutoff=10.0)
        network = schnetpack.representation.SchNet(128, 6, basis, schnetpack.nn.CosineCutoff(10.0), n_filters=128)
        energy = Atomwise(128, n_hidden=64, activation=schnetpack.nn.shifted_softplus, output_key="energy")
        self.model = schnetpack.model.NeuralNetworkPotential(network, [PairwiseDistances()], [energy, Forces()])
        end, start = directed_edges(graph)
        self.data = {
            "_atomic_numbers": graph.atomic_numbers,
            "_positions": graph.positions.float(),
            "_idx_i": end,
            "_idx_j": start,
            "_idx_m": graph.structure_index,
            "_n_atoms": graph.atoms_per_structure(),
            "_offsets": graph.positions.new_zeros(len(end), 3).float(),
        }

    def forward(self) -> tuple[Tensor, Tensor]:
        found = self.model({**self.data, "_positions": self.data["_positions"].clone()})
        return found["energy"], found["forces"]


class MACEPackage(nn.Module):
    """MACE of the size that its authors call small, 128 invariant channels, with a cutoff of 5 Å."""

    def __init__(self, graph: AtomicGraph, elements: tuple[int, ...], mean_neighbors: float) -> None:
        super().__init__()
        with contained("mace-torch"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from e3nn.o3 import Irreps
            from mace import modules

            self.model = modules.ScaleShiftMACE(
                r_max=5.0,
                num_bessel=8,
                num_polynomial_cutoff=5,
                max_ell=3,
                interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
                interaction_cls_first=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
                num_interactions=2,
                num_elements=len(elements),
                hidden_irreps=Irreps("128x0e"),
                MLP_irreps=Irreps("16x0e"),
                atomic_energies=torch.zeros(len(elements)),
                avg_num_neighbors=mean_neighbors,
                atomic_numbers=list(elements),
                correlation=3,
                gate=torch.nn.functional.silu,
                atomic_inter_scale=1.0,
                atomic_inter_shift=0.0,
            ).float()
        self.model.eval().requires_grad_(False)
        end, start = directed_edges(graph)
        kinds = (graph.atomic_numbers[:, None] == torch.tensor(elements)).float()
        sizes = graph.atoms_per_structure()
        self.data = {
            "node_attrs": kinds,
            "positions": graph.positions.float(),
            "shifts": torch.zeros(len(end), 3),
            "edge_index": torch.stack([start, end]),
            "batch": graph.structure_index,
            "ptr": torch.nn.functional.pad(sizes.cumsum(0), (1, 0)),
            "cell": torch.zeros(3 * graph.n_structures, 3),
            "head": torch.zeros_like(sizes),
        }

    def forward(self) -> tuple[Tensor, Tensor]:
        found = self.model({**self.data, "positions": self.data["positions"].clone()})
        return found["energy"], found["forces"]


class NequIPPackage(nn.Module):
    """The ``nequip`` package with the same hyper-parameters; it differentiates by itself."""

    def __init__(self, graph: AtomicGraph, elements: tuple[str, ...], mean_neighbors: float, *, compiled: bool) -> None:
        super().__init__()
        from nequip.model import NequIPGNNModel
        from nequip.utils.global_state import set_global_state

        default = torch.get_default_dtype()
        set_global_state()  # changes the default type, which is ours to keep
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = NequIPGNNModel(
                seed=0,
                model_dtype="float32",
                r_max=4.0,
                type_names=list(elements),
                num_layers=4,
                l_max=1,
                parity=True,
                num_features=32,
                radial_mlp_depth=2,
                radial_mlp_width=64,
                num_bessels=8,
                bessel_trainable=True,
                avg_num_neighbors=mean_neighbors,
                compile_mode="compile" if compiled else "eager",
            )
        torch.set_default_dtype(default)
        self.data = nequip_data(graph, elements)

    def forward(self) -> tuple[Tensor, Tensor]:
        output = self.model({name: value.clone() for name, value in self.data.items()})
        return output["total_energy"].squeeze(-1), output["forces"]


def nequip_data(graph: AtomicGraph, elements: tuple[str, ...]) -> dict[str, Tensor]:
    """A graph in the package's own form."""
    from ase.data import atomic_numbers

    known = torch.tensor([atomic_numbers[symbol] for symbol in elements])
    end, start = directed_edges(graph)
    data = {
        "pos": graph.positions.to(graph.dtype),
        "edge_index": torch.stack([end, start]),
        "atom_types": (graph.atomic_numbers[:, None] == known).int().argmax(-1),
        "atomic_numbers": graph.atomic_numbers,
        "batch": graph.structure_index,
        "num_atoms": graph.atoms_per_structure(),
    }
    if graph.cell is not None:
        forth = torch.linalg.solve(graph.cell[0].T, graph.pair_shift.T).T.round()
        data["cell"] = graph.cell.to(graph.dtype)
        data["edge_cell_shift"] = torch.stack([forth, -forth], dim=1).flatten(0, 1).to(graph.dtype)
    return data


def energies_and_forces(energy: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Of a function of positions, differentiable once more: for training, and for the compiler."""

    def total(positions: Tensor) -> tuple[Tensor, Tensor]:
        energies = energy(positions)
        return energies.sum(), energies

    def both(positions: Tensor) -> tuple[Tensor, Tensor]:
        gradient, (_, energies) = torch.func.grad_and_value(total, has_aux=True)(positions)
        return energies, -gradient

    return both
