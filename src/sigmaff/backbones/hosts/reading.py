"""What adapters share: contained imports, the origin of weights, both directions of pairs."""

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from ase.data import chemical_symbols
from torch import Tensor

from sigmaff.backbones.hosts.base import Origin
from sigmaff.backbones.hosts.trust import is_trusted, trust_file
from sigmaff.errors import ConfigError, DataError, ModelFileError
from sigmaff.files import file_digest
from sigmaff.graph import AtomicGraph

IN_MEMORY = "a calculator"
"""In place of a source, of a network that was in memory."""
UNSAFE_LOADING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextmanager
def contained(package: str) -> Iterator[None]:
    """Import and build a host: undo what its code changes for the whole process.

    ``import mace`` makes every later ``torch.load`` unpickle without checks, and e3nn 0.4, which it needs, can only be
    imported so. Within this block the host reads its own files; after it, torch is as it was before.

    Arguments:
        package: what to install if an import fails.
    """
    unsafe = os.environ.get(UNSAFE_LOADING)
    os.environ[UNSAFE_LOADING] = "1"
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"this potential needs {package} ({error}): pip install {package}") from None
    finally:
        if unsafe is None:
            os.environ.pop(UNSAFE_LOADING, None)
        else:
            os.environ[UNSAFE_LOADING] = unsafe


def trusted_file(source: str, trust: bool) -> Path:
    """The path of a file whose reading can run programs. Without trust it is an error."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(f"{source}: no such file")
    if not trust:
        raise ConfigError(
            f"{source}: this kind of file can run programs when it is read; if you trust whoever made it, "
            "say so: --trust, or trust=True"
        )
    return path


def trusted_program(source: str, trust: bool) -> Path:
    """As ``trusted_file``, of a file that models will refer to: it is put on the user's list."""
    path = trusted_file(source, trust)
    trust_file(path)
    return path


def referenced_file(origin: Origin) -> Path:
    """The file that a model refers to. Another file in its place, or one that the user has not trusted, is an error."""
    path = Path(origin.file or "")
    if not path.is_file():
        text = f"the network of this model is in {path}; there is no such file: put it back, or adopt it again"
        raise ModelFileError(text)
    if (found := file_digest(path)) != origin.sha256:
        text = "this is not the file that the model was made with (its SHA-256 differs): put that back, or adopt again"
        raise ModelFileError(f"{path}: {text}")
    if not is_trusted(found):
        raise ModelFileError(
            f"this model runs {path}, a file that can run programs; if you trust whoever made it: sigmaff trust {path}"
        )
    return path


def origin_of(
    source: str, package: str, file: Path | None, *, shipped: bool, weights: Literal["copied", "referenced"] = "copied"
) -> Origin:
    """Where a network comes from.

    Arguments:
        source: as the user named it.
        package: that the host is installed by.
        file: with the weights; ``None``: they were in memory.
        shipped: whether the file is part of the package, so that its licence is that of the package.
        weights: whether they go into the model file.
    """
    return Origin(
        source=source,
        package=package,
        version=metadata.version(package),
        file=None if file is None else str(file.resolve()),
        sha256=None if file is None else file_digest(file),
        licence=_licence(package) if shipped else None,
        weights=weights,
    )


def _licence(package: str) -> str | None:
    about = metadata.metadata(package)
    stated = list(about.get_all("License-Expression", []))
    stated += [line.split(" :: ")[-1] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    return stated[0] if stated else None


def index_of(elements: Sequence[int]) -> Tensor:
    """Place of each atomic number in ``elements``, (largest atomic number + 1,); −1 for those that are not there."""
    index = torch.full((len(chemical_symbols),), -1)
    index[list(elements)] = torch.arange(len(elements))
    return index


def places_of(graph: AtomicGraph, index: Tensor) -> Tensor:
    """Places of a graph's elements among those that a host knows, (n_atoms,). One that it does not know is an error.

    index: from ``index_of``.
    """
    places = index[graph.atomic_numbers]
    if bool((places < 0).any()):
        unknown = chemical_symbols[int(graph.atomic_numbers[places < 0][0])]
        raise DataError(f"the adopted network does not know {unknown}")
    return places


def directed_pairs(graph: AtomicGraph) -> tuple[Tensor, Tensor]:
    """Each pair in both directions: index of (from, to), (2, 2 · n_pairs), and vectors, (2 · n_pairs, 3) Å."""
    vectors = graph.pair_vectors()
    return torch.cat([graph.pair_index, graph.pair_index.flip(0)], dim=1), torch.cat([vectors, -vectors])


class Outside:
    """A network that is no submodule of its adapter: its weights are not those of the model file.

    It moves to a device once, not at every call: that would look at each of its weights.
    """

    def __init__(self, network: Any) -> None:
        """network: on the CPU."""
        self._network, self._device = network, torch.device("cpu")

    def on(self, device: torch.device) -> Any:
        if device != self._device:
            self._network, self._device = self._network.to(device), device
        return self._network


def plain_execution() -> AbstractContextManager[None]:
    """Run TorchScript as it is written: derivatives that it writes itself after some calls do not take batches."""
    context: AbstractContextManager[None] = torch.jit.optimized_execution(False)
    return context
