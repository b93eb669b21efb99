"""Factories of calculators that the user names as ``module:factory``.

To import a module is to run it. So a name comes from the user: typed, or in a file that the user trusts
(``inputs.settings_of``). What is no factory of a calculator is refused before it is called, where that can be known.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

from ase.calculators.calculator import BaseCalculator

from sigmaff.errors import ConfigError


def calculator_from(name: str, arguments: Mapping[str, Any]) -> BaseCalculator:
    """Call a factory: a class of calculators, or a function, whose result is checked.

    Arguments:
        name: ``module:factory``, as in ``ase.calculators.emt:EMT``.
        arguments: of the factory, by name. What it raises is raised.
    """
    factory = import_factory(name)
    if isinstance(factory, type) and not issubclass(factory, BaseCalculator):
        raise ConfigError(f"{name} is a class, but none of ASE calculators; it was not called")
    if isinstance(factory, BuiltinFunctionType) or not callable(factory):
        raise ConfigError(f"{name} is a {type(factory).__name__}, no factory of ASE calculators; it was not called")
    calculator = factory(**arguments)
    if not isinstance(calculator, BaseCalculator):
        raise ConfigError(f"{name} returned a {type(calculator).__name__}, not an ASE calculator")
    return calculator


def import_factory(name: str) -> Callable[..., Any]:
    """Import the function or class that ``name`` refers to. The working directory is the last place of ``sys.path``.

    Arguments:
        name: ``module:factory``, as in ``ase.calculators.emt:EMT``.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f"{name!r} is not a factory; write module:factory, as in ase.calculators.emt:EMT, "
            "a function or class that returns an ASE calculator"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # files of data cannot stand in for a package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is the user's code: it can raise anything
        raise ConfigError(
            f"{name}: cannot import the module {module_name!r} ({type(error).__name__}: {error}); "
            f"install it, or run in the folder that contains it (this one is {here})"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{name}: the module {module_name!r} has no {attribute!r}; check the name") from None
