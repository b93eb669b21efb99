"""The ASE calculator of a model: energy, forces, stress, and σ beside them."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from ase.outputs import Properties, all_outputs
from torch import nn

from sigmaff.data import other_state
from sigmaff.errors import ConfigError, DataError, UncertaintyError, UncertaintyWarning
from sigmaff.graph import GraphBuilder
from sigmaff.graph.skin import SKIN
from sigmaff.models import Model
from sigmaff.models.export import compiled
from sigmaff.models.file import load
from sigmaff.models.prediction import ForceStdMethod, Predictor, warn_of_undetermined
from sigmaff.progress import Listener
from sigmaff.simulation.limits import Above
from sigmaff.simulation.results import ASE_NAMES, UNDETERMINED, finite_results
from sigmaff.simulation.watch import Watch


class Calculator(AseCalculator):
    """A model as an ASE calculator. eV, Å; every uncertainty is a standard deviation.

    | in ``results`` | shape | |
    |---|---|---|
    | ``energy``, ``free_energy`` | | eV |
    | ``energies`` | (n_atoms,) | eV, the share of each atom |
    | ``forces`` | (n_atoms, 3) | eV/Å |
    | ``stress`` | (6,) | eV/Å³, ASE's order and sign; structures with a periodic cell |
    | ``energy_uncertainty`` | | σ of the energy, eV |
    | ``energies_uncertainty`` | (n_atoms,) | how unusual an atom's surroundings are, eV; raw, for colouring atoms |
    | ``forces_uncertainty`` | (n_atoms, 3) | σ of each component, eV/Å |
    | ``stress_uncertainty`` | (6,) | σ of each component, eV/Å³; structures with a periodic cell; if asked for |
    | ``calibrated_uncertainties`` | | names of those that are calibrated, or "none"; all others are raw |
    | ``energy_undetermined`` | | True if the training set does not determine energies of this composition |
    | ``energy_ensemble`` | (n_members,) | eV, of every member of an ensemble, or dropout sample |
    | ``forces_ensemble`` | (n_atoms, 3, n_members) | eV/Å, the same |

    A σ that the model does not estimate is absent, never zero. Where a σ leaves its range on the structures that the
    model was calibrated on, the calculator warns once (``UncertaintyWarning``). An energy that is undetermined also
    warns, once for each composition (``UndeterminedEnergyWarning``). The model is only read: several calculators may
    share one, and a calculator can be deep-copied and pickled.
    """

    name = "sigmaff"
    implemented_properties: ClassVar[list[str]] = [*ASE_NAMES.values(), "free_energy"]
    default_parameters: ClassVar[dict[str, Any]] = {"forces_uncertainty": "auto", "stress_uncertainty": False}
    discard_results_on_any_change = True

    def __init__(
        self,
        model: str | Path | Predictor,
        *,
        forces_uncertainty: ForceStdMethod = "auto",
        stress_uncertainty: bool = False,
        warn_above: Above = "auto",
        stop_above: Above = None,
        skin: float = SKIN,
        device: torch.device | str | None = None,
        compile: bool = False,
        trust: bool = False,
    ) -> None:
        """
        model: a model file, an artefact of ``sf.export``, or a model in evaluation mode.
        forces_uncertainty: how force σ is computed with every calculation; "none": only when
            ``get_property("forces_uncertainty")`` asks for it, which makes each step of a simulation cheaper.
        stress_uncertainty: whether stress σ is computed beside force σ with every calculation; False: only when
            ``get_property("stress_uncertainty")`` asks for it.
        warn_above: warn once when a σ is above this: a force σ of an atom in eV/Å (norm of its components); ``Limits``
            on several σ; "auto": twice the largest σ of the structures that the model was calibrated on, for force σ,
            energy σ per atom and atomic σ; off if the model does not record it; None: never.
        stop_above: raise ``UncertaintyError`` when a σ is above this, in place of results; the same choices.
        skin: Å; neighbours are searched so far beyond the cutoff, and again when an atom has moved by half of it. It
            changes no result, and costs memory; 0: they are searched each time.
        device: where a model file is loaded to; a model given as an object stays where it is.
        compile: compile the model before the first calculation, which takes minutes once, or take it from the cache.
        trust: run the machine code of an artefact that this user neither made nor said to trust.
        """
        if isinstance(model, str | Path):
            model = load(model, device="cpu" if device is None else device, trust=trust)
        elif device is not None:
            raise ConfigError("device is for model files; a model given as an object stays on its own device")
        if isinstance(model, nn.Module) and model.training:
            raise ConfigError("the model is in training mode, where predictions may be random; call model.eval() first")
        if compile and isinstance(model, Model):
            model = compiled(model, listener=_Lines())
        self.model = model
        self._graphs = GraphBuilder(model.cutoff, skin=skin)
        self._told: set[str] = set()  # compositions whose energies are undetermined
        self.watch = Watch(model, warn_above=warn_above, stop_above=stop_above, warn=_warn)
        super().__init__(forces_uncertainty=forces_uncertainty, stress_uncertainty=stress_uncertainty)

    def set(self, **changes: Any) -> dict[str, Any]:
        """Change ``forces_uncertainty`` or ``stress_uncertainty``; results are then computed anew."""
        if unknown := changes.keys() - self.default_parameters.keys():
            raise ConfigError(f"unknown parameter {min(unknown)!r}; known: {', '.join(self.default_parameters)}")
        how = changes.get("forces_uncertainty", "auto")
        if how not in get_args(ForceStdMethod):
            raise ConfigError(f"forces_uncertainty is {how!r}; it must be one of {', '.join(get_args(ForceStdMethod))}")
        if not isinstance(with_stress := changes.get("stress_uncertainty", False), bool):
            raise ConfigError(f"stress_uncertainty is {with_stress!r}; it must be True or False")
        return super().set(**changes)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Everything at once; a structure that cannot be predicted raises ``DataError`` and leaves no results.

        So does one with a σ above ``stop_above``, with ``UncertaintyError``.
        """
        self.results = {}
        if atoms is not None and self.check_state(atoms):
            self.atoms = atoms.copy()
        atoms = self.atoms if atoms is None else atoms
        if not atoms:
            raise DataError("there are no atoms to calculate; pass a structure, or set atoms.calc to this calculator")
        how, with_stress = self.parameters["forces_uncertainty"], self.parameters["stress_uncertainty"]
        if how == "none" and not {"forces_uncertainty", "stress_uncertainty"}.isdisjoint(properties):
            how = "auto"
        with_stress = with_stress or "stress_uncertainty" in properties
        if atoms.info and isinstance(self.model, Model) and (problem := other_state(atoms, self.model.electrons)):
            raise DataError(f"{atoms.symbols}: {problem}")
        prediction = self.model.predict(self._graphs.build(atoms), forces_std=how, stress_std=with_stress)
        results = finite_results(prediction, atoms)
        if (above := self.watch.look(results)) is not None:
            raise UncertaintyError(self.watch.words(above))
        self.results = results
        if UNDETERMINED in results:
            self._warn_of_undetermined(atoms.get_chemical_formula())

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        """What has changed since the last calculation, to the last bit; initial charges and moments are no matter."""
        last = self.atoms
        if last is None:
            return list(all_changes)
        values = {name: (getattr(last, name), getattr(atoms, name)) for name in ("positions", "numbers", "pbc")}
        values["cell"] = last.cell.array, atoms.cell.array
        return [name for name, pair in values.items() if not np.array_equal(*pair)]

    def _warn_of_undetermined(self, formula: str) -> None:
        """Once for each composition."""
        if formula not in self._told:
            self._told.add(formula)
            warn_of_undetermined([formula])

    def export_properties(self) -> Properties:
        """Those of the results that ASE has names for, as ``Atoms.get_properties`` returns them."""
        return Properties({name: value for name, value in self.results.items() if name in all_outputs})


def _warn(text: str) -> None:
    warnings.warn(f"{text}. Energy and forces may be wrong here", UncertaintyWarning, stacklevel=2)


class _Lines(Listener):
    """Progress of a compilation, a line for each stage."""

    def stage(self, text: str) -> None:
        print(f"sigmaff: {text}", file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=4)
