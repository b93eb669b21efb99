"""Networks of other programs as backbones, by adapters that are found by name.

An adapter of a third party is a subclass of ``Host`` that its package names in the entry-point group
``sigmaff.backbones``.
"""

import importlib
from importlib.metadata import entry_points

from sigmaff.backbones.hosts.base import AdoptConfig, Host, HostConfig, Origin, Reading
from sigmaff.errors import ConfigError

ADAPTERS = {
    "mace": "sigmaff.backbones.hosts.mace:MACE",
    "sevennet": "sigmaff.backbones.hosts.sevennet:SevenNet",
    "aimnet2": "sigmaff.backbones.hosts.aimnet2:AIMNet2",
    "ani": "sigmaff.backbones.hosts.ani:ANI",
    "chgnet": "sigmaff.backbones.hosts.chgnet:CHGNet",
    "metatomic": "sigmaff.backbones.hosts.metatomic:Metatomic",
}
"""module:class by the name that comes before the colon of a source."""
PACKAGES = {"mace": "mace", "sevenn": "sevennet", "chgnet": "chgnet"}
"""Adapters of calculators, by the package of their class."""
GROUP = "sigmaff.backbones"


def read_host(source: str, *, trust: bool = False) -> Reading:
    """Read a network of another program.

    Arguments:
        source: adapter:source, as in mace:MACE-OFF23_small.model or sevennet:7net-0.
        trust: whether a file that can run programs (a pickle, TorchScript) may be read.
    """
    name, colon, rest = source.partition(":")
    if not colon or not rest:
        raise ConfigError(
            f"{source!r} does not name a network: write adapter:source, as in mace:my.model; "
            f"adapters are {', '.join(known_adapters())}"
        )
    return _adapter(name).read(rest, trust=trust)


def describe_host(calculator: object) -> Reading:
    """What ``read_host`` would find, of a network in memory: in the ASE calculator of its program."""
    package = type(calculator).__module__.partition(".")[0]
    if package not in PACKAGES:
        known = ", ".join(sorted(PACKAGES))
        raise ConfigError(
            f"a {type(calculator).__name__} cannot be adopted: give adapter:source, or an ASE calculator of {known}"
        )
    return _adapter(PACKAGES[package]).describe(calculator)


def build_host(config: HostConfig) -> Host:
    """Build an adopted network. Weights that its model file holds are loaded into it after that."""
    return _adapter(config.adapter)(config)


def known_adapters() -> list[str]:
    return sorted({*ADAPTERS, *entry_points(group=GROUP).names})


def _adapter(name: str) -> type[Host]:
    if name in ADAPTERS:
        module, _, attribute = ADAPTERS[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
    elif name in (others := entry_points(group=GROUP)).names:
        found = others[name].load()
    else:
        raise ConfigError(f"there is no adapter {name!r}; adapters are {', '.join(known_adapters())}")
    if not (isinstance(found, type) and issubclass(found, Host)):
        raise ConfigError(f"the adapter {name!r} is not a subclass of sigmaff.backbones.hosts.Host")
    return found
