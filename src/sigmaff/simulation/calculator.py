"""The ASE calculator of a model: energy, forces, stress, and σ beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.stress import full_3x3_to_voigt_6_stress
from torch import Tensor, nn

from sigmaff.errors import ConfigError, DataError
from sigmaff.graph import build_graph
from sigmaff.potential import load
from sigmaff.prediction import ForcesStd, Prediction, Predictor

Results = dict[str, float | npt.NDArray[np.float64]]


class Calculator(AseCalculator):
    """A model as an ASE calculator. eV, Å; every uncertainty is a standard deviation.

    | in ``results`` | shape | |
    |---|---|---|
    | ``energy``, ``free_energy`` | | eV |
    | ``energies`` | (n_atoms,) | eV, the share of each atom |
    | ``forces`` | (n_atoms, 3) | eV/Å |
    | ``stress`` | (6,) | eV/Å³, ASE's order and sign; structures with a periodic cell |
    | ``energy_uncertainty`` | | σ of the energy, eV |
    | ``energies_uncertainty`` | (n_atoms,) | σ of the share of each atom, eV |
    | ``forces_uncertainty`` | (n_atoms, 3) | σ of each component, eV/Å |

    A σ that the model does not estimate is absent, never zero. The model is only read: several calculators may share
    one, and a calculator can be deep-copied and pickled.
    """

    name = "sigmaff"
    implemented_properties: ClassVar[list[str]] = [
        "energy",
        "free_energy",
        "energies",
        "forces",
        "stress",
        "energy_uncertainty",
        "energies_uncertainty",
        "forces_uncertainty",
    ]
    default_parameters: ClassVar[dict[str, Any]] = {"forces_uncertainty": "auto"}
    discard_results_on_any_change = True
    ignored_changes: ClassVar[set[str]] = {"initial_charges", "initial_magmoms"}

    def __init__(
        self,
        model: str | Path | Predictor,
        *,
        forces_uncertainty: ForcesStd = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        """
        model: a model file, or a model in evaluation mode.
        forces_uncertainty: how force σ is computed with every calculation; "none": only when
            ``get_property("forces_uncertainty")`` asks for it, which makes each step of a simulation cheaper.
        device: where a model file is loaded to; a model given as an object stays where it is.
        """
        self.model = _ready(model, device)
        super().__init__(forces_uncertainty=forces_uncertainty)

    def set(self, **changes: Any) -> dict[str, Any]:
        """Change ``forces_uncertainty``; results are then computed anew."""
        if unknown := changes.keys() - self.default_parameters.keys():
            raise ConfigError(f"unknown parameter {min(unknown)!r}; known: forces_uncertainty")
        how = changes.get("forces_uncertainty", "auto")
        if how not in get_args(ForcesStd):
            raise ConfigError(f"forces_uncertainty is {how!r}; it must be one of {', '.join(get_args(ForcesStd))}")
        return super().set(**changes)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Everything at once; a structure that cannot be predicted raises ``DataError`` and leaves no results."""
        self.results = {}
        super().calculate(atoms, properties, system_changes)
        if self.atoms is None:
            raise DataError("there is no structure to calculate; pass one, or set atoms.calc to this calculator")
        how = self.parameters["forces_uncertainty"]
        if how == "none" and "forces_uncertainty" in properties:
            how = "auto"
        graph = build_graph(self.atoms, self.model.cutoff, dtype=torch.float64)
        self.results = _finite_results(self.model.predict(graph, forces_std=how), self.atoms)


def _ready(model: str | Path | Predictor, device: torch.device | str | None) -> Predictor:
    if isinstance(model, str | Path):
        return load(model, device="cpu" if device is None else device)
    if device is not None:
        raise ConfigError("device is for model files; a model given as an object stays on its own device")
    if isinstance(model, nn.Module) and model.training:
        raise ConfigError("the model is in training mode, where predictions may be random; call model.eval() first")
    return model


def _finite_results(prediction: Prediction, atoms: Atoms) -> Results:
    """The prediction of one structure under ASE's names."""
    energy = prediction.energy.item()
    results: Results = {"energy": energy, "free_energy": energy}
    results["energies"] = _float64(prediction.node_energy)
    results["forces"] = _float64(prediction.forces)
    if prediction.stress is not None and atoms.cell.rank == 3:
        results["stress"] = full_3x3_to_voigt_6_stress(_float64(prediction.stress[0]))
    if prediction.energy_std is not None:
        results["energy_uncertainty"] = prediction.energy_std.item()
    if prediction.node_energy_std is not None:
        results["energies_uncertainty"] = _float64(prediction.node_energy_std)
    if prediction.forces_std is not None:
        results["forces_uncertainty"] = _float64(prediction.forces_std)
    for name, value in results.items():
        _require_finite(name, value, atoms)
    return results


def _float64(tensor: Tensor) -> npt.NDArray[np.float64]:
    return tensor.detach().cpu().numpy().astype(np.float64)


def _require_finite(name: str, value: float | npt.NDArray[np.float64], atoms: Atoms) -> None:
    finite = np.isfinite(value)
    if finite.all():
        return
    per_atom = finite.ndim > 0 and name != "stress"
    where = f" of atom {np.argwhere(~finite)[0, 0]}" if per_atom else ""
    raise DataError(
        f"the model's {name}{where} in {atoms.symbols} is not a finite number; the structure is probably far from "
        "all that the model was trained on: look at its shortest distances"
    )
