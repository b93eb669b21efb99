"""What a model file says beside its tensors."""

import math
from typing import Annotated, Any, Literal

from ase.data import chemical_symbols
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from sigmaff.data import DatasetStatistics
from sigmaff.models.dropout import MonteCarloDropoutConfig
from sigmaff.models.potential import Potential, PotentialConfig
from sigmaff.models.prediction import Calibration, Calibrations, EnergyForceStd
from sigmaff.models.record import RunRecord
from sigmaff.models.std_range import StdRange

FORMAT_VERSION = 6
"""6: a digest, and every setting named; a new setting needs a new version, and its value in older ones a line in
``upgrade.completed``; origin of reference energies, charge and spin, shortest distances.
5: unseen surroundings, variance of energies from energies alone, draws of sampled force σ, force σ from energy σ,
growth of force σ.
4: centred linear kernels, calibration of stress, structures and standard errors of calibrations, open compositions.
3: precision of each network, noise of labels in Gaussian processes. 2: ensembles and dropout. All versions load."""
MAX_MEMBERS = 1000


class Part(BaseModel):
    """A potential without its tensors."""

    model_config = ConfigDict(extra="forbid")

    config: PotentialConfig
    statistics: DatasetStatistics
    dtype: Literal["float32", "float64"] | None = None  # of the network; None: a file of version 1 or 2

    @classmethod
    def of(cls, potential: Potential) -> "Part":
        dtype: Any = str(potential.dtype).removeprefix("torch.")
        return cls(config=potential.config, statistics=potential.statistics, dtype=dtype)

    @field_validator("statistics")
    @classmethod
    def _usable_statistics(cls, statistics: DatasetStatistics) -> DatasetStatistics:
        elements, references = statistics.elements, statistics.reference_energies
        if elements[:1] < (1,) or list(elements) != sorted(set(elements)) or elements[-1] >= len(chemical_symbols):
            raise ValueError("elements are not increasing atomic numbers")
        if set(references) != set(elements) or not all(map(math.isfinite, references.values())):
            raise ValueError("reference energies are not one finite number for each element")
        if not 0 < statistics.scale < math.inf or not 0 <= statistics.mean_neighbors < math.inf:
            raise ValueError("scale or mean_neighbors is not a positive finite number")
        directions = statistics.open_compositions
        if any(len(d) != len(elements) or not all(map(math.isfinite, d)) for d in directions):
            raise ValueError("open compositions are not one finite number for each element")
        for *pair, length in statistics.shortest_distances or ():
            if not set(pair) <= set(elements) or not 0 <= length < math.inf:
                raise ValueError(f"the shortest distance of {pair} is {length}")
        if statistics.reference_std is not None and not 0 <= statistics.reference_std < math.inf:
            raise ValueError("σ of reference energies is not a finite number of at least 0")
        if not math.isfinite(statistics.electrons.charge or 0.0):
            raise ValueError("the total charge is not a finite number")
        return statistics


def _readable(record: Any) -> Any:
    return RunRecord.readable(record) if isinstance(record, dict) else record


class Header(Part):
    """The description of a model beside its tensors: its first potential, and how the model uses it."""

    format: Literal["sigmaff"] = "sigmaff"
    format_version: int = Field(default=FORMAT_VERSION, ge=1, le=FORMAT_VERSION)
    library_version: str
    energy_calibration: Calibration | None
    forces_calibration: Calibration | None
    stress_calibration: Calibration | None = None  # files up to format 3 have none: their stress σ is raw
    energy_force_std: EnergyForceStd | None = None  # files up to format 4 have none
    std_range: StdRange | None = None  # None: a model that was not calibrated, or by a version that did not record it
    record: Annotated[RunRecord, BeforeValidator(_readable)]
    mc_dropout: MonteCarloDropoutConfig | None = None
    other_members: list[Part] = Field(default=[], max_length=MAX_MEMBERS - 1)  # of an ensemble, after the first

    @property
    def parts(self) -> list[Part]:
        return [self, *self.other_members]

    @property
    def calibrations(self) -> Calibrations:
        return Calibrations(self.energy_calibration, self.forces_calibration, self.stress_calibration)

    @field_validator("energy_calibration", "forces_calibration", "stress_calibration")
    @classmethod
    def _usable_calibration(cls, calibration: Calibration | None) -> Calibration | None:
        if calibration is None:
            return None
        if not 0 < calibration.scale < math.inf or calibration.n_samples < 0:
            raise ValueError("the factor of σ is not a positive finite number")
        if calibration.dof is not None and not 1 < calibration.dof < math.inf:
            raise ValueError("the degrees of freedom are not a finite number above 1")
        coverages, multipliers = calibration.coverages or (), calibration.multipliers or ()
        if len(coverages) != len(multipliers):
            raise ValueError("coverages and multipliers are not of one length")
        if not _increasing(coverages, 1.0) or not _increasing(multipliers, math.inf):
            raise ValueError("coverages or multipliers do not increase from 0")
        return calibration

    @field_validator("energy_force_std")
    @classmethod
    def _usable_energy_force_std(cls, found: EnergyForceStd | None) -> EnergyForceStd | None:
        if found is not None:
            numbers = (*found.scales.values(), found.reference)
            if not found.scales or not all(0 < number < math.inf for number in numbers):
                raise ValueError("scales of force σ from energy σ are not positive finite numbers")
            if not 0 <= found.exponent < math.inf or min(found.scales) < 1:
                raise ValueError("exponent or elements of force σ from energy σ are invalid")
        return found

    @field_validator("energy_calibration", "forces_calibration", "stress_calibration")
    @classmethod
    def _usable_growth(cls, calibration: Calibration | None, info: ValidationInfo) -> Calibration | None:
        growth = None if calibration is None else calibration.growth
        if growth is None:
            return calibration
        if info.field_name != "forces_calibration":
            raise ValueError("only force σ has a growth")
        usable = 0 <= growth.isotropy <= 1 and 0 <= growth.exponent < math.inf and 0 < growth.typical < math.inf
        if not usable:
            raise ValueError("the growth of force σ is not of an isotropy from 0 to 1 and numbers above 0")
        return calibration


def _increasing(knots: tuple[float, ...], limit: float) -> bool:
    """Each at least its predecessor, the first at least 0, the last below the limit; false where one is NaN."""
    return all(low <= high < limit for low, high in zip((0.0, *knots), knots, strict=False))


def member_prefix(number: int) -> str:
    """Before the names of the tensors of a member."""
    return f"member{number}." if number else ""
