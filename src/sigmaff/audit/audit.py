"""The audit: six desiderata, measured on one subject."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from ase import Atoms
from pydantic import Field

from sigmaff.audit import accuracy, confidence, conservation, locality, speed, symmetry
from sigmaff.audit.evaluations import evaluate_in_batches, evaluate_subject
from sigmaff.audit.finding import Finding, not_applicable
from sigmaff.audit.subject import Subject, ask
from sigmaff.config import Settings
from sigmaff.data import LabelledStructures
from sigmaff.errors import DataError, SigmaffError
from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.models import Model
from sigmaff.progress import Listener

Measurement = Callable[[], Finding]


class AuditConfig(Settings):
    """How much is measured."""

    n_structures: int = Field(default=3, ge=1, description="structures on which desiderata 1 to 3 are measured")
    n_operations: int = Field(default=3, ge=1, description="random operations of each kind of symmetry and structure")
    n_components: int = Field(
        default=12, ge=1, description="force components of each structure to differentiate numerically"
    )
    n_loops: int = Field(default=2, ge=1, description="closed paths from each structure")
    nve_ps: float = Field(default=1.0, gt=0, description="length of the run at constant energy, ps; steps of 0.5 fs")
    n_copies: int = Field(default=8, ge=3, description="copies of a structure far from each other, at most")
    n_rounds: int = Field(default=31, ge=1, description="timings; the median is reported")
    batch_size: int = Field(default=32, ge=1, description="structures evaluated at once, at most")
    seed: int = Field(default=0, ge=0, description="seed; the same random numbers for every subject")


FULL = AuditConfig()
QUICK = AuditConfig(n_structures=2, n_operations=1, n_components=6, n_loops=1, nve_ps=0.1, n_copies=5, n_rounds=15)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The findings about a subject, one for each desideratum, in the order of the paper."""

    name: str
    findings: tuple[Finding, ...]

    def __getitem__(self, desideratum: str) -> Finding:
        return next(finding for finding in self.findings if finding.desideratum == desideratum)


def audit(
    subject: Subject,
    structures: Sequence[Atoms],
    *,
    data: LabelledStructures | None = None,
    ood: LabelledStructures | None = None,
    backbone: Model | None = None,
    options: AuditConfig = FULL,
    listener: Listener | None = None,
) -> Audit:
    """Measure every desideratum. One that cannot be measured is a finding that says why.

    Arguments:
        structures: of a kind that the subject was trained on; the first ``options.n_structures`` are used.
        data: labelled structures that it was not trained on.
        ood: structures unlike those, labelled or not.
        backbone: reference model without σ, for the accuracy and speed ratios.
    """
    if not structures:
        raise DataError("an audit needs at least one structure of a kind that the model knows")
    listener = listener or Listener()
    measurements = _measurements(subject, list(structures)[: options.n_structures], options, backbone, listener)
    measurements |= _measurements_on_data(subject, structures[0], options, data, ood, backbone, listener)
    findings = []
    for name in DESIDERATA:
        listener.stage(f"{subject.name}: {name.lower()}")
        findings.append(_measured(name, measurements[name]))
    return Audit(name=subject.name, findings=tuple(findings))


DESIDERATA = (symmetry.NAME, conservation.NAME, locality.NAME, accuracy.NAME, confidence.NAME, speed.NAME)


def _measurements(
    subject: Subject, structures: Sequence[Atoms], options: AuditConfig, backbone: Model | None, listener: Listener
) -> dict[str, Measurement]:
    def random() -> np.random.Generator:
        return np.random.default_rng(options.seed)

    return {
        symmetry.NAME: lambda: symmetry.measure(subject, structures, random(), n_repeats=options.n_operations),
        conservation.NAME: lambda: conservation.measure(
            subject,
            structures,
            random(),
            n_components=options.n_components,
            n_loops=options.n_loops,
            nve_ps=options.nve_ps,
            listener=listener,
        ),
        locality.NAME: lambda: locality.measure(subject, structures, n_copies=options.n_copies),
        speed.NAME: lambda: speed.measure(subject, structures, backbone, n_rounds=options.n_rounds),
    }


def _measurements_on_data(
    subject: Subject,
    atoms: Atoms,
    options: AuditConfig,
    data: LabelledStructures | None,
    ood: LabelledStructures | None,
    backbone: Model | None,
    listener: Listener,
) -> Mapping[str, Measurement]:
    size = options.batch_size

    @cache
    def own() -> Evaluation | None:
        return None if data is None else evaluate_subject(subject, data, batch_size=size, listener=listener)

    def accurate() -> Finding:
        reference = None
        if data is not None and backbone is not None and subject.model is not None:
            reference = evaluate_in_batches(backbone, data, batch_size=size, listener=listener)
        return accuracy.measure(own(), reference)

    def confident() -> Finding:
        answer = ask(subject, atoms, with_forces_std=True)
        if answer.energy_std is None and answer.forces_std is None:
            return confidence.NO_STD
        if ood is None:
            return confidence.measure(own(), None)
        try:
            other = evaluate_subject(subject, ood, batch_size=size, listener=listener)
        except SigmaffError as error:
            finding = confidence.measure(own(), None)
            return replace(finding, sentence=f"{finding.sentence} The set of another kind cannot be predicted: {error}")
        return confidence.measure(own(), other)

    return {accuracy.NAME: accurate, confidence.NAME: confident}


def _measured(name: str, measure: Measurement) -> Finding:
    try:
        return measure()
    except SigmaffError as error:
        return not_applicable(name, f"It cannot be measured: {error}")
