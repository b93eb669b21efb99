"""Adopt a potential of another program: its energies and forces, with σ, from a few labelled structures."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ase.calculators.calculator import BaseCalculator

from sigmaff.backbones import AdoptConfig
from sigmaff.backbones.hosts import describe_host
from sigmaff.config import read_config
from sigmaff.data import DataSource, LabelledStructures, read_structures, split_structures
from sigmaff.errors import DataError
from sigmaff.models import Model, Potential
from sigmaff.models.adopt import host_potential, read_potential
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.data import split_data
from sigmaff.runs.run import produce
from sigmaff.runs.stages import make_model

FEWEST = 6
"""Labelled structures, at least."""
HELD_OUT, MOST_HELD_OUT = 3, 100
"""One structure of so many is held out to choose the settings of the head and to calibrate σ, up to a number."""
TESTED, FEWEST_TESTED = 5, 100
"""From so many structures on, one of so many is for testing alone."""


def adopt(
    host: AdoptConfig | Potential | BaseCalculator,
    structures: LabelledStructures | DataSource,
    *,
    overrides: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    listener: Listener | None = None,
) -> Model:
    """Put a head with σ on a network of another program, and calibrate it.

    Arguments:
        host: what to read, or a potential made of it (``sigmaff.models.adopt``), or an ASE calculator of its program.
        structures: labelled structures, at least 6, or where to read them.
        overrides: texts "section.key=value" that change settings of a run, as of ``sigmaff train --set``.
        values: the same, as values by "section.key".
        listener: callbacks for progress; the default is silent.

    Returns the model. Its record has the errors of the network alone beside its own.
    """
    listener = listener or Listener()
    if isinstance(host, AdoptConfig):
        listener.stage(f"reading {host.adopt}")
        host = read_potential(host)
    elif not isinstance(host, Potential):
        host = host_potential(describe_host(host))
    source = structures if isinstance(structures, DataSource) else DataSource(path=Path(structures.source))
    if isinstance(structures, DataSource):
        listener.stage(f"reading {source.path}")
        structures = read_structures(source)
    config = read_config(RunConfig, _defaults(host, structures, source), overrides, values)
    split = split_structures(config.data.split, structures)
    if split.reason:
        listener.tell(f"split {split.reason}")
    data = split_data(structures, split, config)
    model = produce(config, data, listener, partial(make_model, force=False, host=host))
    assert model is not None, "nothing here has helper processes"
    return model


def _defaults(host: Potential, structures: LabelledStructures, source: DataSource) -> dict[str, Any]:
    """Settings of a run that adopts a network."""
    if len(structures) < FEWEST:
        raise DataError(f"{structures.source}: {len(structures)} structures; adopting a potential takes {FEWEST}")
    return {
        "data": {"source": source.model_dump(mode="json"), "split": _sizes(len(structures))},
        "model": {"backbone": host.config.backbone.model_dump(mode="json"), "head": {"name": "lnk"}},
    }


def _sizes(n: int) -> dict[str, int]:
    """Of the parts of a split of n structures."""
    n_test = n // TESTED if n >= FEWEST_TESTED else 0
    n_validation = min((n - n_test) // HELD_OUT, MOST_HELD_OUT)
    return {"n_train": n - n_test - n_validation, "n_validation": n_validation, "n_test": n_test}
