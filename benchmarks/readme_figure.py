"""The picture in the README, from the demonstration's model and data.

sigmaff demo
python benchmarks/readme_figure.py demo docs/demo.svg
"""

import argparse
from pathlib import Path

from machine import progress

from sigmaff.data import GraphDataset, read_structures
from sigmaff.evaluation import evaluate
from sigmaff.models.file import load
from sigmaff.report import readme_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", type=Path, help="directory of the demonstration")
    parser.add_argument("output", type=Path, help="picture to write")
    arguments = parser.parse_args()
    model = load(arguments.demo / "run" / "model.sigmaff")
    ethanol = read_structures(arguments.demo / "ethanol.extxyz").subset(model.record.split.test)
    ether = read_structures(arguments.demo / "dimethyl_ether.extxyz")
    with progress() as terminal:
        evaluations = [
            evaluate(model, GraphDataset(part, model.cutoff), name=name, listener=terminal)
            for part, name in ((ethanol, "ethanol"), (ether, "dimethyl ether"))
        ]
    readme_figure(*evaluations).savefig(arguments.output)


if __name__ == "__main__":
    main()
