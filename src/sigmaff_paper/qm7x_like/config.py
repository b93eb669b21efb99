"""Settings of the generator."""

from pydantic import Field

from sigmaff.config import Settings
from sigmaff.data.labelling import EngineConfig


class GenerateConfig(Settings):
    """Conformers, their relaxation, and displacements along their normal modes.

    As in QM7-X, structures are relaxed by a cheaper method than that of their labels. So equilibrium structures have
    small forces.
    """

    conformers: int = Field(default=8, ge=1, description="maximum number of relaxed conformers of a molecule")
    displaced: int = Field(default=4, ge=0, description="non-equilibrium structures of each relaxed conformer")
    temperature: float = Field(default=1500.0, gt=0, description="temperature of displacements along normal modes, K")
    softest: float = Field(
        default=300.0, gt=0, description="cm⁻¹; softer modes are displaced as far as a mode of this wavenumber"
    )
    fmax: float = Field(default=0.01, gt=0, description="eV/Å; relaxation stops below this force")
    max_steps: int = Field(default=500, ge=1, description="maximum number of steps of a relaxation")
    seed: int = Field(default=0, ge=0, description="seed of molecules, conformers and displacements")
    time_limit: float | None = Field(default=1800.0, gt=0, description="seconds per molecule; null: no limit")
    geometry: EngineConfig = Field(
        default=EngineConfig(calculator="gfn1-xtb"), description="engine for relaxation and normal modes"
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="engine for all energies and forces")
