"""One run: labelled structures in, a calibrated force field out, in a directory that can be resumed."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sigmaff.backbones import AdoptConfig, HostConfig
from sigmaff.data import read_structures
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import Evaluation, Summary, evaluate, group_summaries, summarize
from sigmaff.evaluation.calibration import MIN_CONFORMAL, MIN_STRUCTURES
from sigmaff.evaluation.datasets import calibrate, foreign_dataset
from sigmaff.files import folder_lock, refuse_overwrite, remove_traces, write_json
from sigmaff.models import Model, Potential
from sigmaff.models.adopt import network_alone
from sigmaff.models.file import save
from sigmaff.models.prediction import ForceStdMethod
from sigmaff.models.record import AdoptedRecord, RunRecord
from sigmaff.progress import Listener
from sigmaff.runs.config import OtherStructures, RunConfig
from sigmaff.runs.data import RunData, load_data, settled, tell_compositions
from sigmaff.runs.record import as_begun, check_unchanged, only_raises_limits, record_of
from sigmaff.runs.stages import Made, make_model, with_backbone_of
from sigmaff.training.processes import is_helper

OOD_MEASURES = (
    *("energy_auroc", "energy_fpr95", "forces_auroc", "forces_fpr95", "ood_"),
    *("energy_spearman_with_ood", "forces_spearman_with_ood"),
)
"""Beginnings of the keys of a summary that compare two sets of structures."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    model_path: Path
    metrics: Summary | None  # of the test structures
    record: RunRecord  # with ``ood`` and ``groups`` as well
    already_done: bool = False


Make = Callable[..., Made | None]
"""Makes a model and its record from settings, data, listener and ``force``; ``None`` in a helper process."""


def run(
    config: RunConfig,
    listener: Listener | None = None,
    *,
    force: bool = False,
    make: Make = make_model,
    locked: bool = False,
    skip_checks: bool = False,
) -> RunResult | None:
    """Train, fit, calibrate, test and save a model. Call it again with the same settings to resume.

    A finished run with raised limits (``max_epochs``, ``patience``, ``time_limit_minutes``) goes on from its end.

    Arguments:
        config: settings; ``config.output`` is the directory of the run.
        listener: progress callbacks; ``None`` is silent.
        force: replace the model of another run in that directory.
        make: makes the model; the default trains or solves it as ``config`` says.
        locked: whether the caller keeps other processes out of the directory already.
        skip_checks: do not check the structures first.

    Returns ``None`` in the helper processes of a distributed training.
    """
    if config.head_training is not None and not config.model.head.trains_on_backbone:
        raise ConfigError("head_training is for a head that is trained on a trained backbone; leave it out")
    listener = listener or Listener()
    model_path = config.output / "model.sigmaff"
    config = with_backbone_of(config)
    config = config if force else settled(config)
    if model_path.exists() and not force:
        if not only_raises_limits(config, model_path):
            remove_traces(config.output)
            return _finished(config, model_path)
        config, force = as_begun(config, model_path), True  # stages that began alike go on, all others begin anew
        listener.tell(
            f"this run is finished and its limits are raised: training goes on, up to epoch "
            f"{config.training.max_epochs}; head, calibration and test follow anew"
        )
    with nullcontext() if locked or is_helper(config.training) else folder_lock(config.output, wait=False):
        make = partial(make, force=force)
        return _carry_out(config, listener, make, force=force, skip_checks=skip_checks)


def _carry_out(
    config: RunConfig, listener: Listener, make: Make, *, force: bool, skip_checks: bool
) -> RunResult | None:
    """All steps of a run that is not finished."""
    model_path = config.output / "model.sigmaff"
    if not any(config.output.glob("**/checkpoint.safetensors")):  # these files belong to no run of this directory
        for name in ("backbone.sigmaff", "metrics.json"):
            refuse_overwrite(config.output / name, force)
    listener.stage(f"reading {', '.join(str(source.path) for source in config.data.sources)}")
    data = load_data(config, listener, skip_checks=skip_checks)
    if data.split.reason:
        listener.tell(f"split {data.split.reason}")
    _warn_of_few(config, len(data.validation), listener)
    model = produce(config, data, listener, make)
    if model is None:
        return None
    save(model, model_path, force=force)
    if (tested := _tested(model.record)) is not None:
        write_json(config.output / "metrics.json", tested, force=True)
    return RunResult(model_path=model_path, metrics=model.record.metrics, record=model.record)


def produce(config: RunConfig, data: RunData, listener: Listener, make: Make) -> Model | None:
    """Make, calibrate and test a model. ``None`` in a helper process."""
    started = time.monotonic()
    is_adopted = isinstance(config.model.backbone, AdoptConfig | HostConfig)
    if not is_adopted:
        tell_compositions(data.statistics, data, listener)
    made = make(config, data, listener)
    if made is None:
        return None
    model, record = made
    if is_adopted:  # whose reference energies are those of what it leaves to learn
        tell_compositions(model.potentials[0].statistics, data, listener)
    held_out = test = None
    if config.calibration != "none" and model.kind is not None:
        held_out, reasons = calibrate(
            model, data.validation, config.calibration, listener, forces_std=config.forces_std
        )
        record = record.model_copy(update={"uncalibrated": reasons})
    tested: dict[str, object] = {}
    if data.test is not None:
        listener.stage("testing")
        test = evaluate(model, data.test, name="test", forces_std=config.forces_std, listener=listener)
        tested |= _metrics(config, model, test, listener)
    if model.kind is not None and (host := network_alone(model)) is not None:
        tested["adopted"] = _beside(host, model, data, test or held_out, listener)
    record = record.model_copy(update={**tested, "seconds": time.monotonic() - started})
    model.record = record_of(config, data.split, record)
    return model


def _warn_of_few(config: RunConfig, n_validation: int, listener: Listener) -> None:
    """Tell before hours of training that σ will not be calibrated."""
    n_needed = MIN_CONFORMAL if config.calibration == "conformal" else MIN_STRUCTURES
    if config.calibration != "none" and config.has_std and n_validation < n_needed:
        listener.warn(
            f"data.split.n_validation is {n_validation}: σ will not be calibrated, which takes {n_needed} structures"
        )


def _finished(config: RunConfig, model_path: Path) -> RunResult:
    """The result of a finished run; raise an error if it is another run."""
    record, metrics_path = check_unchanged(config, model_path), config.output / "metrics.json"
    if (tested := _tested(record)) is not None and not metrics_path.exists():  # killed just before its last file
        write_json(metrics_path, tested)
    return RunResult(model_path=model_path, metrics=record.metrics, record=record, already_done=True)


def _tested(record: RunRecord) -> dict[str, object] | None:
    """The content of ``metrics.json``: of the test structures, and by name of other sets and of groups."""
    if record.metrics is None:
        return None
    own = {key: value for key, value in record.metrics.items() if not key.startswith(OOD_MEASURES)}
    others = {"ood": record.ood, "groups": record.groups}
    return own | {name: figures for name, figures in others.items() if figures}


def _metrics(config: RunConfig, model: Model, test: Evaluation, listener: Listener) -> dict[str, object]:
    """``metrics``, ``ood`` and ``groups`` of the record."""
    ood = {name: _compared(config, model, test, name, other, listener) for name, other in config.ood.items()}
    groups = group_summaries(test)
    return {"metrics": summarize(test), "ood": ood, **({"groups": groups} if groups else {})}


def _beside(
    host: Potential, model: Model, data: RunData, known: Evaluation | None, listener: Listener
) -> AdoptedRecord:
    """Errors of the network alone and of the model, on test structures, else on those that the head was chosen by.

    known: of the model on these structures, if they were predicted already: force σ of a large network takes minutes.
    """
    listener.stage("testing beside the adopted network")
    name, dataset = ("test", data.test) if data.test is not None else ("held-out", data.validation)
    alone = evaluate(host, dataset, name=name, listener=listener)
    adopted = known or evaluate(model, dataset, name=name, listener=listener)
    return AdoptedRecord(structures=name, host=summarize(alone), adopted=summarize(adopted))


def _compared(
    config: RunConfig, model: Model, evaluation: Evaluation, name: str, other: OtherStructures, listener: Listener
) -> Summary:
    """Metrics of σ on structures of another kind beside the test structures; empty if they cannot be predicted."""
    foreign = evaluate_other(model, name, other, listener, forces_std=config.forces_std)
    together = {} if foreign is None else summarize(evaluation, foreign)
    return {key: value for key, value in together.items() if key.startswith(OOD_MEASURES)}


def evaluate_other(
    model: Model, name: str, other: OtherStructures, listener: Listener, *, forces_std: ForceStdMethod = "auto"
) -> Evaluation | None:
    """Predict structures of another kind; ``None`` with a warning if they cannot be predicted."""
    structures = read_structures(other.source.model_copy(update={"labels": ()}))
    n_wanted = other.n_structures or len(structures)
    if n_wanted < len(structures):
        drawn = np.random.default_rng(other.seed).choice(len(structures), n_wanted, replace=False)
        structures = structures.subset(np.sort(drawn))
    listener.stage(f"testing on {name}")
    try:
        dataset = foreign_dataset(model, structures)
        return evaluate(model, dataset, name=name, forces_std=forces_std, listener=listener)
    except DataError as error:
        listener.warn(f"{name} cannot be predicted: {error}")
        return None
