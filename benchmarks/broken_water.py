"""A box of water with one broken molecule: is σ diluted by all the others?

python benchmarks/networks.py networks --sets water
python benchmarks/broken_water.py networks --heads "{lnk: {}, plain: {distance_aware: false}}"

Protocol, written before a result was looked at. In each of a few test frames (192 atoms), one hydrogen is pulled 1.5 Å
off its oxygen, along the bond: of all hydrogens that which comes least close to any other atom there. Before and after:
energy σ, the largest force σ of an atom (norm over components), force σ of the torn hydrogen, and the places of the two
torn atoms among all by force σ and by ``node_energy_std`` (1 is the largest). The same in a box of 2 × 2 × 2 cells, one
of which is broken: what is local is the same there, unless σ is diluted. There are no labels.
"""

from typing import Any

import numpy as np
from ase import Atoms
from contenders import Contenders, command, contenders, finish, table
from machine import describe_machine, prepare, progress

from sigmaff.models import Model
from sigmaff.models.prediction import FloatArray, StructurePrediction
from sigmaff.progress import Listener

PULL = 1.5  # Å
KEYS = {
    "energy σ (eV)": "energy_std",
    "largest force σ (eV/Å)": "forces_std_max",
    "force σ of the torn H": "forces_std_torn",
    "largest node σ (eV)": "node_std_max",
    "place of torn H, O by force σ": "force_places",
    "by node σ": "node_places",
}


def torn(atoms: Atoms) -> tuple[Atoms, int]:
    """The frame with one bond torn, and its hydrogen."""
    best: tuple[float, Atoms, int] | None = None
    for hydrogen in np.flatnonzero(atoms.numbers == 1).tolist():
        bond = atoms.get_distance(oxygen_of(atoms, hydrogen), hydrogen, mic=True, vector=True)
        pulled = atoms.copy()
        pulled.positions[hydrogen] += PULL * bond / np.linalg.norm(bond)
        others = np.delete(np.arange(len(atoms)), hydrogen)
        room = float(pulled.get_distances(hydrogen, others, mic=True).min())
        if best is None or room > best[0]:
            best = room, pulled, hydrogen
    assert best is not None
    return best[1], best[2]


def boxes(atoms: Atoms, n: int) -> tuple[Atoms, Atoms, tuple[int, int]]:
    """A box of n × n × n cells, whole and with one bond torn in its first cell."""
    pulled, hydrogen = torn(atoms)
    whole = atoms.repeat((n, n, n))
    broken = whole.copy()
    broken.positions[: len(atoms)] = pulled.positions
    return whole, broken, (hydrogen, oxygen_of(whole, hydrogen))


def oxygen_of(atoms: Atoms, hydrogen: int) -> int:
    """The nearest; in a repeated box it may be in another cell."""
    oxygens = np.flatnonzero(atoms.numbers == 8)
    return int(oxygens[atoms.get_distances(hydrogen, oxygens, mic=True).argmin()])


def numbers(found: StructurePrediction, pair: tuple[int, int]) -> dict[str, Any]:
    assert found.energy_std is not None
    assert found.forces_std is not None
    norms = np.linalg.norm(found.forces_std, axis=1)
    node = found.node_energy_std
    return {
        "energy_std": float(found.energy_std),
        "forces_std_max": float(norms.max()),
        "forces_std_torn": float(norms[pair[0]]),
        "force_places": places(norms, pair),
        "node_std_max": None if node is None else float(node.max()),
        "node_places": None if node is None else places(node, pair),
    }


def places(values: FloatArray, pair: tuple[int, int]) -> list[int]:
    return [1 + int((values > values[atom]).sum()) for atom in pair]


def measured(found: Contenders, frames: dict[int, list[Atoms]], listener: Listener) -> dict[str, Any]:
    content: dict[str, Any] = {}
    made = {n: [boxes(atoms, n) for atoms in own] for n, own in frames.items()}
    for name, model in found.models.items():
        for n, own in made.items():
            listener.stage(f"{name}, {n} × {n} × {n} cells")
            found_here = []
            for done, (whole, broken, pair) in enumerate(own, 1):
                found_here.append([numbers(predicted(model, atoms), pair) for atoms in (whole, broken)])
                listener.advance(done, len(own))
            content.setdefault(name, {})[f"{n} × {n} × {n}"] = {
                state: [pair[k] for pair in found_here] for k, state in enumerate(("whole", "broken"))
            }
    return content


def predicted(model: Model, atoms: Atoms) -> StructurePrediction:
    return model.predict(atoms)


def cell(values: list[Any]) -> str:
    """Median over frames; of places, of each."""
    if any(value is None for value in values):
        return "–"
    medians = np.atleast_1d(np.median(np.array(values, dtype=float), axis=0))
    return ", ".join(f"{value:.3g}" for value in medians)


def main() -> None:
    parser = command(__doc__.splitlines()[0], "broken_water.json")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--large", type=int, default=2, help="frames to repeat to a box of 2 × 2 × 2 cells")
    options = parser.parse_args()
    prepare()
    with progress() as terminal:
        found = contenders("water", options, terminal)
        if found is None:
            raise SystemExit("first: python benchmarks/networks.py FOLDER --sets water")
        test = found.parts["test"].structures
        chosen = [test[i] for i in np.linspace(0, len(test) - 1, options.frames).round().astype(int)]
        frames = {1: chosen} | ({2: chosen[: options.large]} if options.large else {})
        content = measured(found, frames, terminal)
    rows = [
        [name, box, state, *(cell([one[key] for one in own]) for key in KEYS.values())]
        for name, by_box in content.items()
        for box, states in by_box.items()
        for state, own in states.items()
    ]
    print(f"{describe_machine()}\n\nmedians over {options.frames} frames, {options.large} of the large box\n")
    print(table(["", "cells", "", *KEYS], rows))
    for name, by_box in content.items():
        torn_std = [[one["forces_std_torn"] for one in states["broken"]] for states in by_box.values()]
        ratios = [large / small for small, large in zip(torn_std[0], torn_std[-1], strict=False)]
        print(f"\n{name}: force σ of the torn H, large box over small box, same frames: {cell(ratios)}")
    finish(options, {"water": content, "chosen": found.chosen})


if __name__ == "__main__":
    main()
