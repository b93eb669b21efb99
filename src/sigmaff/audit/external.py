"""Calculators of other programs, named as ``module:factory``."""

import importlib

from ase.calculators.calculator import BaseCalculator

from sigmaff.audit.subject import Subject
from sigmaff.errors import ConfigError

NEEDED = ("energy", "forces")


def foreign_subject(reference: str) -> Subject:
    """What the factory makes when it is called without arguments: a function of one's own, or a calculator's class."""
    module_name, separator, attribute = reference.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(
            f"{reference!r} names no calculator; write module:factory, as in ase.calculators.emt:EMT, where calling "
            "the factory without arguments makes an ASE calculator"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does
        raise ConfigError(
            f"{reference}: the module {module_name!r} cannot be imported ({type(error).__name__}: {error}); "
            "is it installed, or in the folder you are in?"
        ) from error
    try:
        factory = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{reference}: there is no {attribute!r} in the module {module_name!r}") from None
    try:
        calculator = factory()
    except Exception as error:
        raise ConfigError(
            f"{reference}: calling it without arguments failed ({type(error).__name__}: {error}); write a function "
            "that takes none and returns the calculator"
        ) from error
    return Subject(name=attribute, calculator=_usable(reference, calculator))


def _usable(reference: str, calculator: object) -> BaseCalculator:
    if not isinstance(calculator, BaseCalculator):
        raise ConfigError(f"{reference} returned a {type(calculator).__name__}, not an ASE calculator")
    lacking = [name for name in NEEDED if name not in calculator.implemented_properties]
    if lacking:
        raise ConfigError(
            f"{reference}: the calculator has no {' and no '.join(lacking)}; an audit needs energies and forces"
        )
    return calculator
