"""Files of tensors with a text: written whole or not at all, with errors that name the file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sigmaff.files import atomic_write

OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How safetensors tells of an error of the system."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], *, force: bool) -> None:
    """Write a safetensors file.

    Arguments:
        tensors: by name; copies on the processor are written.
        metadata: texts by name.
        force: replace a file that exists, which is an error otherwise.
    """
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path, force=force) as temporary:
        try:
            save_file(flat, temporary, metadata=metadata)
        except SafetensorError as error:
            if (found := OS_ERROR.search(str(error))) is None:
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from None
