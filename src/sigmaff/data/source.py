"""Description of a data file by the user."""

from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sigmaff.config import Settings
from sigmaff.errors import ConfigError
from sigmaff.units import energy_unit, length_unit

Format = Literal["auto", "extxyz", "ase_db", "ase_traj", "md17", "rmd17", "rmd17_original", "qm7x"]
Label = Literal["energy", "forces", "stress"]
GROUP_KEY = "config_type"


class DataSource(Settings):
    """A file of labelled structures. A path alone means all defaults."""

    path: Path = Field(description="the file")
    format: Format = Field(
        "auto",
        description="format of the file; auto uses its ending (.extxyz .xyz .db .traj .npz .hdf5 .h5). "
        "rmd17_original reads the original MD17 labels of an rMD17 file",
    )
    labels: tuple[Label, ...] = Field(
        ("energy", "forces"),
        description="labels that every structure must have; other labels are read if all structures have them",
    )
    energy_key: str | None = Field(
        None, description="name of the energy in extxyz, db and traj; null: energy or REF_energy"
    )
    forces_key: str | None = Field(None, description="name of the forces; null: forces or REF_forces")
    stress_key: str | None = Field(None, description="name of the stress; null: stress or REF_stress")
    group_key: str = Field(
        GROUP_KEY,
        description="name of the value in extxyz, db and traj that says which group a structure belongs to, for errors "
        "and weights of each group",
    )
    energy_unit: str | None = Field(
        None,
        description="eV, meV, kcal/mol, kJ/mol, Hartree or Rydberg; null: the unit that the file or its format states "
        "(kcal/mol for MD17 and rMD17), else eV",
    )
    length_unit: str | None = Field(None, description="Angstrom, Bohr or nm; null: as for energy_unit, else Angstrom")
    forces_unit: str | None = Field(None, description="such as Hartree/Bohr; null: the energy unit per length unit")
    structures: Literal["all", "equilibrium", "non_equilibrium"] = Field(
        "all", description="structures to read from a QM7-X file"
    )

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the default name of groups: as versions without it wrote it."""
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if (key, value) != ("group_key", GROUP_KEY)}

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}

    @field_validator("energy_unit", "length_unit", "forces_unit")
    @classmethod
    def _known_unit(cls, value: str | None, info: Any) -> str | None:
        check = {"energy_unit": energy_unit, "length_unit": length_unit, "forces_unit": forces_unit}
        try:
            if value is not None:
                check[info.field_name](value)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value


def forces_unit(name: str) -> float:
    """Return the value of one force unit in eV/Å. ``name`` is energy/length, such as ``kcal/mol/Angstrom``."""
    energy, _, length = name.rpartition("/")
    return energy_unit(energy) / length_unit(length)
