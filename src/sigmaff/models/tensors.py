"""Files of tensors with a text, written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from sigmaff.files import atomic_write


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], *, force: bool) -> None:
    """Write a safetensors file.

    ``safetensors.torch.save_file`` would make a temporary file of its own, which nobody removes after a kill, and whose
    errors name no file.

    Arguments:
        tensors: by name; copies on the processor are written.
        metadata: texts by name.
        force: replace a file that exists, which is an error otherwise.
    """
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path, force=force) as temporary:
        temporary.write_bytes(save(flat, metadata))
