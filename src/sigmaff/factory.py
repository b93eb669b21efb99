"""Factories that the user names as ``module:factory``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sigmaff.errors import ConfigError


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
