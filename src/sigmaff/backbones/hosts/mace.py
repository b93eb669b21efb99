"""MACE: a model file of mace-torch, which is a pickle. Foundation models and those that mace_run_train writes."""

from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

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

IRREPS = ("hidden_irreps", "edge_irreps", "MLP_irreps")
CLASSES = {"interaction_cls": "interaction_classes", "interaction_cls_first": "interaction_classes"}
CLASSES |= {"readout_cls": "readout_classes", "gate": "gate_dict"}
"""Settings that are classes or functions, and the tables of mace.modules that hold their names."""


class MACE(Host):
    """Features: the invariants of all layers."""

    package: ClassVar[str] = "mace-torch"
    element_index: Tensor
    invariants: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        description = config.description
        with contained(self.package):
            from e3nn.o3 import Irreps
            from mace import modules

            settings = dict(description["settings"])
            settings |= {name: Irreps(settings[name]) for name in IRREPS if settings[name] is not None}
            settings |= {name: getattr(modules, table)[settings[name]] for name, table in CLASSES.items()}
            self.network = modules.ScaleShiftMACE(**settings).to(getattr(torch, description["dtype"]))
        self.register_buffer("element_index", index_of(settings["atomic_numbers"]), persistent=False)
        places = torch.cat([torch.arange(*place) for place in description["invariants"]])
        self.register_buffer("invariants", places, persistent=False)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read a model file. Of a model with several heads, name one: file.model#head."""
        name, _, head = source.partition("#")
        path = trusted_file(name, trust)
        with contained(cls.package):
            network = torch.load(path, map_location="cpu", weights_only=False)
        return cls._of(network, source, path, head)

    @classmethod
    def describe(cls, calculator: Any) -> Reading:
        if len(calculator.models) > 1:
            raise ConfigError(f"a calculator of {len(calculator.models)} MACE networks cannot be adopted, only of one")
        head = calculator.head if len(calculator.models[0].heads) > 1 else ""
        return cls._of(deepcopy(calculator.models[0]).cpu(), IN_MEMORY, None, head)

    @classmethod
    def _of(cls, network: Any, source: str, path: Path | None, head: str) -> Reading:
        """Of a network that may be changed."""
        with contained(cls.package):
            from mace import modules
            from mace.tools.scripts_utils import extract_config_mace_model

            if type(network) is not modules.ScaleShiftMACE:
                raise ConfigError(f"{source}: a {type(network).__name__} cannot be adopted, only a ScaleShiftMACE")
            settings = extract_config_mace_model(network)
            names = {name: _name(getattr(modules, table), settings[name]) for name, table in CLASSES.items()}
        if settings["embedding_specs"]:
            raise ConfigError(f"{source}: a MACE that is given charges or spins cannot be adopted")
        heads = list(settings["heads"])
        if head not in heads and (head or len(heads) > 1):
            file = "file.model" if path is None else path.name
            raise ConfigError(f"{source}: its heads are {', '.join(heads)}; name one of them: {file}#{heads[0]}")
        place = heads.index(head) if head else 0
        return cls._found(source, path, network, settings | names, place)

    @classmethod
    def _found(cls, source: str, path: Path | None, network: Any, settings: dict[str, Any], head: int) -> Reading:
        energies = network.atomic_energies_fn.atomic_energies
        elements = network.atomic_numbers.tolist()
        references = dict(zip(elements, energies.double().reshape(-1, len(elements))[head].tolist(), strict=True))
        energies.zero_()
        settings |= {name: None if settings[name] is None else str(settings[name]) for name in IRREPS}
        settings |= {"atomic_numbers": elements, "atomic_energies": energies.tolist(), "cueq_config": None}
        settings |= {name: settings[name].tolist() for name in ("atomic_inter_scale", "atomic_inter_shift")}
        invariants, start = [], 0
        for product in network.products:
            for part in product.linear.irreps_out:
                if part.ir.l == 0 and part.ir.p == 1:
                    invariants.append((start, start + part.mul))
                start += part.dim
        dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
        config = HostConfig(
            adapter="mace",
            cutoff=network.r_max.item(),
            n_features=sum(end - start for start, end in invariants),
            description={"settings": settings, "invariants": invariants, "head": head, "dtype": dtype},
            origin=origin_of(f"mace:{source}", cls.package, path, shipped=False),
        )
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        return Reading(config=config, references=references, tensors=tensors)

    def forward(self, graph: AtomicGraph) -> Tensor:
        elements = places_of(graph, self.element_index)
        pairs, vectors = directed_pairs(graph)
        sizes = graph.atoms_per_structure()
        data = {
            "node_attrs": functional.one_hot(elements, len(self.network.atomic_numbers)).to(graph.dtype),
            "positions": vectors.new_zeros(graph.n_atoms, 3),  # the vectors of pairs go in as shifts: see AtomicGraph
            "shifts": vectors,
            "edge_index": pairs,
            "batch": graph.structure_index,
            "ptr": functional.pad(sizes.cumsum(0), (1, 0)),
            "cell": vectors.new_zeros(3 * graph.n_structures, 3),
            "head": torch.full_like(sizes, self.config.description["head"]),
        }
        found = self.network(data, compute_force=False)
        energy = found["node_energy"].to(graph.dtype).unsqueeze(-1)
        return torch.cat([found["node_feats"][:, self.invariants], energy], dim=-1)


def _name(table: dict[str, Any], value: Any) -> str:
    return next(name for name, known in table.items() if known is value)
