"""What needs neither data nor training: time of a prediction, and numbers of parameters."""

from dataclasses import dataclass

from sigmaff.heads import LNKConfig
from sigmaff.runs.methods import METHODS, PAPERS_LNK
from sigmaff_paper.experiments import figures
from sigmaff_paper.experiments.cell import Cell, Results, number
from sigmaff_paper.experiments.experiment import Experiment
from sigmaff_paper.experiments.measures import Counted, Timed
from sigmaff_paper.experiments.presentation import Presentation, beside
from sigmaff_paper.experiments.protocols import BACKBONES, TITLES, Scale, n_inducing
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.tables import costs as paper
from sigmaff_paper.tables.hyperparameters import FIXED_LNK
from sigmaff_paper.tables.md17 import N_ATOMS
from sigmaff_paper.tables.table import Labels

ROUNDS: dict[Scale, int] = {"quick": 3, "paper": 15}
TRAININGS = {"LNK": "lnk", "Evidential": "evidential", "MCD": "mc_dropout", "Ensemble": "ensemble"}


def _speed_cells(scale: Scale, data: Data) -> list[Cell]:
    n_points = FIXED_LNK["qm7x"].n_inducing
    return [Timed(name=f"{scale}/speed", n_inducing=n_points, n_rounds=ROUNDS[scale])]


def present_speed(results: Results, scale: Scale) -> Presentation:
    def ours(row: Labels, column: str) -> float | None:
        if row == ("Runtime [ms]",):
            return number(results, f"{scale}/speed", "milliseconds", column)
        return METHODS[TRAININGS[column]].n_trainings if column in TRAININGS else None

    table = beside(paper.SPEED, ours, more_columns=("backbone alone", "LNK with force σ"))
    of_time = beside(paper.SPEED, ours, rows=[("Runtime [ms]",)], more_columns=table.columns[4:])
    return Presentation(
        tables=[table],
        figures={"time": figures.dots(of_time, label="time of a prediction (ms)")},
        notes=[
            "DimeNet++ at the paper's size with initial weights, energies, forces and energy σ of one molecule at a "
            "time, medians on one CPU thread; the paper's hardware is not told, so ratios compare, not milliseconds.",
            "Eight molecules of the size of those of QM7-X, from ASE's collection. Trainings are those of "
            "backbones; the process of an LNK is trained on one.",
        ],
    )


@dataclass(frozen=True, kw_only=True)
class Counting:
    """The LNK that the paper counts on a backbone."""

    n_inducing: int
    mean: str


_FOR_ASPIRIN = n_inducing("paper", "md17", N_ATOMS["aspirin"])
COUNTED: dict[str, Counting] = {
    "dimenet++": Counting(n_inducing=FIXED_LNK["md17"].n_inducing, mean="constant"),
    "schnet": Counting(n_inducing=_FOR_ASPIRIN, mean="constant"),
    "nequip": Counting(n_inducing=_FOR_ASPIRIN, mean="residual"),  # with the readout, which is not used
}


def _lnk(counting: Counting) -> LNKConfig:
    return PAPERS_LNK.model_copy(update={"n_inducing": counting.n_inducing, "mean": counting.mean})


def _parameter_cells(scale: Scale, data: Data) -> list[Cell]:
    """Of the paper's sizes at either scale."""
    return [
        Counted(name=f"parameters/{name}", backbone=BACKBONES["paper"][name], lnk=_lnk(counting))
        for name, counting in COUNTED.items()
    ]


def present_parameters(results: Results, scale: Scale) -> Presentation:
    names = {title: name for name, title in TITLES.items()}
    rows = [*paper.PARAMETERS.rows, ("LNK, closed form",)]
    table = beside(
        paper.PARAMETERS, lambda row, column: number(results, f"parameters/{names[column]}", row[0]), rows=rows
    )
    return Presentation(
        tables=[table],
        figures={"parameters": figures.dots(table, label="parameters")},
        notes=[
            "For H, C, N and O. The LNK has 84 inducing points on SchNet and NequIP (aspirin) and 100 on DimeNet++; "
            "its noise is not counted, as in the paper."
        ],
    )


SPEED_EXPERIMENT = Experiment(
    title="time of a prediction", shows="Table 6", cells=_speed_cells, present=present_speed, quick_minutes=1
)
PARAMETERS_EXPERIMENT = Experiment(
    title="numbers of parameters",
    shows="Table 11",
    cells=_parameter_cells,
    present=present_parameters,
    quick_minutes=1,
)
