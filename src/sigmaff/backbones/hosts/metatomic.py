"""Models that metatomic exports, as metatrain writes them: TorchScript files with energies and features of atoms.

The program is in the file, so the weights stay there: a model file refers to it.
"""

from collections.abc import Iterator
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
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph

FEATURES = ("mtt::aux::energy_last_layer_features", "feature", "features")
"""Outputs that are features of atoms, the best first."""


class Metatomic(Host):
    """Features: the last layer before the energy if the model gives it, else its features of atoms.

    They are as invariant under rotation as the model is: PET learns it from data, and so only nearly.
    The file computes in its own precision, whatever that of the model.
    """

    package: ClassVar[str] = "metatomic-torch"
    element_index: Tensor

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        path = referenced_file(config.origin)
        with contained(self.package):
            self._outside = Outside(_loaded(path))
        elements = [int(z) for z in config.description["references"]]
        references = torch.tensor(list(config.description["references"].values()), dtype=torch.float64)
        self.register_buffer("element_index", index_of(elements), persistent=False)
        self._references = references  # float64, whatever the precision of the model

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read an exported model (.pt)."""
        path = trusted_program(source, trust)
        with contained(cls.package):
            try:
                model = _loaded(path)
            except (RuntimeError, ValueError) as error:
                raise ConfigError(f"{source}: not a model of metatomic ({str(error).splitlines()[0]})") from None
            offered, lists = model.capabilities(), model.requested_neighbor_lists()
        name = next((name for name in FEATURES if name in offered.outputs), None)
        if name is None or "energy" not in offered.outputs:
            raise ConfigError(f"{source}: it offers {', '.join(offered.outputs)}; energies and features are needed")
        if not lists:
            raise ConfigError(f"{source}: a model without neighbour lists cannot be adopted")
        alone = {z: _run(model, name, [_system(model, *_atom(z))]) for z in offered.atomic_types}
        references = {z: energy.double().item() for z, (_, energy) in alone.items()}
        config = HostConfig(
            adapter="metatomic",
            cutoff=max(options.engine_cutoff("Angstrom") for options in lists),
            n_features=next(iter(alone.values()))[0].shape[-1],
            description={"features": name, "references": {str(z): energy for z, energy in references.items()}},
            origin=origin_of(f"metatomic:{source}", cls.package, path, shipped=False, weights="referenced"),
        )
        return Reading(config=config, references=references, tensors={})

    def forward(self, graph: AtomicGraph) -> Tensor:
        elements = places_of(graph, self.element_index)
        model = self._outside.on(graph.positions.device)
        systems = [_system(model, *parts) for parts in _structures(graph)]
        features, energy = _run(model, self.config.description["features"], systems)
        own = energy.double() - self._references.to(energy.device)[elements]
        return torch.cat([features, own.unsqueeze(-1)], dim=-1).to(graph.dtype)


Structure = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Atomic numbers, positions, cell, pairs, images of pairs (integers), vectors of pairs."""


def _structures(graph: AtomicGraph) -> Iterator[Structure]:
    """Each structure apart. Its cell moves with the shifts of pairs, which are what a strain acts on."""
    first, vectors = 0, graph.pair_vectors()
    owner = graph.structure_index[graph.pair_index[0]]
    for number, size in enumerate(graph.atoms_per_structure().tolist()):
        atoms, pairs = slice(first, first + size), owner == number
        shift = graph.pair_shift[pairs]
        cell = shift.new_zeros(3, 3) if graph.cell is None else graph.cell[number]
        images = torch.round(shift.detach() @ torch.linalg.pinv(cell))
        cell = cell + torch.linalg.pinv(images) @ (shift - images @ cell)
        index = graph.pair_index[:, pairs] - first
        yield graph.atomic_numbers[atoms], graph.positions[atoms], cell, index, images, vectors[pairs]
        first += size


def _atom(z: int) -> Structure:
    none = torch.zeros(0, 3, dtype=torch.float64)
    position, pairs = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.int64)
    return torch.tensor([z]), position, torch.zeros(3, 3, dtype=torch.float64), pairs, none, none


def _system(
    model: Any, numbers: Tensor, positions: Tensor, cell: Tensor, pairs: Tensor, images: Tensor, vectors: Tensor
) -> Any:
    from metatensor.torch import Labels, TensorBlock
    from metatomic.torch import System

    dtype = getattr(torch, model.capabilities().dtype)
    periodic = cell.detach().abs().sum(-1) > 0
    system = System(numbers.to(torch.int32), positions.to(dtype), cell.to(dtype), periodic)
    names = ["first_atom", "second_atom", "cell_shift_a", "cell_shift_b", "cell_shift_c"]
    axes, distance = Labels.range("xyz", 3).to(pairs.device), Labels.range("distance", 1).to(pairs.device)
    for options in model.requested_neighbor_lists():
        near = vectors.detach().norm(dim=-1) <= options.engine_cutoff("Angstrom")
        samples = torch.cat([pairs.T, images], dim=-1)[near].to(torch.int32)
        values = vectors[near].to(dtype)
        if options.full_list:
            back = torch.cat([samples[:, [1, 0]], -samples[:, 2:]], dim=-1)
            samples, values = torch.cat([samples, back]), torch.cat([values, -values])
        block = TensorBlock(values.unsqueeze(-1), Labels(names, samples), [axes], distance)
        system.add_neighbor_list(options, block)
    return system


def _run(model: Any, features: str, systems: list[Any]) -> tuple[Tensor, Tensor]:
    """Features, (n_atoms, d), and energies of atoms, (n_atoms,) eV."""
    from metatomic.torch import ModelEvaluationOptions, ModelOutput

    outputs = {features: ModelOutput(sample_kind="atom"), "energy": ModelOutput(unit="eV", sample_kind="atom")}
    options = ModelEvaluationOptions(length_unit="Angstrom", outputs=outputs)
    with plain_execution():
        found = model(systems, options, check_consistency=False)
    return found[features].block().values, found["energy"].block().values.squeeze(-1)


def _loaded(path: Path) -> Any:
    from metatomic.torch import load_atomistic_model

    model = load_atomistic_model(str(path)).eval()
    for weight in model.parameters():
        weight.requires_grad_(False)
    return model
