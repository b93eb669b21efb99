"""Calculators of other programs, named as ``module:factory``."""

from ase.calculators.calculator import BaseCalculator

from sigmaff.audit.subject import Subject
from sigmaff.errors import ConfigError
from sigmaff.factory import import_factory

NEEDED = ("energy", "forces")


def foreign_subject(reference: str) -> Subject:
    """What the factory makes when it is called without arguments: a function of one's own, or a calculator's class."""
    factory = import_factory(reference)
    try:
        calculator = factory()
    except Exception as error:
        raise ConfigError(
            f"{reference}: calling it without arguments failed ({type(error).__name__}: {error}); write a function "
            "that takes none and returns the calculator"
        ) from error
    return Subject(name=reference.partition(":")[2], calculator=_usable(reference, calculator))


def _usable(reference: str, calculator: object) -> BaseCalculator:
    if not isinstance(calculator, BaseCalculator):
        raise ConfigError(f"{reference} returned a {type(calculator).__name__}, not an ASE calculator")
    lacking = [name for name in NEEDED if name not in calculator.implemented_properties]
    if lacking:
        raise ConfigError(
            f"{reference}: the calculator has no {' and no '.join(lacking)}; an audit needs energies and forces"
        )
    return calculator
