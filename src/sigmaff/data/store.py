"""Graphs of data sets that are larger than memory: arrays in files, mapped into memory.

A folder holds one file of numbers per array and ``arrays.json``, which names types and shapes. It is made once, under
the digest of structures, labels and cutoff, in the folder for caches of this user (``SIGMAFF_CACHE``, else
``~/.cache/sigmaff``), and may be deleted at any time.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from sigmaff.data.structures import LabelledStructures
from sigmaff.files import digest, folder_lock, naming, write_json
from sigmaff.graph import AtomicGraph

ARRAYS = "arrays.json"
BUILDING = ".building-"
VERSION = 1


def cache_folder() -> Path:
    """Where graphs of large data sets are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SIGMAFF_CACHE") or Path(home) / "sigmaff") / "graphs"


def content_key(structures: LabelledStructures, cutoff: float, dtype: torch.dtype) -> str:
    """A name for the graphs of these structures, with these forces."""

    def parts() -> Iterator[bytes]:
        yield f"{VERSION} {cutoff!r} {dtype}".encode()
        for index, atoms in enumerate(structures.structures):
            yield np.array([len(atoms)]).tobytes() + atoms.numbers.tobytes() + atoms.get_positions().tobytes()
            yield atoms.pbc.tobytes() + atoms.cell.array.tobytes()
            if structures.forces is not None:
                yield np.ascontiguousarray(structures.forces[index]).tobytes()

    return digest(parts())[:32]


class StoredGraphs:
    """The graphs of a data set in files.

    ``graph`` holds all structures as one, ``n_atoms`` and ``n_pairs`` their sizes (n_structures,), ``forces`` labels
    (n_atoms, 3) or ``None``. Reading a row reads its page from the disk, unless the system still has it.
    """

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / ARRAYS).read_text(encoding="utf-8"))
        found = {name: _mapped(folder / name, *description) for name, description in about["arrays"].items()}
        self.n_atoms, self.n_pairs, self.forces = found["n_atoms"], found["n_pairs"], found.get("forces")
        self.graph = AtomicGraph(
            positions=found["positions"],
            atomic_numbers=found["atomic_numbers"],
            structure_index=found["structure_index"],
            pair_index=found["pairs"].T,
            pair_shift=found["pair_shift"],
            cell=found["cell"] if about["is_periodic"] else None,
            n_structures=len(self.n_atoms),
            dtype=getattr(torch, about["dtype"]),
        )


def store_graphs(
    structures: LabelledStructures, graphs: Iterable[AtomicGraph], cutoff: float, dtype: torch.dtype
) -> StoredGraphs:
    """Write the graphs of structures one by one, unless they are there already, and map them.

    Arguments:
        graphs: in the order of the structures; it is not used where they are there.
        cutoff: Å.
        dtype: of forces.
    """
    root = cache_folder()
    folder = root / content_key(structures, cutoff, dtype)
    root.mkdir(parents=True, exist_ok=True)
    with folder_lock(root):
        if not (folder / ARRAYS).exists():
            for left in (folder, *root.glob(f"{BUILDING}*")):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(dir=root, prefix=BUILDING))
            with naming(root):
                _write(temporary, structures, graphs, dtype)
            temporary.replace(folder)
    return StoredGraphs(folder)


def _write(folder: Path, structures: LabelledStructures, graphs: Iterable[AtomicGraph], dtype: torch.dtype) -> None:
    arrays: dict[str, tuple[str, list[int]]] = {}
    is_periodic = False
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}

        def append(name: str, values: Tensor) -> None:
            if name not in files:
                files[name] = stack.enter_context((folder / name).open("wb"))
                arrays[name] = (str(values.dtype).removeprefix("torch."), [0, *values.shape[1:]])
            files[name].write(values.contiguous().numpy().tobytes())
            arrays[name][1][0] += len(values)

        first_atom = 0
        for number, graph in enumerate(graphs):
            append("positions", graph.positions)
            append("atomic_numbers", graph.atomic_numbers)
            append("structure_index", torch.full((graph.n_atoms,), number))
            append("pairs", graph.pair_index.T + first_atom)
            append("pair_shift", graph.pair_shift)
            append("cell", torch.zeros(1, 3, 3, dtype=torch.float64) if graph.cell is None else graph.cell)
            append("n_atoms", torch.tensor([graph.n_atoms]))
            append("n_pairs", torch.tensor([graph.pair_index.shape[1]]))
            if structures.forces is not None:
                append("forces", torch.as_tensor(structures.forces[number], dtype=dtype))
            first_atom += graph.n_atoms
            is_periodic = is_periodic or graph.cell is not None
    name = str(dtype).removeprefix("torch.")
    write_json(folder / ARRAYS, {"dtype": name, "is_periodic": is_periodic, "arrays": arrays})


def _mapped(path: Path, dtype: str, shape: list[int]) -> Tensor:
    """An array in a file. Writing to it would change a copy of the page, never the file."""
    if 0 in shape:  # nothing to map
        return torch.zeros(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="c", shape=tuple(shape)))
