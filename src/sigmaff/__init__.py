"""sigmaff: molecular force fields that carry their own error bars.

    import sigmaff as sf

    result = sf.train("run.yaml")
    model = sf.load(result.model_path)
    predictions = model.predict(frames)  # ASE structures; energies, forces and σ in eV and Å

``Calculator`` is the model in ASE. See ``sigmaff.api`` for all functions.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmaff.api import audit, calibrate, compare, evaluate, learn, load, run_md, save, train
    from sigmaff.models import Model, Potential
    from sigmaff.progress import Listener
    from sigmaff.simulation import Calculator

__version__ = version("sigmaff")
__all__ = [
    "Calculator",
    "Listener",
    "Model",
    "Potential",
    "__version__",
    "audit",
    "calibrate",
    "compare",
    "evaluate",
    "learn",
    "load",
    "run_md",
    "save",
    "train",
]

_HOME = {
    "Calculator": "sigmaff.simulation",
    "Listener": "sigmaff.progress",
    "Model": "sigmaff.models",
    "Potential": "sigmaff.models",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``import sigmaff`` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'sigmaff' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "sigmaff.api")), name)
