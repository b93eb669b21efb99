"""Molecules of MD17 told apart from the one that a model was trained on; the mixture density network."""

import numpy as np

from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Results, number
from sigmaff_paper.experiments.experiment import Experiment, differences
from sigmaff_paper.experiments.figures import Matrix
from sigmaff_paper.experiments.md17_accuracy import CLOSED, FIXED_EVERYWHERE, Plan, everywhere, ours_of, rows_of
from sigmaff_paper.experiments.presentation import Entry, Presentation, Table, beside
from sigmaff_paper.experiments.protocols import TITLES, Scale
from sigmaff_paper.experiments.study import MD17_MOLECULES, Study
from sigmaff_paper.tables import md17 as paper
from sigmaff_paper.tables.table import Labels

DETECTION: dict[Scale, Plan] = {
    "quick": Plan(
        recipes={"schnet": ("mcd-20", "evidential", "fixed-lnk-closed")},
        molecules={"schnet": MD17_MOLECULES["quick"]},
    ),
    "paper": Plan(
        recipes=dict.fromkeys(TITLES, ("mcd-20", "evidential", "fixed-lnk", "fixed-lnk-closed", "ensemble")),
        molecules=everywhere(paper.MOLECULES),
    ),
}

MIXTURE: dict[Scale, Plan] = {
    "quick": Plan(recipes={"schnet": ("fixed-lnk", "gmdn")}, molecules={"schnet": MD17_MOLECULES["quick"]}),
    "paper": Plan(recipes={"schnet": ("fixed-lnk", "gmdn")}, molecules={"schnet": paper.MOLECULES}),
}


def auroc_map(results: Results, scale: Scale, backbone: str, recipe: str, measure: str) -> Matrix:
    """By trained (rows) and foreign (columns) molecule; on the diagonal 0.5, by definition."""
    names = MD17_MOLECULES[scale]
    values = np.full((len(names), len(names)), np.nan)
    np.fill_diagonal(values, 0.5)
    for (row, trained), (column, other) in ((a, b) for a in enumerate(names) for b in enumerate(names)):
        study = Study(scale=scale, dataset=trained, backbone=backbone)
        found = number(results, study.name(recipe), "ood", other, measure)
        if row != column and found is not None:
            values[row, column] = found
    return values


RECIPE_TITLES = {
    "mcd-20": "MCD",
    "evidential": "Evidential",
    "fixed-lnk": "fixed-LNK",
    "fixed-lnk-closed": CLOSED,
    "ensemble": "Ensemble",
    "gmdn": "GMDN",
}
PERFECT = ("fixed-lnk", "fixed-lnk-closed", "ensemble")
"""Methods of which the text says that they tell all molecules apart; its figures have no other numbers."""
SUMMARY: dict[str, str] = {
    "least AUROC, σ per atom": "energy_auroc",
    "least AUROC, σ of the whole": "energy_auroc_total",
    "least AUROC, force σ": "forces_auroc",
}
SAME_SIZE = "ethanol, malonaldehyde (9 atoms each), σ per atom"


def present_detection(results: Results, scale: Scale) -> Presentation:
    plan = DETECTION[scale]
    maps = {
        (backbone, recipe): auroc_map(results, scale, backbone, recipe, "energy_auroc")
        for backbone, recipes in plan.recipes.items()
        for recipe in recipes
    }
    return Presentation(
        tables=[
            _summary(results, scale, plan),
            *(_map_table(values, scale, key) for key, values in maps.items()),
        ],
        figures={
            backbone: figures.heat_maps(
                {RECIPE_TITLES[recipe]: maps[backbone, recipe] for recipe in plan.recipes[backbone]},
                MD17_MOLECULES[scale],
            )
            for backbone in plan.recipes
        },
        notes=[
            "Rows: the molecule that a model was trained on; columns: the one that its energy σ per atom should tell "
            "apart from it. 0.5 on the diagonal is by definition.",
            "The paper's heat maps have no numbers; its text says that ensembles and LNK separate perfectly (1), and "
            "that MCD and evidential regression show no clear diagonal. Its σ is that of the whole molecule.",
            *differences(scale, "md17", plan.recipes),
        ],
    )


def _summary(results: Results, scale: Scale, plan: Plan) -> Table:
    rows: dict[Labels, tuple[Entry, ...]] = {}
    for backbone, recipes in plan.recipes.items():
        for recipe in recipes:
            maps = {name: auroc_map(results, scale, backbone, recipe, key) for name, key in SUMMARY.items()}
            least = [_least_off_diagonal(values) for values in maps.values()]
            published = 1.0 if recipe in PERFECT else None
            rows[TITLES[backbone], RECIPE_TITLES[recipe]] = (
                Entry(ours=least[0]),
                Entry(ours=least[1], paper=published),
                Entry(ours=least[2]),
                Entry(ours=_same_size(maps["least AUROC, σ per atom"], scale)),
            )
    return Table(
        title="Figures 3, 5 and 6: the pair that is hardest to tell apart",
        columns=(*SUMMARY, SAME_SIZE),
        rows=rows,
    )


def _least_off_diagonal(values: Matrix) -> float | None:
    """``None`` where one is not there."""
    others = values[~np.eye(len(values), dtype=bool)]
    return float(others.min()) if np.isfinite(others).all() else None


def _same_size(values: Matrix, scale: Scale) -> float | None:
    """The lesser of both ways."""
    names = MD17_MOLECULES[scale]
    one, other = names.index("ethanol"), names.index("malonaldehyde")
    least = float(np.minimum(values[one, other], values[other, one]))
    return least if np.isfinite(least) else None


def _map_table(values: Matrix, scale: Scale, key: tuple[str, str]) -> Table:
    names = MD17_MOLECULES[scale]
    return Table(
        title=f"AUROC by energy σ per atom: {TITLES[key[0]]}, {RECIPE_TITLES[key[1]]}",
        columns=names,
        rows={
            (name,): tuple(Entry(ours=float(value) if np.isfinite(value) else None) for value in row)
            for name, row in zip(names, values, strict=True)
        },
    )


def present_mixture(results: Results, scale: Scale) -> Presentation:
    molecules = MIXTURE[scale].molecules["schnet"]
    ours = ours_of(results, scale, "schnet", FIXED_EVERYWHERE)
    table = beside(paper.GMDN, ours, rows=rows_of(molecules, ("Energy", "Forces")))
    values = auroc_map(results, scale, "schnet", "gmdn", "energy_auroc")
    return Presentation(
        tables=[table, _map_table(values, scale, ("schnet", "gmdn"))],
        figures={
            "errors": figures.dots(table, label="MAE (kcal/mol, kcal/mol/Å)"),
            "detection": figures.heat_maps({"GMDN": values}, MD17_MOLECULES[scale]),
        },
        notes=[
            "The paper takes the best of several settings for each molecule; here one setting serves all. The column "
            "LNK is the fixed-LNK of Table 2.",
            *differences(scale, "md17", ("schnet",)),
        ],
    )


DETECTION_EXPERIMENT = Experiment(
    title="molecules of MD17 told apart from the one that a model was trained on",
    shows="Figures 3, 5, 6",
    cells=lambda scale, data: DETECTION[scale].cells(scale, data),
    present=present_detection,
    quick_minutes=9,
)
MIXTURE_EXPERIMENT = Experiment(
    title="graph mixture density network against LNK",
    shows="Table 13, Figure 4",
    cells=lambda scale, data: MIXTURE[scale].cells(scale, data),
    present=present_mixture,
    quick_minutes=6,
)
