"""Packages that only some commands need. ``pip install 'sigmaff[extra]'`` installs those of an extra."""

from importlib.util import find_spec

from sigmaff.errors import ConfigError

PACKAGES = {
    "lightning_fabric": ("lightning-fabric", "train"),
    "tensorboard": ("tensorboard", "train"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "distributed": ("distributed", "label"),
    "cryptography": ("cryptography", "label"),
    "tblite": ("tblite", "label"),
    "h5py": ("h5py", "formats"),
    "jinja2": ("jinja2", "report"),
    "matplotlib": ("matplotlib", "report"),
    "rdkit": ("rdkit", "generate"),
    "pyscf": ("pyscf", "pyscf"),
    "dask_jobqueue": ("dask-jobqueue", "slurm"),
}
"""By module: the name to install, and its extra."""


def require(purpose: str, *modules: str) -> None:
    """Raise ``ConfigError`` if a package is missing. Call it before the import, and before work that would be lost.

    Arguments:
        purpose: what needs the packages, such as "training"; the subject of the message.
        modules: keys of ``PACKAGES``.
    """
    missing = [PACKAGES[module] for module in modules if find_spec(module) is None]
    if missing:
        packages = ", ".join(name for name, _ in missing)
        extras = ",".join(dict.fromkeys(extra for _, extra in missing))
        raise ConfigError(f"{purpose} needs {packages}: pip install 'sigmaff[{extras}]'")
