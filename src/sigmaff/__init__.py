"""sigmaff: molecular force fields that carry their own error bars.

    import sigmaff as sf

    result = sf.train("run.yaml")
    model = sf.load(result.model_path)
    predictions = model.predict(frames)  # ASE structures; energies, forces and σ in eV and Å

``Calculator`` is the model in ASE. See ``sigmaff.api`` for all functions.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmaff.api import (
        Calculator,
        Listener,
        Model,
        Potential,
        adopt,
        audit,
        calibrate,
        compare,
        compiled,
        evaluate,
        export,
        guard,
        learn,
        load,
        run_md,
        save,
        train,
    )
    from sigmaff.simulation.guarded import guarded
    from sigmaff.simulation.md.stability import stability
    from sigmaff.simulation.relaxation import relax

    __version__: str

__all__ = [
    "Calculator",
    "Listener",
    "Model",
    "Potential",
    "__version__",
    "adopt",
    "audit",
    "calibrate",
    "compare",
    "compiled",
    "evaluate",
    "export",
    "guard",
    "guarded",
    "learn",
    "load",
    "relax",
    "run_md",
    "save",
    "stability",
    "train",
]

_LIGHTER = {
    "Calculator": "sigmaff.simulation",
    "Listener": "sigmaff.progress",
    "Model": "sigmaff.models",
    "Potential": "sigmaff.models",
    "compiled": "sigmaff.models.export",
    "export": "sigmaff.models.export",
    "guarded": "sigmaff.simulation.guarded",
    "load": "sigmaff.models.file",
    "relax": "sigmaff.simulation.relaxation",
    "save": "sigmaff.models.file",
    "stability": "sigmaff.simulation.md.stability",
}
"""Names of ``sigmaff.api`` that another module gives without the rest."""


def __getattr__(name: str) -> Any:
    """Import on first use: ``import sigmaff`` stays light."""
    if name == "__version__":
        return import_module("importlib.metadata").version("sigmaff")
    if name not in __all__:
        raise AttributeError(f"module 'sigmaff' has no attribute {name!r}")
    return getattr(import_module(_LIGHTER.get(name, "sigmaff.api")), name)


class _Package(ModuleType):
    """``sigmaff.audit`` is the function, also after an import of the package of this name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
