"""Units: eV and Å everywhere inside the library.

Data is converted once, when it is read, from the units that the user declares. Values are CODATA 2018, as in ASE.
"""

from ase import units as ase_units

from sigmaff.errors import ConfigError

ENERGY_UNITS: dict[str, float] = {
    "eV": 1.0,
    "meV": 1e-3,
    "kcal/mol": ase_units.kcal / ase_units.mol,
    "kJ/mol": ase_units.kJ / ase_units.mol,
    "Hartree": ase_units.Hartree,
    "Rydberg": ase_units.Rydberg,
}
LENGTH_UNITS: dict[str, float] = {"Angstrom": 1.0, "Bohr": ase_units.Bohr, "nm": ase_units.nm}

KCAL_PER_MOL = ENERGY_UNITS["kcal/mol"]


def energy_unit(name: str) -> float:
    """Return the value of one energy unit in eV. ``name`` is a key of ``ENERGY_UNITS``."""
    return _lookup(name, ENERGY_UNITS, "energy")


def length_unit(name: str) -> float:
    """Return the value of one length unit in Å. ``name`` is a key of ``LENGTH_UNITS``."""
    return _lookup(name, LENGTH_UNITS, "length")


def _lookup(name: str, table: dict[str, float], quantity: str) -> float:
    if name not in table:
        raise ConfigError(f"unknown {quantity} unit {name!r}; known: {', '.join(table)}")
    return table[name]
