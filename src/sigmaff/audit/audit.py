"""The audit: six desiderata, measured on one subject."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

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
from sigmaff.models.adopt import network_alone
from sigmaff.progress import Listener

Evaluated = Callable[[], Evaluation | None]
DESIDERATA = (symmetry.NAME, conservation.NAME, locality.NAME, accuracy.NAME, confidence.NAME, speed.NAME)


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
        backbone: reference model without σ, for the accuracy and speed ratios; ``None``: an adopted network alone, if
            the model has one.
    """
    if not structures:
        raise DataError("an audit needs at least one structure of a kind that the model knows")
    listener = listener or Listener()
    few = list(structures)[: options.n_structures]
    if backbone is None and subject.model is not None:
        backbone = network_alone(subject.model)
    measurements = _measurements(subject, few, data, ood, backbone, options, listener)

    def measured(name: str) -> Finding:
        listener.stage(f"{subject.name}: {name.lower()}")
        try:
            return measurements[name]()
        except SigmaffError as error:
            return not_applicable(name, f"It cannot be measured: {error}")

    return Audit(name=subject.name, findings=tuple(map(measured, DESIDERATA)))


def _measurements(
    subject: Subject,
    few: list[Atoms],
    data: LabelledStructures | None,
    ood: LabelledStructures | None,
    backbone: Model | None,
    options: AuditConfig,
    listener: Listener,
) -> dict[str, Callable[[], Finding]]:
    """How each desideratum is measured."""

    def random() -> np.random.Generator:
        return np.random.default_rng(options.seed)

    def reference() -> Evaluation | None:
        if data is None or backbone is None or subject.model is None:
            return None
        return evaluate_in_batches(backbone, data, batch_size=options.batch_size, listener=listener)

    evaluated = partial(evaluate_subject, subject, batch_size=options.batch_size, listener=listener)
    own, other = cache(partial(evaluated, data)), partial(evaluated, ood)
    return {
        symmetry.NAME: lambda: symmetry.measure(subject, few, random(), n_repeats=options.n_operations),
        conservation.NAME: lambda: conservation.measure(
            subject, few, random(), options.n_components, options.n_loops, options.nve_ps, listener
        ),
        locality.NAME: lambda: locality.measure(subject, few, n_copies=options.n_copies),
        accuracy.NAME: lambda: accuracy.measure(own(), reference()),
        confidence.NAME: lambda: _confidence(subject, few[0], own, other),
        speed.NAME: lambda: speed.measure(subject, few, backbone, n_rounds=options.n_rounds),
    }


def _confidence(subject: Subject, atoms: Atoms, own: Evaluated, other: Evaluated) -> Finding:
    answer = ask(subject, atoms, with_forces_std=True)
    if answer.energy_std is None and answer.forces_std is None:
        return confidence.NO_STD
    try:
        ood = other()
    except SigmaffError as error:
        finding = confidence.measure(own(), None)
        return replace(finding, sentence=f"{finding.sentence} The set of another kind cannot be predicted: {error}")
    return confidence.measure(own(), ood)


# --- audits side by side


def audit_table(audits: Sequence[Audit]) -> list[list[str]]:
    """A header, then one row for each desideratum: marks, each with the number behind it."""
    rows = {name: [audit[name] for audit in audits] for name in DESIDERATA}
    cells = ([name, *(f"{item.mark} {item.figure}".strip() for item in found)] for name, found in rows.items())
    return [["desideratum", *(audit.name for audit in audits)], *cells]


def audit_markdown(audits: Sequence[Audit]) -> str:
    """The table, and below it a sentence on each of its cells."""
    header, *body = audit_table(audits)
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
    for audit in audits:
        lines += ["", f"**{audit.name}**", ""]
        lines += [f"- {item.mark} {item.desideratum}: {item.sentence}" for item in audit.findings]
    return "\n".join(lines) + "\n"


def audit_content(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Everything, for a JSON file."""
    return [asdict(audit) for audit in audits]
