"""Three σ of each structure that say how well the model knows it, and their range on held-out structures."""

from typing import NamedTuple

from sigmaff.evaluation.detection import energy_std_per_atom, largest_atom_energy_std, largest_atom_forces_std
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.metrics import FloatArray
from sigmaff.models.std_range import Quantiles, StdRange


class StructureStd(NamedTuple):
    """As the model reports them, (n_structures,) each; ``None``: it does not."""

    forces: FloatArray | None  # eV/Å, largest force σ of an atom, the norm of its components
    energy: FloatArray | None  # eV/atom, without that of the composition
    atom: FloatArray | None  # eV, largest σ of an atom's share of the energy


def structure_std(evaluation: Evaluation) -> StructureStd:
    energy = energy_std_per_atom(evaluation)
    return StructureStd(
        forces=largest_atom_forces_std(evaluation),
        energy=None if energy is None else energy * evaluation.energy_calibration.scale,
        atom=largest_atom_energy_std(evaluation),
    )


def std_range(evaluation: Evaluation) -> StdRange | None:
    """The range of σ on these structures; ``None`` if the model has no σ."""
    found = {name: Quantiles.of(values) for name, values in structure_std(evaluation)._asdict().items()}
    return StdRange(n_structures=evaluation.n_structures, **found) if any(found.values()) else None
