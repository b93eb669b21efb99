"""Units that are stated in files."""

from pathlib import Path

from sigmaff.errors import DataError

UNIT_NAMES = {
    "Ang": "Angstrom",
    "Angstrom": "Angstrom",
    "A": "Angstrom",
    "bohr": "Bohr",
    "Bohr": "Bohr",
    "nm": "nm",
    "kcal/mol": "kcal/mol",
    "kJ/mol": "kJ/mol",
    "eV": "eV",
    "Ha": "Hartree",
    "Hartree": "Hartree",
}
"""Spelling in files: name in ``sigmaff.units``."""


def stated_unit(path: Path, field: str, name: str) -> str:
    """Return the name in ``sigmaff.units`` of the unit ``name`` that a file states in ``field``."""
    if name not in UNIT_NAMES:
        raise DataError(f"{path}: {field} is {name!r}; known: {', '.join(UNIT_NAMES)}")
    return UNIT_NAMES[name]
