"""The figures of a report in their order, each section with words around it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.evaluation.samples import Quantity
from sigmaff.report import figures
from sigmaff.report.figures import Panel

PLURALS: dict[Quantity, str] = {"energy": "energies", "forces": "forces"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A figure and the words below it."""

    svg: Markup
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and its figures, or the remarks that say why some are missing."""

    heading: str
    lead: str
    cards: tuple[Card, ...]
    remarks: tuple[str, ...]


def _card(name: str, panel: Panel, caption: str) -> Card:
    return Card(svg=Markup(figures.to_svg(figures.new_figure(panel), name)), caption=caption)


def all_sections(evaluation: Evaluation, ood: Evaluation | None) -> list[Section]:
    return [
        _accuracy(evaluation),
        _calibration(evaluation),
        _ranking(evaluation, ood),
        _detection(evaluation, ood),
    ]


def _accuracy(evaluation: Evaluation) -> Section:
    cards = []
    if evaluation.energy is not None:
        panel = partial(figures.draw_energy_parity, evaluation=evaluation)
        cards.append(_card("energy-parity", panel, f"Energies of {_count(evaluation.n_structures, 'structures')}."))
    if evaluation.forces is not None:
        panel = partial(figures.draw_force_parity, evaluation=evaluation)
        cards.append(_card("force-parity", panel, f"{_count(3 * evaluation.n_atoms, 'force components')}."))
    return Section(
        heading="How large are the errors?",
        lead="Predicted against true values; on the line they agree.",
        cards=tuple(cards),
        remarks=tuple(_missing_labels(evaluation)),
    )


def _count(n: int, what: str) -> str:
    drawn = f", {figures.MAX_POINTS:,} of them drawn" if n > figures.MAX_POINTS else ""
    return f"{n:,} {what}{drawn}"


def _missing_labels(evaluation: Evaluation) -> Iterable[str]:
    if evaluation.energy is None:
        yield "There are no energy labels: energy errors cannot be shown."
    if evaluation.forces is None:
        yield "There are no force labels: force errors cannot be shown."


def _without_sample(evaluation: Evaluation) -> tuple[str, ...]:
    """A remark on the quantities without labels or σ."""
    missing = " and ".join(plural for name, plural in PLURALS.items() if name not in evaluation.samples)
    return (f"Not shown for {missing}: there is no σ, or no label to compare with.",) if missing else ()


def _calibration(evaluation: Evaluation) -> Section:
    caption = "How many {} errors lie within the interval that should hold the share on the horizontal axis."
    return Section(
        heading="Do the error bars hold?",
        lead="Below the dashed line error bars are too narrow, above it too wide. A score of 0 is perfect.",
        cards=tuple(
            _card(f"{s.name}-calibration", partial(figures.draw_calibration, sample=s), caption.format(s.name))
            for s in evaluation.samples.values()
        ),
        remarks=_without_sample(evaluation),
    )


def _ranking(evaluation: Evaluation, ood: Evaluation | None) -> Section:
    samples, others = evaluation.samples, {} if ood is None else ood.samples
    caption = "Shade: density of {} errors in distribution. Points: rms error of samples of similar σ."
    cards = [
        _card(
            f"{s.name}-ranking",
            partial(figures.draw_std_versus_error, sample=s, ood=others.get(s.quantity)),
            caption.format(s.name),
        )
        for s in samples.values()
    ]
    rms = evaluation.structure_rms
    by_structure = (
        ("energy", evaluation.energy_error, evaluation.energy_std, "|energy error| (eV)"),
        ("force", rms(evaluation.forces_error), rms(evaluation.forces_std), "rms force error (eV/Å)"),
    )
    for name, error, std, label in by_structure:
        if error is not None and std is not None and any(sample.name == name for sample in samples.values()):
            panel = partial(figures.draw_retention, error=error, std=std, label=label)
            words = f"The {name} error left if the structures of largest σ are computed by the reference method."
            cards.append(_card(f"{name}-retention", panel, words))
    return Section(
        heading="Does σ point at the errors?",
        lead="Where σ is right, the root mean square error of samples with that σ is σ.",
        cards=tuple(cards),
        remarks=_without_sample(evaluation),
    )


def _detection(evaluation: Evaluation, ood: Evaluation | None) -> Section:
    views = (
        ("energy-histogram", figures.energy_std_per_atom, figures.ENERGY_STD_LABEL),
        ("force-histogram", figures.forces_std_rms, figures.FORCE_STD_LABEL),
    )
    cards = []
    for name, score, label in views:
        std, other = score(evaluation), None if ood is None else score(ood)
        if std is not None:
            panel = partial(figures.draw_std_histogram, std=std, ood=other, label=label)
            cards.append(_card(name, panel, f"How {label.split(' σ')[0]} σ is distributed over structures."))
    no_std = () if cards else ("Not shown: the model states no σ.",)
    no_ood = () if ood is not None else ("No out-of-distribution set was given, so detection is not measured.",)
    return Section(
        heading="Does σ see what is new?",
        lead="AUROC is the chance that a new structure has a larger σ than a familiar one: "
        "1 is perfect, 0.5 is guessing.",
        cards=tuple(cards),
        remarks=no_std + no_ood,
    )
