"""sigmaff in Python: what the commands do, as functions. ``import sigmaff as sf`` gives all of them.

Units are eV and Å. ``config`` is settings as an object, as a mapping with the keys of the YAML file, or as the path of
such a file. ``structures`` are a file that ``sigmaff check`` reads, ASE structures, or ``LabelledStructures``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ase import Atoms
from ase.calculators.calculator import BaseCalculator
from pydantic import BaseModel

from sigmaff.config import read_config
from sigmaff.data import DataSource, GraphDataset, LabelledStructures, label_structures, read_structures
from sigmaff.models import Model
from sigmaff.models.file import load, save
from sigmaff.models.prediction import Calibration, ForceStdMethod
from sigmaff.progress import Listener

if TYPE_CHECKING:
    from sigmaff.audit import Audit
    from sigmaff.evaluation import CalibrationMethod, Evaluation, Summary
    from sigmaff.learning import CampaignConfig, CampaignResult
    from sigmaff.runs.compare import MethodResult
    from sigmaff.runs.config import RunConfig
    from sigmaff.runs.run import RunResult
    from sigmaff.simulation.md import MDConfig, MDResult

Config = TypeVar("Config", bound=BaseModel)
Structures: TypeAlias = Path | str | DataSource | Atoms | Sequence[Atoms] | LabelledStructures

__all__ = ["audit", "calibrate", "compare", "evaluate", "learn", "load", "run_md", "save", "train"]


def train(
    config: "RunConfig | Mapping[str, Any] | Path | str",
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
) -> "RunResult":
    """Train, calibrate and test a model. Call it again with the same settings to resume.

    Arguments:
        config: a run, as in ``sigmaff train --print-defaults``.
        overrides: texts "section.key=value", as of ``sigmaff train --set``.
        listener: callbacks for progress; the default is silent.
        force: replace the model in the output directory.

    Returns the path of the model file and the metrics of the test structures.

    Example:
        >>> result = sf.train("run.yaml", overrides=["training.max_epochs=2"])
        >>> print(result.model_path, result.metrics["forces_mae"])  # eV/Å
    """
    from sigmaff.errors import ConfigError
    from sigmaff.runs.config import RunConfig
    from sigmaff.runs.run import run

    result = run(_settings(RunConfig, config, overrides), listener, force=force)
    if result is None:
        raise ConfigError("training.devices: use 'sigmaff train' to train on several devices")
    return result


def evaluate(
    model: Model,
    structures: Structures,
    *,
    ood: Structures | None = None,
    forces_std: ForceStdMethod = "auto",
    batch_size: int = 32,
    listener: Listener | None = None,
) -> "Summary":
    """Measure errors and σ of a model on labelled structures.

    Arguments:
        model: a loaded model.
        structures: with energies and forces, unseen by the model.
        ood: structures unlike the training data; labels are optional. σ should tell them from ``structures``.
        forces_std: how to compute force σ.
        batch_size: largest number of structures in one prediction.
        listener: callbacks for progress; the default is silent.

    Returns every metric by name: ``energy_mae`` (eV), ``forces_mae`` (eV/Å), ``forces_calibration``, ...

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> metrics = sf.evaluate(model, "test.extxyz", ood="other.extxyz")
        >>> print(metrics["forces_mae"], metrics["forces_coverage_68"], metrics["forces_auroc"])
    """
    from sigmaff.evaluation import evaluate as evaluate_model
    from sigmaff.evaluation import summarize
    from sigmaff.evaluation.datasets import dataset_for, foreign_dataset

    listener = listener or Listener()
    listener.stage("evaluating")

    def evaluated(dataset: GraphDataset) -> "Evaluation":
        name = dataset.structures.source
        return evaluate_model(
            model, dataset, name=name, batch_size=batch_size, forces_std=forces_std, listener=listener
        )

    evaluation = evaluated(dataset_for(model, _structures(structures)))
    others = None if ood is None else foreign_dataset(model, _structures(ood, labels=()))
    return summarize(evaluation, None if others is None else evaluated(others))


def calibrate(
    model: Model, structures: Structures, *, method: "CalibrationMethod" = "auto", listener: Listener | None = None
) -> tuple[Calibration | None, Calibration | None]:
    """Fit the calibration of σ on held-out structures, and keep it in the model. ``sf.save`` writes it to a file.

    Arguments:
        model: a loaded model; its calibrations are replaced.
        structures: with energies and forces, unseen by the model, 10 or more.
        method: auto, scalar, quantile, isotonic or conformal.
        listener: callbacks for progress; the default is silent.

    Returns the calibrations of energies and of forces; None for a quantity without labels or σ.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> energy, forces = sf.calibrate(model, "held_out.extxyz", method="scalar")
        >>> print(forces.scale)  # factor on σ
        >>> sf.save(model, "calibrated.sigmaff")
    """
    from sigmaff.evaluation.datasets import calibrate as calibrate_model
    from sigmaff.evaluation.datasets import dataset_for

    calibrate_model(model, dataset_for(model, _structures(structures)), method, listener or Listener())
    return model.energy_calibration, model.forces_calibration


def run_md(
    model: Model,
    structures: Structures,
    config: "MDConfig | Mapping[str, Any] | Path | str",
    directory: Path | str,
    *,
    calibration: Structures | None = None,
    listener: Listener | None = None,
) -> "MDResult":
    """Run molecular dynamics, and stop a replica when its force σ exceeds a limit. Call it again to resume.

    Arguments:
        model: a loaded model.
        structures: one start each.
        config: temperatures (K), steps, timestep (fs), ``stop_above`` (eV/Å), ..., as of ``sigmaff md``.
        directory: of trajectories, checkpoint and summary.
        calibration: labelled structures unseen by the model, for ``stop_above: auto`` and the drift monitor.
        listener: callbacks for progress; the default is silent.

    Returns the limit on σ, and how each replica ended.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> settings = {"temperature": 300, "steps": 20, "stop_above": 0.5}
        >>> result = sf.run_md(model, "start.extxyz", settings, "md")
        >>> print([record.ending for record in result.records])
    """
    from sigmaff.evaluation import evaluate as evaluate_model
    from sigmaff.evaluation.datasets import dataset_for
    from sigmaff.simulation.md import MDConfig, structure_scores
    from sigmaff.simulation.md import run_md as run

    settings, scores = _settings(MDConfig, config), None
    if calibration is not None:
        known = _structures(calibration)
        evaluation = evaluate_model(model, dataset_for(model, known), name=known.source, forces_std=settings.forces_std)
        scores = structure_scores(evaluation)
    starts = _structures(structures, labels=()).structures
    return run(model, starts, settings, Path(directory), listener, calibration=scores)


def learn(
    config: "CampaignConfig | Mapping[str, Any] | Path | str",
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
) -> "CampaignResult":
    """Run an active-learning campaign against a quantum-chemistry engine. Call it again to resume.

    Arguments:
        config: a campaign, as in ``sigmaff learn --print-defaults``.
        overrides: texts "section.key=value".
        listener: callbacks for progress; the default is silent.
        force: remove the campaign in the output directory, with its labels, and begin anew.

    Returns the rounds of the campaign, and why it ended.

    Example:
        >>> result = sf.learn("campaign.yaml")
        >>> print(result.reason)
    """
    from sigmaff.learning import CampaignConfig
    from sigmaff.learning import learn as run

    return run(_settings(CampaignConfig, config, overrides), listener, force=force)


def audit(
    model: Model | BaseCalculator,
    structures: Structures,
    *,
    ood: Structures | None = None,
    backbone: Model | None = None,
    quick: bool = False,
    listener: Listener | None = None,
) -> "Audit":
    """Measure the six desiderata: symmetry, conservation, locality, accuracy, confidence, speed.

    Arguments:
        model: a loaded model, or any ASE calculator.
        structures: with energies and forces, unseen by the model.
        ood: structures unlike the training data; labels are optional.
        backbone: reference model without σ, for the accuracy and speed ratios.
        quick: fewer and shorter measurements.
        listener: callbacks for progress; the default is silent.

    Returns a finding for each desideratum: values, tolerances and a verdict.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> for finding in sf.audit(model, "test.extxyz", quick=True).findings:
        ...     print(finding.desideratum, finding.verdict)
    """
    from sigmaff.audit import FULL, QUICK, Subject
    from sigmaff.audit import audit as measure
    from sigmaff.simulation import Calculator

    own = model if isinstance(model, Model) else None
    calculator = Calculator(own) if own is not None else model
    labelled = _structures(structures)
    return measure(
        Subject(name=type(model).__name__, calculator=calculator, model=own),
        labelled.structures,
        data=labelled,
        ood=None if ood is None else _structures(ood, labels=()),
        backbone=backbone,
        options=QUICK if quick else FULL,
        listener=listener or Listener(),
    )


def compare(
    config: "RunConfig | Mapping[str, Any] | Path | str",
    methods: Sequence[str] = ("all",),
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
) -> "list[MethodResult]":
    """Train or fit several uncertainty methods on the same structures and backbone, and measure them alike.

    Arguments:
        config: a run; each method has its own folder in the output directory.
        methods: names, as of ``sigmaff methods``, or "all".
        overrides: texts "section.key=value".
        listener: callbacks for progress; the default is silent.
        force: train the named methods again.

    Returns the metrics, times and sizes of each method, or why it failed.

    Example:
        >>> for result in sf.compare("run.yaml", ["fixed_lnk", "llpr"], overrides=["output=compared"]):
        ...     print(result.method, result.record.metrics["forces_nll"])
    """
    from sigmaff.runs.compare import compare as run
    from sigmaff.runs.config import RunConfig

    return run(_settings(RunConfig, config, overrides), methods, listener or Listener(), force=force)


def _settings(
    kind: type[Config], config: Config | Mapping[str, Any] | Path | str, overrides: Sequence[str] = ()
) -> Config:
    if isinstance(config, BaseModel):
        if not overrides:
            return config
        config = config.model_dump(mode="json")
    return read_config(kind, config if isinstance(config, Mapping) else Path(config), overrides)


def _structures(structures: Structures, labels: tuple[str, ...] = ("energy", "forces")) -> LabelledStructures:
    if isinstance(structures, LabelledStructures):
        return structures
    if isinstance(structures, Path | str):
        return read_structures(DataSource(path=Path(structures), labels=labels))
    if isinstance(structures, DataSource):
        return read_structures(structures)
    return label_structures([structures] if isinstance(structures, Atoms) else structures, labels)
