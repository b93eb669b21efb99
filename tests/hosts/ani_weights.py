"""Make the weights of ANI-1x as torchani keeps them, from the files inside the wheel of torchani 2.0.

python ani_weights.py torchani-2.0-py3-none-any.whl folder; then set TORCHANI_DATA_DIR=folder. Nothing is downloaded.
"""

import os
import sys
import zipfile
from pathlib import Path

import torch


def main(wheel: Path, folder: Path) -> None:
    os.environ["TORCHANI_DATA_DIR"] = str(folder)
    inside, files = "torchani/resources/", folder / "Neurochem"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{inside}ani-1x_8x") and not name.endswith(("output.opt", "cost.dat", "/")):
                path = files / name.removeprefix(inside)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    from torchani.neurochem import load_model_from_info_file
    from torchani.paths import state_dicts_dir

    model = load_model_from_info_file(files / "ani-1x_8x.info")
    torch.save(model.state_dict(), state_dicts_dir() / "ani1x_state_dict.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
