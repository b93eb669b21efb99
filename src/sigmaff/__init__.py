"""sigmaff: molecular force fields that carry their own error bars."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmaff.models import Potential
    from sigmaff.models.file import load, save
    from sigmaff.simulation import Calculator

__version__ = version("sigmaff")
__all__ = ["Calculator", "Potential", "__version__", "load", "save"]

_HOME = {
    "Calculator": "sigmaff.simulation",
    "Potential": "sigmaff.models",
    "load": "sigmaff.models.file",
    "save": "sigmaff.models.file",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``import sigmaff`` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'sigmaff' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
