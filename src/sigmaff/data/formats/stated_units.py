"""Units that files name, in the spellings that they use."""

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
"""Spellings of units in files, and ours."""


def stated_unit(path: Path, field: str, name: str) -> str:
    """Our name of a unit that a file states in ``field``."""
    if name not in UNIT_NAMES:
        raise DataError(f"{path}: {field} is {name!r}; known: {', '.join(UNIT_NAMES)}")
    return UNIT_NAMES[name]
