"""sigmaff: molecular force fields that carry their own error bars."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmaff.model_file import load, save
    from sigmaff.potential import Potential
    from sigmaff.simulation import Calculator

__version__ = version("sigmaff")
__all__ = ["Calculator", "Potential", "__version__", "load", "save"]

_HOME = {
    "Calculator": "sigmaff.simulation",
    "Potential": "sigmaff.potential",
    "load": "sigmaff.model_file",
    "save": "sigmaff.model_file",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``import sigmaff`` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'sigmaff' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
