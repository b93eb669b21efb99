"""What is made of each molecule."""

from pydantic import BaseModel, ConfigDict, Field

from sigmaff.data.labelling import EngineConfig


class GenerateConfig(BaseModel):
    """Conformers, their relaxation, and displacements along their normal modes.

    As in QM7-X, structures come to rest on a cheaper surface than that of their labels: so equilibrium structures have
    forces, small ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    conformers: int = Field(default=8, ge=1, description="conformers of a molecule that are relaxed, at most")
    displaced: int = Field(default=4, ge=0, description="non-equilibrium structures of each relaxed conformer")
    temperature: float = Field(default=1500.0, gt=0, description="K, of the displacements along normal modes")
    softest: float = Field(
        default=300.0, gt=0, description="cm⁻¹; softer modes are displaced as far as one of this wavenumber"
    )
    fmax: float = Field(default=0.01, gt=0, description="eV/Å; a structure with smaller forces is relaxed")
    max_steps: int = Field(default=500, ge=1, description="steps of a relaxation, at most")
    seed: int = Field(default=0, ge=0, description="of conformers and displacements, together with the SMILES")
    time_limit: float | None = Field(default=1800.0, gt=0, description="seconds for a molecule; null is no limit")
    geometry: EngineConfig = Field(
        default=EngineConfig(calculator="gfn1-xtb"), description="what relaxes structures and gives their normal modes"
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="what computes the energies and forces of all")
