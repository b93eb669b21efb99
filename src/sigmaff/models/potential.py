"""A potential: backbone + head + scaling. The only place where normalised and physical units meet."""

from dataclasses import replace

import torch
from ase.data import chemical_symbols
from pydantic import Field
from torch import Tensor

from sigmaff.backbones import Backbone, BackboneConfig, Host, SchNetConfig, Surroundings, build_backbone
from sigmaff.backbones.linear_response import (
    CompiledJoinedResponse,
    CompiledResponse,
    JoinedResponse,
    LinearResponse,
)
from sigmaff.config import Settings
from sigmaff.data import DatasetStatistics
from sigmaff.data.elements import unknown_element
from sigmaff.errors import DataError
from sigmaff.graph import AtomicGraph, Labels
from sigmaff.heads import Deterministic, EnergyDistribution, HeadConfig, LNKConfig, build_head
from sigmaff.models.force_std import choose_way, forces_variance, virial_variance
from sigmaff.models.memory import is_large, require_memory
from sigmaff.models.model import Model
from sigmaff.models.prediction import ForceStdMethod, Prediction, Provenance, StdKind
from sigmaff.models.program import Program
from sigmaff.models.repulsion import Repelled, Repulsion


class PotentialConfig(Settings):
    """What a potential is made of."""

    backbone: BackboneConfig = Field(default=SchNetConfig(), description="the network that embeds atoms")
    head: HeadConfig = Field(default=LNKConfig(), description="the readout of energies and their σ")
    repulsion: bool = Field(
        default=True,
        description="ZBL repulsion of atoms that are nearer than any bond and than any two in the training set",
    )


class Potential(Model):
    """E = Σ_i E₀(z_i) + repulsion + scale · Σ_i head(backbone(graph))_i, F = −∂E/∂positions.

    An adopted network adds its own energy to this: the head learns the difference.
    The network runs in its own precision (float32 unless cast with ``set_precision``); reference energies and the
    head's Gaussian-process algebra stay in float64.
    """

    def __init__(
        self, config: PotentialConfig, statistics: DatasetStatistics, backbone: Backbone | None = None
    ) -> None:
        """backbone: one that other potentials use too; ``None`` builds one with new weights."""
        super().__init__()
        self.config = config
        self.statistics = statistics
        self.backbone = backbone or build_backbone(config.backbone, statistics.elements, statistics.mean_neighbors)
        if statistics.elements and statistics.elements[-1] > self.backbone.max_atomic_number:
            raise DataError(
                f"the data hold {chemical_symbols[statistics.elements[-1]]}; {config.backbone.name} knows elements up "
                f"to {chemical_symbols[self.backbone.max_atomic_number]}"
            )
        embedding, self.surroundings = self.backbone.embedding, None
        if config.head.wants_layers:
            embedding = replace(embedding, hidden_layers=self.backbone.hidden_layers)
        if config.head.wants_surroundings:
            self.surroundings = Surroundings(statistics.elements, self.backbone.cutoff)
            embedding = replace(embedding, n_surroundings=self.surroundings.n_features)
        self.head_embedding = embedding
        self.head = build_head(config.head, embedding, statistics.elements)
        self._references = _reference_table(statistics)
        shortest = statistics.shortest_distances
        self.repulsion = Repulsion(shortest) if config.repulsion and shortest is not None else None
        self.program: Program | None = None  # compiled; computes what it has a part for
        self._anchor: Tensor
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)  # has the network's precision and device

    @property
    def potentials(self) -> list["Potential"]:
        return [self]

    @property
    def n_passes(self) -> int:
        return 1

    @property
    def cutoff(self) -> float:
        return self.backbone.cutoff

    @property
    def elements(self) -> tuple[int, ...]:
        return self.statistics.elements

    @property
    def kind(self) -> StdKind | None:
        return self.head.kind

    @property
    def dtype(self) -> torch.dtype:
        return self._anchor.dtype

    @property
    def device(self) -> torch.device:
        return self._anchor.device

    def set_precision(self, dtype: torch.dtype) -> None:
        """Cast the network, and not the float64 algebra of the head."""
        self.backbone.to(dtype)
        self.head.set_precision(dtype)
        self._anchor = self._anchor.to(dtype)

    def with_head(self, config: HeadConfig) -> "Potential":
        """A copy of the backbone under another head, which takes over the last linear map of a deterministic one.

        An adopted network is never trained: it is shared, not copied.
        """
        shared = self.backbone if isinstance(self.backbone, Host) else None
        other = Potential(self.config.model_copy(update={"head": config}), self.statistics, shared)
        other.set_precision(self.dtype)
        other.to(self.device).train(self.training)
        if shared is None:
            other.backbone.load_state_dict(self.backbone.state_dict())
        if isinstance(self.head, Deterministic):
            other.head.take_readout(self.head.linear)
        return other

    def forward(self, graph: AtomicGraph) -> tuple[EnergyDistribution, Tensor]:
        """Energy distribution and forces (n_atoms, 3), normalised, differentiable in the parameters."""

        def energy(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self._energy(graph.with_positions(positions))

        gradient, (_, parts) = torch.func.grad_and_value(energy, has_aux=True)(graph.positions)
        return self.head.distribution(**parts), -gradient.to(graph.dtype)

    def forward_with_virial(self, graph: AtomicGraph) -> tuple[EnergyDistribution, Tensor, Tensor]:
        """As ``forward``, and the symmetric derivative of the energies by strain, (n_structures, 3, 3)."""

        def energy(positions: Tensor, strain: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self._energy(_strained(graph.with_positions(positions), strain))

        strain = graph.positions.new_zeros(graph.n_structures, 3, 3)
        slopes = torch.func.grad_and_value(energy, argnums=(0, 1), has_aux=True)
        (gradient, virial), (_, parts) = slopes(graph.positions, strain)
        return self.head.distribution(**parts), -gradient.to(graph.dtype), _symmetric(virial).to(graph.dtype)

    def embed(self, graph: AtomicGraph) -> Tensor:
        """Features of atoms, as the head takes them: embeddings, hidden layers, surroundings that are not learned.

        With surroundings in float64.
        """
        return self._with_surroundings(self._learned(graph), graph)

    def _learned(self, graph: AtomicGraph) -> Tensor:
        learned: Tensor = self.backbone.all_layers(graph) if self.config.head.wants_layers else self.backbone(graph)
        return learned

    def _with_surroundings(self, learned: Tensor, graph: AtomicGraph) -> Tensor:
        if self.surroundings is None:
            return learned
        return torch.cat([learned.double(), self.surroundings(graph)], dim=-1)

    def linear_response(self, graph: AtomicGraph) -> LinearResponse:
        """Of ``embed`` to displacements, for prediction."""
        response = self.backbone.linear_response(graph, all_layers=self.config.head.wants_layers)
        if self.surroundings is None:
            return response
        if isinstance(response, CompiledResponse):
            return CompiledJoinedResponse(response, self.surroundings.compiled_response(graph), graph)
        return JoinedResponse(response, self.surroundings.linear_response(graph))

    def energies(self, node_features: Tensor, graph: AtomicGraph) -> EnergyDistribution:
        """Of structures, normalised, from the features that ``embed`` gives: the head's, and a network's own."""
        distribution = self.head(node_features, graph)
        if not self.head_embedding.has_own_energy:
            return distribution
        return distribution.plus(self.head_embedding.own_energy(node_features) / self.statistics.scale, graph)

    def _energy(self, graph: AtomicGraph) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = self.energies(self.embed(graph), graph)
        return distribution.mean.sum(), distribution.tensors()

    def normalised_virial(self, graph: AtomicGraph, stress: Tensor) -> Tensor:
        """The derivative of the energy by strain that these stresses (eV/Å³) stand for, as the network sees it."""
        if graph.cell is None:
            raise DataError("a stress belongs to a periodic cell; these structures have none")
        virial = stress * torch.linalg.det(graph.cell).abs()[:, None, None]
        if (repelled := self._repelled(graph)) is not None:
            virial = virial - repelled.virial
        return (virial / self.statistics.scale).to(self.dtype)

    def normalised_targets(self, graph: AtomicGraph, labels: Labels) -> tuple[Tensor | None, Tensor | None]:
        """Energies and forces as the network sees them; references and repulsion are subtracted in float64."""
        energy = forces = None
        repelled = self._repelled(graph)
        if labels.energy is not None:
            self.require_known(graph)
            known = _summed(self._node_references(graph), graph)
            known = known if repelled is None else known + repelled.energy
            energy = ((labels.energy - known) / self.statistics.scale).to(self.dtype)
        if labels.forces is not None:
            forces = labels.forces if repelled is None else labels.forces - repelled.forces
            forces = (forces / self.statistics.scale).to(self.dtype)
        return energy, forces

    def _repelled(self, graph: AtomicGraph) -> Repelled | None:
        return None if self.repulsion is None else self.repulsion(graph)

    def compute(
        self, graph: AtomicGraph, forces_std: ForceStdMethod, *, stress_std: bool, unseen_elements: bool
    ) -> Prediction:
        if self.program is not None and not unseen_elements:
            found = self.program.predict(self, graph, forces_std, stress_std=stress_std)
            if found is not None:
                return found
        graph = self.prepare(graph, unseen_elements=unseen_elements)
        if large := is_large(graph):
            require_memory(self._bytes_held, graph)
        with self.head.prepared():
            how, exactly = choose_way(self.head, graph, forces_std)
            has_slopes = how in ("exact", "sampled")
            variance = stress_variance = None
            if has_slopes or large:  # which may hold less than ``derivatives``
                response = self.linear_response(graph)
                features = response.embeddings
                distribution, forces, virial, samples = self.responses(graph, response, sampled=how == "sampled")
            else:
                distribution, features, forces, virial = self.derivatives(graph)
            if has_slopes:
                variance = forces_variance(response, self.head, graph, exactly, samples)
                if stress_std and graph.cell is not None:
                    stress_variance = virial_variance(response, self.head, graph)
            node_variance = None if forces_std == "none" else self.head.node_variance(features, graph)
            if how == "by_atom" and node_variance is not None:
                variance = node_variance.unsqueeze(-1).expand(-1, 3)
        scale = self.statistics.scale
        prediction = self.in_physical_units(graph, distribution, forces, virial)
        return replace(
            prediction,
            forces_std=_std(variance, scale),
            node_energy_std=_std(node_variance, scale),
            stress_std=_stress_std(stress_variance, graph.cell, scale),
            provenance=replace(prediction.provenance, forces_std=how),
        )

    def prepare(self, graph: AtomicGraph, *, unseen_elements: bool = False) -> AtomicGraph:
        """Move the graph to the model's device, set its precision, and add the indices that the backbone needs.

        An unknown element is an error unless ``unseen_elements``.
        """
        if not unseen_elements:
            self.require_known(graph)
        return self.backbone.prepare(graph.to(device=self.device, dtype=self.dtype))

    def _bytes_held(self, part: AtomicGraph) -> int:
        return self.backbone.bytes_held(self.backbone.prepare(part), all_layers=self.config.head.wants_layers)

    def in_physical_units(
        self, graph: AtomicGraph, distribution: EnergyDistribution, forces: Tensor, virial: Tensor | None
    ) -> Prediction:
        """Normalised energies, forces and strain derivatives as a prediction without σ of forces, stress and atoms."""
        scale, references = self.statistics.scale, self._node_references(graph)
        if distribution.node_mean is None:
            node_energy = None
            energy = _summed(references, graph) + scale * distribution.mean.double()
        else:
            node_energy = references + scale * distribution.node_mean.double()
            energy = _summed(node_energy, graph)
        prediction = Prediction(
            energy=energy,
            forces=scale * forces,
            node_energy=node_energy,
            energy_std=_std(distribution.variance, scale),
            unseen_std=_std(distribution.unseen, scale),
            stress=None if virial is None or graph.cell is None else scale * virial / _volume(graph.cell, virial.dtype),
            provenance=Provenance(method=self.head.method, kind=self.head.kind, covariance=self.head.covariance),
        )
        if (repelled := self._repelled(graph)) is None:
            return prediction
        return repelled.added_to(prediction, None if graph.cell is None else _volume(graph.cell, torch.float64))

    def derivatives(self, graph: AtomicGraph) -> tuple[EnergyDistribution, Tensor, Tensor, Tensor | None]:
        """Distribution, embeddings, forces, and the derivative by strain of the energy of periodic structures."""
        with torch.enable_grad():
            positions = graph.positions.detach().requires_grad_()
            moved, inputs = graph.with_positions(positions), [positions]
            if graph.cell is not None:
                inputs.append(torch.zeros_like(graph.cell).requires_grad_())
                moved = _strained(moved, inputs[1])
            features = self._with_surroundings(self._learned(moved), graph)  # these move no mean
            distribution = self.energies(features, moved)
            slopes = torch.autograd.grad(distribution.mean.sum(), inputs)
        gradient, *virial = (slope.to(graph.dtype) for slope in slopes)
        return distribution.detached(), features.detach(), -gradient, _symmetric(virial[0]) if virial else None

    def responses(
        self, graph: AtomicGraph, response: LinearResponse, *, sampled: bool
    ) -> tuple[EnergyDistribution, Tensor, Tensor | None, Tensor | None]:
        """Distribution, forces, derivative by strain, and deviations of forces in samples, (n_samples, n_atoms, 3).

        Forces of the mean and of samples are slopes of functions of the embeddings: they pass through the backbone
        together.
        """
        with torch.enable_grad():
            features = response.embeddings.detach().requires_grad_()
            distribution = self.energies(features, graph)
            total = distribution.mean if distribution.node_mean is None else distribution.node_mean
            cotangents = torch.autograd.grad(total.sum(), features)[0].unsqueeze(0)
        if sampled:
            deviations = self.head.deviation_slopes(response.embeddings, graph)
            cotangents = torch.cat([cotangents.to(deviations.dtype), deviations])
            by_position, by_shift = response.pull_back(cotangents)
        else:  # surroundings move no mean
            learned = response.learned
            by_position, by_shift = learned.pull_back(cotangents[..., : learned.embeddings.shape[-1]])
        virial = None if graph.cell is None else _virial(graph, by_position[0], by_shift[0]).to(graph.dtype)
        samples = by_position[1:] if sampled else None
        return distribution.detached(), -by_position[0].to(graph.dtype), virial, samples

    def _node_references(self, graph: AtomicGraph) -> Tensor:
        """Reference energy of each atom, eV, float64; 0 for an element that has none."""
        return self._references.nan_to_num().to(graph.atomic_numbers.device)[graph.atomic_numbers]

    def require_known(self, graph: AtomicGraph) -> None:
        """Raise an error that names an element that the model was not trained on."""
        unseen = self._references.isnan().to(graph.atomic_numbers.device)[graph.atomic_numbers]
        if unseen.any():
            structure = graph.structure_index[unseen][0]
            problem = unknown_element(graph.atomic_numbers[graph.structure_index == structure].cpu(), self.elements)
            raise DataError(f"structure {structure}: {problem}")


def _reference_table(statistics: DatasetStatistics) -> Tensor:
    """Reference energies by atomic number; NaN marks elements the model has not seen."""
    table = torch.full((len(chemical_symbols),), torch.nan, dtype=torch.float64, device="cpu")
    for number in statistics.elements:
        table[number] = statistics.reference_energies[number]
    return table


def _summed(values: Tensor, graph: AtomicGraph) -> Tensor:
    return graph.sum_of_structures(values)


def _strained(graph: AtomicGraph, strain: Tensor) -> AtomicGraph:
    """Positions and periodic images deformed by x -> x (1 + ε), with one strain per structure."""
    of_pair = graph.structure_index[graph.pair_index[0]]
    return replace(
        graph,
        positions=graph.positions + torch.einsum("na,nab->nb", graph.positions, strain[graph.structure_index]),
        pair_shift=graph.pair_shift + torch.einsum("pa,pab->pb", graph.pair_shift, strain[of_pair]),
    )


def _virial(graph: AtomicGraph, by_position: Tensor, by_shift: Tensor) -> Tensor:
    """Derivative of the energies by strains of atoms and images, (n_structures, 3, 3)."""
    if graph.layout is not None:
        vectors = graph.positions[graph.pair_index[1]] + graph.pair_shift - graph.positions[graph.pair_index[0]]
        of_edges = 0.5 * vectors.unsqueeze(-1) * by_shift.unsqueeze(-2)
        return _symmetric(_summed(graph.layout.sum_of_edges(of_edges), graph))
    of_atoms = torch.einsum("na,nb->nab", graph.positions, by_position)
    of_pairs = torch.einsum("pa,pb->pab", graph.pair_shift, by_shift)
    of_structures = graph.structure_index[graph.pair_index[0]]
    return _symmetric(_summed(of_atoms, graph).index_add(0, of_structures, of_pairs))


def _symmetric(virial: Tensor) -> Tensor:
    return 0.5 * (virial + virial.transpose(1, 2))


def _volume(cell: Tensor, dtype: torch.dtype) -> Tensor:
    """(n_structures, 1, 1); NaN for a structure without a cell, whose stress does not exist."""
    first, second, third = cell.unbind(1)
    volume = (torch.linalg.cross(first, second) * third).sum(-1).abs()
    return torch.where(volume > 0, volume, torch.nan)[:, None, None].to(dtype)


def _stress_std(variance: Tensor | None, cell: Tensor | None, scale: float) -> Tensor | None:
    std = _std(variance, scale)
    return None if std is None or cell is None else std / _volume(cell, std.dtype)


def _std(variance: Tensor | None, scale: float) -> Tensor | None:
    return None if variance is None else scale * variance.clamp(min=0.0).sqrt()
