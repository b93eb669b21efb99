"""The tensor products of NequIP against e3nn's: messages (weighted by distance), and the map of an atom's own features.

python benchmarks/tensor_product.py [--threads 1]

One layer of 32 features up to l, 21 atoms in 8 molecules of aspirin's size, forward and backward, eager and compiled.
"""

import argparse
import warnings
from collections.abc import Callable

import torch
from e3nn import o3
from machine import describe_machine
from torch import Tensor

from sigmaff.backbones import NequIPConfig
from sigmaff.backbones.irreps import CoupledHarmonics, all_irreps
from sigmaff.backbones.nequip import Layer
from sigmaff.timing import median_seconds

N_ATOMS, N_PAIRS, N_ELEMENTS = 8 * 21, 8 * 113, 4
Run = Callable[[], None]


def irreps_of(layer: Layer) -> o3.Irreps:
    return o3.Irreps([(layer.n_channels, (irrep.l, irrep.p)) for irrep in layer.inputs])


def messages_of_e3nn(layer: Layer) -> o3.TensorProduct:
    """All paths from each irrep with harmonics to each, channel by channel, with weights from outside."""
    harmonics = o3.Irreps.spherical_harmonics(max(irrep.l for irrep in layer.inputs))
    outputs = o3.Irreps([(layer.n_channels, (path.target.l, path.target.p)) for path in layer.paths])
    instructions = [
        (layer.inputs.index(path.source), path.degree, number, "uvu", True) for number, path in enumerate(layer.paths)
    ]
    return o3.TensorProduct(
        irreps_of(layer), harmonics, outputs, instructions, shared_weights=False, internal_weights=False
    )


def backward(function: Callable[..., Tensor], *arguments: Tensor) -> Run:
    arguments = tuple(argument.detach().requires_grad_() for argument in arguments)

    def run() -> None:
        torch.autograd.grad(function(*arguments).square().sum(), arguments)

    return run


def message_runs(layer: Layer, l_max: int, compiled: bool) -> dict[str, Run]:
    features = {irrep: torch.randn(N_ATOMS, irrep.dim, layer.n_channels) for irrep in layer.inputs}
    pair_index = torch.randint(N_ATOMS, (2, N_PAIRS))
    unit = torch.nn.functional.normalize(torch.randn(N_PAIRS, 3), dim=-1)
    harmonics, theirs = CoupledHarmonics(l_max), messages_of_e3nn(layer)
    weights = torch.randn(N_PAIRS, len(layer.paths) * layer.n_channels)
    flat = torch.cat([value.transpose(1, 2).flatten(1) for value in features.values()], dim=1)

    def ours(unit: Tensor, weights: Tensor) -> Tensor:
        messages = layer._messages(features, harmonics(unit), weights, pair_index)
        return torch.cat([message.flatten() for message in messages.values()])

    def e3nn(unit: Tensor, weights: Tensor) -> Tensor:
        edges = torch.cat([unit, -unit])
        attributes = o3.spherical_harmonics(list(range(l_max + 1)), edges, normalize=False, normalization="component")
        return theirs(flat[pair_index.flip(0).flatten()], attributes, torch.cat([weights, weights]))

    functions = {"ours": ours, "e3nn": e3nn}
    if compiled:
        functions = {name: torch.compile(function, dynamic=False) for name, function in functions.items()}
    return {name: backward(function, unit, weights) for name, function in functions.items()}


def own_runs(layer: Layer, compiled: bool) -> dict[str, Run]:
    features = {irrep: torch.randn(N_ATOMS, irrep.dim, layer.n_channels) for irrep in layer.inputs}
    species = torch.nn.functional.one_hot(torch.randint(N_ELEMENTS, (N_ATOMS,)), N_ELEMENTS).float()
    flat = torch.cat([value.transpose(1, 2).flatten(1) for value in features.values()], dim=1)
    widths = {irrep: matrix.shape[2] for irrep, matrix in layer.update_matrices()[1].items()}
    outputs = o3.Irreps([(width, (irrep.l, irrep.p)) for irrep, width in widths.items()])
    theirs = o3.FullyConnectedTensorProduct(irreps_of(layer), f"{N_ELEMENTS}x0e", outputs)

    def ours(*values: Tensor) -> Tensor:
        given = dict(zip(features, values, strict=True))
        return torch.cat([part.flatten() for part in layer.own_features(given, species).values()])

    def e3nn(features: Tensor) -> Tensor:
        return theirs(features, species)

    functions: dict[str, Callable[..., Tensor]] = {"ours": ours, "e3nn": e3nn}
    if compiled:
        functions = {name: torch.compile(function, dynamic=False) for name, function in functions.items()}
    return {"ours": backward(functions["ours"], *features.values()), "e3nn": backward(functions["e3nn"], flat)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    print(f"milliseconds of e3nn, and sigmaff's time over e3nn's; {describe_machine()}\n")
    print("| l | product | eager: e3nn (ms) | ratio | compiled: e3nn (ms) | ratio |")
    print("|---|---|---|---|---|---|")
    for l_max in (1, 2):
        torch.manual_seed(0)
        layer = Layer(NequIPConfig(l_max=l_max), all_irreps(l_max), N_ELEMENTS, 10.0, last=False)
        kinds = {
            "messages, TensorProduct": lambda compiled, layer=layer, l_max=l_max: message_runs(layer, l_max, compiled),
            "own features, FullyConnectedTensorProduct": lambda compiled, layer=layer: own_runs(layer, compiled),
        }
        for kind, runs in kinds.items():
            cells = []
            for compiled in (False, True):
                seconds = median_seconds(runs(compiled), arguments.rounds)
                cells.append(f"{1e3 * seconds['e3nn']:.2f} | **{seconds['ours'] / seconds['e3nn']:.2f}**")
            print(f"| {l_max} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
