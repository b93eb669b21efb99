"""Wall time until the program answers: its help, an import, a calculator.

python benchmarks/startup.py [--rounds 15] [--json startup.json]

Cold: the files of Python, of its packages and of sigmaff are dropped from the page cache before every start.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
from machine import describe_machine

import sigmaff

STARTS = {
    "sigmaff --help": ["-c", "from sigmaff.cli import main; main()", "--help"],
    "import sigmaff": ["-c", "import sigmaff"],
    "from sigmaff import Calculator": ["-c", "from sigmaff import Calculator"],
    "import torch": ["-c", "import torch"],
}
"""Arguments of Python; the last is for comparison."""


def python_files() -> list[Path]:
    """All that a start may read."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")}
    folders.add(str(Path(sigmaff.__file__).parent))
    return [path for folder in folders for path in Path(folder).rglob("*") if path.suffix in (".pyc", ".py", ".so")]


def drop_from_cache(files: list[Path]) -> None:
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    files = python_files()
    found: dict[str, list[float]] = {}
    for number in range(arguments.rounds + 1):
        for name, start in STARTS.items():
            if number:  # the first round warms up
                found.setdefault(f"{name}, warm", []).append(seconds(start))
        for name, start in STARTS.items():
            if number and number <= arguments.rounds // 3:
                drop_from_cache(files)
                found.setdefault(f"{name}, cold", []).append(seconds(start))
    quartiles = {name: np.percentile(values, [25, 50, 75]).round(3).tolist() for name, values in found.items()}
    print(f"seconds: lower quartile, median, upper quartile; {describe_machine()}\n")
    print("| start | quartiles (s) |\n|---|---|")
    for name, values in quartiles.items():
        print(f"| {name} | {' / '.join(f'{value:.2f}' for value in values)} |")
    if arguments.json is not None:
        result = {"machine": describe_machine(), "seconds": quartiles}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
