"""The figures of a report in their order, each section with words around it."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup

from sigmaff.evaluation.evaluate import Evaluation
from sigmaff.models.prediction import Quantity
from sigmaff.report import figures
from sigmaff.report.figures import COVERAGE_CAPTION, Array, Panel

PLURALS: dict[Quantity, str] = {"energy": "energies", "forces": "forces", "stress": "stress"}


class Card(NamedTuple):
    """A figure and the words below it."""

    svg: Markup
    caption: str


class Section(NamedTuple):
    """A heading and its figures, or the remarks that say why some are missing."""

    heading: str
    lead: str
    cards: Sequence[Card]
    remarks: Sequence[str]
    rows: Sequence[Sequence[str]] = ()  # of a table, its header first


def card(name: str, panel: Panel, caption: str) -> Card:
    return Card(Markup(figures.to_svg(figures.new_figure(panel), name)), caption)


def all_sections(evaluation: Evaluation, ood: Evaluation | None) -> list[Section]:
    return [_accuracy(evaluation), _calibration(evaluation), _ranking(evaluation, ood), _detection(evaluation, ood)]


def _accuracy(evaluation: Evaluation) -> Section:
    cards, remarks = [], []
    parities = (
        ("energy", evaluation.energy, figures.draw_energy_parity, "Energies of {} structures"),
        ("force", evaluation.forces, figures.draw_force_parity, "{} force components"),
    )
    for name, true, draw, caption in parities:
        if true is None:
            remarks.append(f"There are no {name} labels: {name} errors cannot be shown.")
            continue
        drawn = f", {figures.MAX_POINTS:,} of them drawn" if true.size > figures.MAX_POINTS else ""
        panel = partial(draw, evaluation=evaluation)
        cards.append(card(f"{name}-parity", panel, f"{caption.format(f'{true.size:,}')}{drawn}."))
    lead = "Predicted against true values; on the line they agree."
    return Section("How large are the errors?", lead, cards, remarks)


def _without_sample(evaluation: Evaluation) -> list[str]:
    """A remark on the quantities without labels or σ; on stress where it has one of the two."""
    has_stress = evaluation.stress is not None or evaluation.stress_std_raw is not None
    expected = [name for name in PLURALS if name != "stress" or has_stress]
    missing = " and ".join(PLURALS[name] for name in expected if name not in evaluation.samples)
    return [f"Not shown for {missing}: there is no σ, or no label to compare with."] if missing else []


def _calibration(evaluation: Evaluation) -> Section:
    lead = "Below the dashed line error bars are too narrow, above it too wide. A score of 0 is perfect."
    cards = [
        card(f"{s.name}-calibration", partial(figures.draw_calibration, sample=s), COVERAGE_CAPTION.format(s.name))
        for s in evaluation.samples.values()
    ]
    return Section("Do the error bars hold?", lead, cards, _without_sample(evaluation))


def _ranking(evaluation: Evaluation, ood: Evaluation | None) -> Section:
    samples, others = evaluation.samples, {} if ood is None else ood.samples
    caption = "Shade: density of {} errors in distribution. Points: rms error of samples of similar σ."
    cards = []
    for s in samples.values():
        panel = partial(figures.draw_std_versus_error, sample=s, ood=others.get(s.quantity))
        cards.append(card(f"{s.name}-ranking", panel, caption.format(s.name)))
    if "forces" in samples and samples["forces"].std_grown is not None:
        panel = partial(figures.draw_growth, sample=samples["forces"], ood=others.get("forces"))
        cards.append(card("force-growth", panel, "What the growth of force σ with energy σ changes."))
    rms = evaluation.structure_rms
    by_structure: dict[Quantity, tuple[Array | None, Array | None, str]] = {
        "energy": (evaluation.energy_error, evaluation.energy_std, "|energy error| (eV)"),
        "forces": (rms(evaluation.forces_error), rms(evaluation.forces_std), "rms force error (eV/Å)"),
    }
    for quantity, (error, std, label) in by_structure.items():
        if quantity in samples and error is not None and std is not None:
            panel = partial(figures.draw_retention, error=error, std=std, label=label)
            name = samples[quantity].name
            words = f"The {name} error left if the structures of largest σ are computed by the reference method."
            cards.append(card(f"{name}-retention", panel, words))
    lead = "Where σ is right, the root mean square error of samples with that σ is σ."
    return Section("Does σ point at the errors?", lead, cards, _without_sample(evaluation))


def _detection(evaluation: Evaluation, ood: Evaluation | None) -> Section:
    cards = []
    for name, score, label in (
        ("energy", figures.energy_std_per_atom, figures.ENERGY_STD_LABEL),
        ("force", figures.forces_std_rms, figures.FORCE_STD_LABEL),
    ):
        std, other = score(evaluation), None if ood is None else score(ood)
        if std is not None:
            panel = partial(figures.draw_std_histogram, std=std, ood=other, label=label)
            cards.append(card(f"{name}-histogram", panel, f"How {name} σ is distributed over structures."))
    remarks = [] if cards else ["Not shown: the model states no σ."]
    if ood is None:
        remarks.append("No out-of-distribution set was given, so detection is not measured.")
    lead = "AUROC is the chance that a new structure has a larger σ than a familiar one: 1 is perfect, 0.5 is guessing."
    return Section("Does σ see what is new?", lead, cards, remarks)
