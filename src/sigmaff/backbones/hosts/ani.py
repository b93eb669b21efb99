"""ANI-1x, ANI-1ccx and ANI-2x of the package torchani: one network of the eight."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import torch
from ase.data import atomic_numbers
from ase.units import Hartree
from torch import Tensor, nn
from torch.nn import functional

from sigmaff.backbones.hosts.base import Host, HostConfig, Reading
from sigmaff.backbones.hosts.reading import contained, index_of, origin_of, places_of
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph

KNOWN = {"1x": "ANI1x", "1ccx": "ANI1ccx", "2x": "ANI2x"}
TERMS = {"radial": ("eta", "shifts"), "angular": ("eta", "zeta", "shifts", "sections")}
N_NETWORKS = 8


class ANI(Host):
    """Features: the last hidden layer of the network of the element; zeros follow a layer that is shorter."""

    package: ClassVar[str] = "torchani"  # torch.func goes through it too, but takes three times as long
    element_index: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        layers: dict[str, list[int]] = config.description["layers"]
        with contained(self.package):
            from torchani.aev import AEVComputer
            from torchani.nn import AtomicNetwork

            self.aev = AEVComputer.from_constants(**config.description["aev"], num_species=len(layers))
            self.networks = nn.ModuleList(AtomicNetwork(sizes, "celu", bias=True) for sizes in layers.values())
        self.register_buffer("element_index", index_of([atomic_numbers[s] for s in layers]), persistent=False)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read 1x, 1ccx or 2x, or another of the eight networks as in 1x/7, from where torchani keeps its weights.

        They are plain tensors: no trust is needed.
        """
        name, _, number = source.partition("/")
        if name not in KNOWN or (number or "0") not in map(str, range(N_NETWORKS)):
            raise ConfigError(f"ani:{source} is not known; known: 1x, 1ccx, 2x, and 1x/0 to 1x/{N_NETWORKS - 1}")
        with contained(cls.package):
            from torchani import models, paths

            path = Path(paths.data_dir()) / "StateDicts" / f"ani{name}_state_dict.pt"
            if not path.is_file():
                raise ConfigError(
                    f"ani:{source}: torchani has no weights at {path}; it downloads them with "
                    f"python -c 'import torchani; torchani.models.{KNOWN[name]}()'"
                )
            try:
                torch.load(path, map_location="cpu", weights_only=True)
            except UnpicklingError:
                raise ConfigError(f"ani:{source}: {path} holds more than tensors; delete it") from None
            model = getattr(models, KNOWN[name])(model_index=int(number or 0))
        networks = model.neural_networks.atomics
        layers = {symbol: _sizes(network) for symbol, network in networks.items()}
        references = model.energy_shifter.self_energies.double() * Hartree
        config = HostConfig(
            adapter="ani",
            cutoff=model.aev_computer.radial.cutoff,
            n_features=max(sizes[-2] for sizes in layers.values()),
            description={"layers": layers, "aev": _constants(model.aev_computer)},
            origin=origin_of(f"ani:{source}", cls.package, path, shipped=True),
        )
        tensors = {f"aev.{key}": value for key, value in model.aev_computer.state_dict().items()}
        for place, network in enumerate(networks.values()):
            tensors |= {f"networks.{place}.{key}": value for key, value in network.state_dict().items()}
        return Reading(
            config=config,
            references={atomic_numbers[s]: e for s, e in zip(layers, references.tolist(), strict=True)},
            tensors=tensors,
        )

    def forward(self, graph: AtomicGraph) -> Tensor:
        from torchani.neighbors import Neighbors

        elements = places_of(graph, self.element_index)
        vectors = graph.pair_vectors()
        neighbors = Neighbors(graph.pair_index, vectors.norm(dim=-1), vectors)
        surroundings = self.aev.compute_from_neighbors(elements[None], graph.positions[None], neighbors)[0]
        found = surroundings.new_zeros(graph.n_atoms, self.config.n_features + 1)
        for place, network in enumerate(self.networks):
            atoms = (elements == place).nonzero().squeeze(-1)
            if len(atoms):
                features, energy = _features_and_energy(network, surroundings[atoms])
                padded = functional.pad(features, (0, self.config.n_features - features.shape[-1]))
                found = found.index_add(0, atoms, torch.cat([padded, energy], dim=-1))
        return found


def _features_and_energy(network: Any, features: Tensor) -> tuple[Tensor, Tensor]:
    for layer in network.layers:
        features = network.activation(layer(features))
    return features, network.final_layer(features) * Hartree


def _sizes(network: Any) -> list[int]:
    return [layer.in_features for layer in (*network.layers, network.final_layer)] + [1]


def _constants(computer: Any) -> dict[str, Any]:
    """Constants of the symmetry functions; one eta and zeta, several shifts and sections."""
    constants: dict[str, Any] = {}
    for part, names in TERMS.items():
        term = getattr(computer, part)
        constants[f"{part}_cutoff"] = term.cutoff
        for name in names:
            values = getattr(term, name).tolist()
            constants[name if name == "sections" else f"{part}_{name}"] = values[0] if len(values) == 1 else values
    return constants
