"""sigmaff in Python: what the commands do, as functions. ``import sigmaff as sf`` gives all of them.

Units are eV and Å. ``config`` is settings as an object, as a mapping with the keys of the YAML file, or as the path of
such a file. ``structures`` are a file that ``sigmaff check`` reads, ASE structures, or ``LabelledStructures``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ase.calculators.calculator import BaseCalculator

from sigmaff import evaluation
from sigmaff.backbones import AdoptConfig
from sigmaff.data import GraphDataset
from sigmaff.errors import ConfigError, DataError
from sigmaff.evaluation import CalibrationMethod, Evaluation, datasets, full_summary
from sigmaff.inputs import (
    Structures,
    audited_structures,
    dataset_of,
    settings_of,
    source_of,
    spaced,
    structures_of,
    warn_of_leakage,
)
from sigmaff.models import Model
from sigmaff.models import Potential as Potential
from sigmaff.models.export import compiled as compiled
from sigmaff.models.export import export as export
from sigmaff.models.file import load as load
from sigmaff.models.file import save as save
from sigmaff.models.prediction import NO_CALIBRATIONS, Calibrations, ForceStdMethod
from sigmaff.progress import Listener
from sigmaff.runs.config import RunConfig
from sigmaff.runs.run import RunResult, run
from sigmaff.simulation import Calculator, md
from sigmaff.simulation.guarded import guarded  # noqa: F401
from sigmaff.simulation.md import GuardConfig, GuardResult, MDConfig, MDResult, Scores
from sigmaff.simulation.md.stability import stability  # noqa: F401
from sigmaff.simulation.relaxation import relax  # noqa: F401

if TYPE_CHECKING:  # these import matplotlib
    from sigmaff.audit import Audit
    from sigmaff.learning import CampaignConfig, CampaignResult
    from sigmaff.runs.compare import MethodResult


def train(
    config: RunConfig | Mapping[str, Any] | Path | str,
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
    skip_checks: bool = False,
    trust: bool = False,
) -> RunResult:
    """Train, calibrate and test a model. Call it again with the same settings to resume.

    Arguments:
        config: a run, as in ``sigmaff train --print-defaults``.
        overrides: texts "section.key=value", as of ``sigmaff train --set``.
        listener: callbacks for progress; the default is silent.
        force: replace the model in the output directory.
        skip_checks: do not run the checks of ``sigmaff check`` first.
        trust: read the network of another program that a file names, and remember the file by its content.

    Returns the path of the model file and the metrics of the test structures.

    Example:
        >>> result = sf.train("run.yaml", overrides=["training.max_epochs=2"])
        >>> print(result.model_path, result.metrics["forces_mae"])  # eV/Å
    """
    settings = settings_of(RunConfig, config, overrides, trust=trust)
    result = run(settings, listener, force=force, skip_checks=skip_checks)
    if result is None:
        raise ConfigError("training.devices: use 'sigmaff train' to train on several devices")
    return result


def adopt(
    source: str | Potential | BaseCalculator,
    structures: Structures,
    *,
    trust: bool = False,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
) -> Model:
    """Give a potential of another program a σ, and lower its errors, with a few labelled structures.

    Arguments:
        source: adapter:source, as in mace:my.model; or the ASE calculator of MACE, SevenNet or CHGNet that you have.
        structures: at least 6, with energies and forces.
        trust: whether a file that can run programs (a pickle, TorchScript) may be read.
        overrides: texts "section.key=value"; "model.head.mean=backbone" keeps the energies of the network.
        listener: callbacks for progress; the default is silent.

    Returns the model; ``model.record.adopted`` has the errors of the network alone beside its own.

    Example:
        >>> model = sf.adopt("sevennet:7net-0", "mine.extxyz")
        >>> sf.save(model, "mine.sigmaff")
    """
    from sigmaff.runs.adopt import adopt

    host = AdoptConfig(adopt=source, trust=trust) if isinstance(source, str) else source
    return adopt(host, source_of(structures), overrides=overrides, listener=listener)


def evaluate(
    model: Model,
    structures: Structures,
    *,
    ood: Structures | None = None,
    forces_std: ForceStdMethod = "auto",
    batch_size: int = 32,
    listener: Listener | None = None,
    skip_checks: bool = False,
) -> dict[str, Any]:
    """Measure errors and σ of a model on labelled structures.

    Arguments:
        model: a loaded model.
        structures: with energies and forces, unseen by the model.
        ood: structures unlike the training data; labels are optional. σ should tell them from ``structures``.
        forces_std: how to compute force σ.
        batch_size: largest number of structures in one prediction.
        listener: callbacks for progress; the default is silent.
        skip_checks: do not run the checks of ``sigmaff check`` first.

    Returns every metric by name: ``energy_mae`` (eV), ``forces_mae`` (eV/Å), ...; ``groups`` has those of each group.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> metrics = sf.evaluate(model, "test.extxyz", ood="other.extxyz")
        >>> print(metrics["forces_mae"], metrics["forces_coverage_68"], metrics["forces_auroc"])
    """
    return full_summary(*evaluations(model, structures, ood, forces_std, batch_size, listener, skip_checks))


def evaluations(
    model: Model,
    structures: Structures,
    ood: Structures | None,
    forces_std: ForceStdMethod,
    batch_size: int,
    listener: Listener | None,
    skip_checks: bool = False,
) -> tuple[Evaluation, Evaluation | None]:
    """As ``evaluate``, with all errors and σ: of ``structures`` and of ``ood``."""
    listener = listener or Listener()
    dataset = dataset_of(model, structures, listener, skip_checks=skip_checks)
    other = None if ood is None else datasets.foreign_dataset(model, structures_of(ood, labels=()))

    def evaluated(dataset: GraphDataset) -> Evaluation:
        path = Path(dataset.structures.source)
        listener.stage(f"evaluating {path.name}")
        return evaluation.evaluate(
            model, dataset, name=path.stem, batch_size=batch_size, forces_std=forces_std, listener=listener
        )

    return evaluated(dataset), None if other is None else evaluated(other)


def calibrate(
    model: Model,
    structures: Structures,
    *,
    method: CalibrationMethod = "auto",
    force_growth: bool = True,
    listener: Listener | None = None,
    skip_checks: bool = False,
) -> Calibrations:
    """Fit the calibration of σ on held-out structures, and keep it in the model. ``sf.save`` writes it to a file.

    Arguments:
        model: a loaded model; its calibrations are replaced.
        structures: with energies and forces, and stress if there is any, unseen by the model, 20 or more.
        method: auto, scalar, quantile, isotonic or conformal.
        force_growth: let force σ grow with energy σ, as fitted; not with conformal.
        listener: callbacks for progress; the default is silent.
        skip_checks: do not run the checks of ``sigmaff check`` first.

    Returns the calibrations of energy, forces and stress; None for a quantity whose σ stays raw, as a warning says.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> energy, forces, stress = sf.calibrate(model, "held_out.extxyz", method="scalar")
        >>> print(forces.scale, forces.scale_error)  # factor on σ, and its standard error
    """
    listener = listener or Listener()
    dataset = dataset_of(model, structures, listener, skip_checks=skip_checks)
    before = (model.calibrations, model.energy_force_std, model.std_range)
    _, reasons = datasets.calibrate(model, dataset, method, listener, force_growth=force_growth)
    if model.calibrations == NO_CALIBRATIONS:
        model.calibrations, model.energy_force_std, model.std_range = before
        raise DataError(f"{dataset.structures.source}: {next(iter(reasons.values()))}")
    return model.calibrations


def run_md(
    model: Model,
    structures: Structures,
    config: MDConfig | Mapping[str, Any] | Path | str,
    directory: Path | str,
    *,
    calibration: Structures | None = None,
    listener: Listener | None = None,
) -> MDResult:
    """Run molecular dynamics, and stop a replica when a σ of it exceeds its limit. Call it again to resume.

    Arguments:
        model: a loaded model.
        structures: one start each.
        config: temperatures (K), steps, timestep (fs), ``stop_above`` (eV/Å, or a guard), ..., as of ``sigmaff md``.
        directory: of trajectories, checkpoint and summary.
        calibration: labelled structures unseen by the model, for ``stop_above: auto`` and the drift monitor; the
            default is, for ``auto``, the validation structures of the model.
        listener: callbacks for progress; the default is silent.

    Returns the limits on σ, and how each replica ended.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> settings = {"temperature": 300, "steps": 20, "stop_above": 0.5}
        >>> result = sf.run_md(model, "start.extxyz", settings, "md")
        >>> print([record.ending for record in result.records])
    """
    settings, listener = settings_of(MDConfig, config), listener or Listener()
    starts = structures_of(structures, labels=()).structures
    scores = _scores(model, calibration, settings, listener)
    listener.stage("molecular dynamics")
    return md.run_md(model, starts, settings, Path(directory), listener, calibration=scores)


def _scores(model: Model, calibration: Structures | None, config: MDConfig, listener: Listener) -> Scores | None:
    """Errors and σ on the calibration structures: those given, or the validation structures of the model."""
    if calibration is not None:
        dataset = dataset_of(model, calibration, listener, skip_checks=True)
    elif config.stop_above == "auto":
        try:
            dataset = datasets.dataset_for(model, datasets.recorded_structures(model, "validation"))
        except DataError as error:
            remedy = "give labelled structures unseen by the model with --calibration (calibration=...)"
            raise DataError(f"{error}; {remedy}") from None
    else:
        return None
    listener.stage("σ of calibration structures")
    name = dataset.structures.source
    found = evaluation.evaluate(model, dataset, name=name, forces_std=config.forces_std, listener=listener)
    return md.structure_scores(found, chose_model=calibration is None)


def guard(
    model: Model,
    structures: Structures,
    config: GuardConfig | Mapping[str, Any] | Path | str,
    directory: Path | str,
    *,
    listener: Listener | None = None,
    trust: bool = False,
) -> GuardResult:
    """Find a limit on σ that bounds the share of MD runs with a large error, by labelled pilots. Call again to resume.

    Arguments:
        model: a loaded model.
        structures: from which the start of each run is drawn.
        config: of runs (temperature in K, steps, ...) and promise (``error_above`` in eV/Å, ``risk``, ``engine``, ...).
        directory: of pilot runs, labels and ``guard.json``.
        listener: callbacks for progress; the default is silent.
        trust: run the program that a file of settings names as engine.

    Returns the limit, its promise, and the path of ``guard.json``, which ``stop_above`` of ``sf.run_md`` takes.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> engine = {"calculator": "ase.calculators.morse:MorsePotential", "arguments": {"rho0": 3.0, "r0": 1.5}}
        >>> runs, promise = {"temperature": 300, "steps": 2, "check_every": 1}, {"error_above": 20.0, "risk": 0.25}
        >>> found = sf.guard(model, "start.extxyz", runs | promise | {"pilots": 3, "engine": engine}, "guard")
        >>> result = sf.run_md(model, "start.extxyz", runs | {"stop_above": found.path}, "guarded")
    """
    starts = structures_of(structures, labels=()).structures
    return md.guard(model, starts, settings_of(GuardConfig, config, trust=trust), Path(directory), listener)


def learn(
    config: "CampaignConfig | Mapping[str, Any] | Path | str",
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
    skip_checks: bool = False,
    trust: bool = False,
) -> "CampaignResult":
    """Run an active-learning campaign against a quantum-chemistry engine. Call it again to resume.

    Arguments:
        config: a campaign, as in ``sigmaff learn --print-defaults``.
        overrides: texts "section.key=value".
        listener: callbacks for progress; the default is silent.
        force: remove the campaign in the output directory, with its labels, and begin anew.
        skip_checks: do not run the checks of ``sigmaff check`` first.
        trust: run the program that a file names as engine (``module:factory``), and remember the file by its content.

    Returns the rounds of the campaign, and why it ended.

    Example:
        >>> result = sf.learn("campaign.yaml")
        >>> print(result.reason)
    """
    from sigmaff import learning

    settings = settings_of(learning.CampaignConfig, config, overrides, trust=trust)
    return learning.learn(settings, listener, force=force, skip_checks=skip_checks)


def audit(
    model: Model | BaseCalculator,
    structures: Structures | None = None,
    *,
    name: str | None = None,
    ood: Structures | None = None,
    backbone: Model | None = None,
    quick: bool = False,
    picoseconds: float | None = None,
    max_data: int | None = None,
    seed: int = 0,
    listener: Listener | None = None,
) -> "Audit":
    """Measure the six desiderata: symmetry, conservation, locality, accuracy, confidence, speed.

    Arguments:
        model: a loaded model, or any ASE calculator.
        structures: with energies and forces, unseen by the model; the default is the test set of the model.
        name: of the model in the findings.
        ood: structures unlike the training data; labels are optional.
        backbone: reference model without σ, for the accuracy and speed ratios; by default the network of an adopted
            model.
        quick: fewer and shorter measurements.
        picoseconds: length of the NVE run; the default depends on ``quick``.
        max_data: largest number of structures, evenly spaced, of ``structures`` and of ``ood``; None: all.
        seed: of random structures, directions and velocities.
        listener: callbacks for progress; the default is silent.

    Returns a finding for each desideratum: values, tolerances and a verdict.

    Example:
        >>> model = sf.load("model.sigmaff")
        >>> for finding in sf.audit(model, "test.extxyz", quick=True).findings:
        ...     print(finding.desideratum, finding.verdict)
    """
    from sigmaff.audit import FULL, QUICK, Subject
    from sigmaff.audit import audit as measure

    listener, name = listener or Listener(), name or type(model).__name__
    own = model if isinstance(model, Model) else None
    calculator = model if own is None else Calculator(own, forces_uncertainty="none", warn_above=None)
    known, data = audited_structures(own, structures, name, max_data)
    if own is not None and structures is not None:
        warn_of_leakage(own, known, listener, name)
    other = None if ood is None else spaced(structures_of(ood, labels=()), max_data)
    options = (QUICK if quick else FULL).model_copy(update={"seed": seed})
    if picoseconds is not None:
        options = options.model_copy(update={"nve_ps": picoseconds})
    subject = Subject(name=name, calculator=calculator, model=own)
    return measure(
        subject, known.structures, data=data, ood=other, backbone=backbone, options=options, listener=listener
    )


def compare(
    config: RunConfig | Mapping[str, Any] | Path | str,
    methods: Sequence[str] = ("all",),
    *,
    overrides: Sequence[str] = (),
    listener: Listener | None = None,
    force: bool = False,
    skip_checks: bool = False,
    trust: bool = False,
) -> "list[MethodResult]":
    """Train or fit several uncertainty methods on the same structures and backbone, and measure them alike.

    Arguments:
        config: a run; each method has its own folder in the output directory.
        methods: names, as of ``sigmaff methods``, or "all".
        overrides: texts "section.key=value".
        listener: callbacks for progress; the default is silent.
        force: train the named methods again.
        skip_checks: do not run the checks of ``sigmaff check`` first.
        trust: read the network of another program that a file names, and remember the file by its content.

    Returns the metrics, times and sizes of each method with its differences to the first method and their intervals, or
    why it failed.

    Example:
        >>> for result in sf.compare("run.yaml", ["fixed_lnk", "llpr"], overrides=["output=compared"]):
        ...     print(result.method, result.record.metrics["forces_nll"])
    """
    from sigmaff.runs import compare as comparison

    settings, listener = settings_of(RunConfig, config, overrides, trust=trust), listener or Listener()
    return comparison.compare(settings, methods, listener, force=force, skip_checks=skip_checks)
