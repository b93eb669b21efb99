"""SevenNet: equivariant networks of the package sevenn, from a checkpoint or by the name of one that it ships."""

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

SHIPPED = {"7net-0": "SEVENNET_0_11Jul2024", "7net-l3i5": "SEVENNET_l3i5"}
READOUTS = ("reduce_input_to_hidden", "readout_FCN")
NOT_RUN = ("onehot_idx_to_onehot", "reduce_total_enegy", "force_output")
COMPILED = "._tensor_constant"
"""In names of constants that a network has once it has run."""
MORE_SETTINGS = ("_number_of_species", "shift", "scale", "readout_fcn_hidden_neurons", "readout_fcn_activation")


class SevenNet(Host):
    """Features: what enters the readout of the energy."""

    package: ClassVar[str] = "sevenn"
    transformable: ClassVar[bool] = True
    element_index: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        elements = config.description["elements"]
        with contained(self.package):
            from sevenn.model_build import build_E3_equivariant_model

            of_elements = {"_type_map": {z: place for place, z in enumerate(elements)}}
            self.network = build_E3_equivariant_model(config.description["settings"] | of_elements)
        self.register_buffer("element_index", index_of(elements), persistent=False)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read a checkpoint; or 7net-0 or 7net-l3i5, which came with the installed package and so need no trust."""
        with contained(cls.package):
            from sevenn import _const
            from sevenn.checkpoint import SevenNetCheckpoint

            shipped = SHIPPED.get(source.lower())
            path = Path(getattr(_const, shipped)) if shipped else trusted_file(source, trust)
            checkpoint = SevenNetCheckpoint(path)
            network, settings = checkpoint.build_model(), checkpoint.config
        return cls._of(network, settings, source, path, shipped=shipped is not None)

    @classmethod
    def describe(cls, calculator: Any) -> Reading:
        if calculator.sevennet_config is None:
            raise ConfigError("a SevenNet calculator of a TorchScript file cannot be adopted, only of a checkpoint")
        return cls._of(deepcopy(calculator.model).cpu(), calculator.sevennet_config, IN_MEMORY, None, shipped=False)

    @classmethod
    def _of(cls, network: Any, settings: Any, source: str, path: Path | None, *, shipped: bool) -> Reading:
        """Of a network that may be changed."""
        with contained(cls.package):
            from sevenn import _const

            kept = {*_const.DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG, *MORE_SETTINGS}
        if settings.get("use_modality"):
            raise ConfigError(f"{source}: a SevenNet of several tasks (modalities) cannot be adopted")
        elements = sorted(settings["_type_map"], key=settings["_type_map"].__getitem__)
        shift = network.rescale_atomic_energy.shift.detach()
        references = dict(zip(elements, shift.double().expand(len(elements)).tolist(), strict=True))
        shift.zero_()
        readout = next(module for name, module in network.named_children() if name in READOUTS)
        config = HostConfig(
            adapter="sevennet",
            cutoff=settings["cutoff"],
            n_features=readout.irreps_in.dim,
            description={"settings": _plain({k: v for k, v in settings.items() if k in kept}), "elements": elements},
            origin=origin_of(f"sevennet:{source}", cls.package, path, shipped=shipped),
        )
        state = network.state_dict()
        tensors = {f"network.{name}": value for name, value in state.items() if COMPILED not in name}
        return Reading(config=config, references=references, tensors=tensors)

    def forward(self, graph: AtomicGraph) -> Tensor:
        elements = places_of(graph, self.element_index)
        one_hot = functional.one_hot(elements, len(self.config.description["elements"])).to(graph.dtype)
        pairs, vectors = directed_pairs(graph)
        data = {"x": one_hot, "node_attr": one_hot, "atom_type": elements, "edge_index": pairs, "edge_vec": vectors}
        features = one_hot
        for name, module in self.network.named_children():
            if name in READOUTS:
                features = data["x"]
            if name not in NOT_RUN:
                data = module(data)
        return torch.cat([features, data["atomic_energy"]], dim=-1)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else value.tolist()
