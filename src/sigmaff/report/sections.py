"""The figures of a report in their order, each section with words around it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.report import figures
from sigmaff.report.figures import Panel, Quantity

PLURALS = {"energy": "energies", "force": "forces"}


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


def _rated(evaluation: Evaluation) -> tuple[list[Quantity], tuple[str, ...]]:
    """The quantities with labels and σ, and a remark on those without."""
    found = (figures.energies(evaluation), figures.forces(evaluation))
    rated = [item for item in found if item is not None and item.std_raw is not None]
    names = {item.name for item in rated}
    missing = " and ".join(plural for name, plural in PLURALS.items() if name not in names)
    return rated, (f"Not shown for {missing}: there is no σ, or no label to compare with.",) if missing else ()


def _calibration(evaluation: Evaluation) -> Section:
    rated, remarks = _rated(evaluation)
    caption = "How many {} errors lie within the interval that should hold the share on the horizontal axis."
    return Section(
        heading="Do the error bars hold?",
        lead="Below the dashed line error bars are too narrow, above it too wide. A score of 0 is perfect.",
        cards=tuple(
            _card(f"{q.name}-calibration", partial(figures.draw_calibration, quantity=q), caption.format(q.name))
            for q in rated
        ),
        remarks=remarks,
    )


def _ranking(evaluation: Evaluation, ood: Evaluation | None) -> Section:
    rated, remarks = _rated(evaluation)
    others = {} if ood is None else {q.name: q for q in _rated(ood)[0]}
    caption = "Shade: density of {} errors in distribution. Points: rms error of samples of similar σ."
    cards = [
        _card(
            f"{q.name}-ranking",
            partial(figures.draw_std_versus_error, quantity=q, ood=others.get(q.name)),
            caption.format(q.name),
        )
        for q in rated
    ]
    cards += [
        _card(
            f"{name}-retention",
            partial(figures.draw_retention, error=error, std=std, label=label),
            f"The {name} error left if the structures of largest σ are computed by the reference method.",
        )
        for name, error, std, label in _by_structure(evaluation)
        if any(q.name == name for q in rated)
    ]
    return Section(
        heading="Does σ point at the errors?",
        lead="Where σ is right, the root mean square error of samples with that σ is σ.",
        cards=tuple(cards),
        remarks=remarks,
    )


def _by_structure(evaluation: Evaluation) -> Iterable[tuple[str, figures.Array, figures.Array, str]]:
    """Name, error and σ of each structure, and what the error is, for energies and forces where known."""
    if evaluation.energy_error is not None and evaluation.energy_std is not None:
        yield "energy", evaluation.energy_error, evaluation.energy_std, "|energy error| (eV)"
    std = figures.forces_std_rms(evaluation)
    if evaluation.forces_error is not None and std is not None:
        yield (
            "force",
            figures.structure_rms(evaluation, evaluation.forces_error),
            std,
            "rms force error (eV/Å)",
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
