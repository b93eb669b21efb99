"""Experiments: the jobs of a table or figure of the paper, and our numbers beside the published ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from sigmaff.evaluation.metrics import auroc_interval
from sigmaff.runs.jobs import Job, Results
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.settings import BACKBONES, QUICK, SIZES, TITLES, Scale
from sigmaff_paper.tables.hyperparameters import Kind, Sizes
from sigmaff_paper.tables.table import Labels, PaperTable

Ours = Callable[[Labels, str], float | None]
"""Our number of a row and a column."""
Interval = tuple[float, float]
Intervals = Callable[[Labels, str], Interval | None]
"""The 95 % interval of our number of a row and a column."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Our number and the published one."""

    ours: float | None
    paper: float | None = None
    note: str | None = None
    interval: Interval | None = None

    def text(self, mark: str) -> str:
        """Return our number with its interval, and the published one in brackets."""
        ours = "–" if self.ours is None else _shown(self.ours)
        if self.interval is not None:
            ours += f" [{', '.join(map(_shown, self.interval))}]"
        return ours if self.paper is None else f"{ours} ({_printed(self.paper)}{mark})"


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Rows by their labels, one entry for each column."""

    title: str
    columns: Labels
    rows: dict[Labels, tuple[Entry, ...]]

    def cells(self, marks: Mapping[str, str]) -> list[list[str]]:
        """Return the texts of the header and of each row. ``marks`` are those of notes."""
        n_labels = max(len(labels) for labels in self.rows)
        lines = [[""] * n_labels + list(self.columns)]
        for labels, entries in self.rows.items():
            texts = [entry.text(marks.get(entry.note or "", "")) for entry in entries]
            lines.append([*labels, *[""] * (n_labels - len(labels)), *texts])
        return lines

    def markdown(self) -> str:
        notes = list(dict.fromkeys(entry.note for row in self.rows.values() for entry in row if entry.note is not None))
        header, *rows = self.cells({note: f" [{number}]" for number, note in enumerate(notes, 1)})
        table = "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))
        return "\n\n".join([f"### {self.title}", table, *(f"[{k}] {note}." for k, note in enumerate(notes, 1))])

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [
                {"labels": list(labels), "entries": [vars(entry) for entry in entries]}
                for labels, entries in self.rows.items()
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an experiment shows. ``notes`` list the differences from the paper; figures are by name."""

    tables: list[ResultTable]
    figures: dict[str, Figure]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    title: str
    shows: str  # which tables and figures
    quick_minutes: int  # on two cores, from the start
    jobs: Callable[[Scale, DataFolders], list[Job]]
    present: Callable[[Results, Scale], Report]


def beside(
    paper: PaperTable,
    ours: Ours,
    *,
    rows: Iterable[Labels] | None = None,
    more_columns: Sequence[str] = (),
    title: str = "",
    intervals: Intervals = lambda row, column: None,
) -> ResultTable:
    """Return our numbers beside those of a published table.

    Arguments:
        rows: those to show; default: all of the paper. A row or column that the paper does not have shows our number
            alone.
        more_columns: columns after those of the paper.
        title: appended to that of the paper.
        intervals: of our numbers.
    """
    shown = (*paper.columns, *more_columns)
    return ResultTable(
        title=f"{paper.number}: {paper.caption}{title}",
        columns=shown,
        rows={
            row: tuple(
                Entry(
                    ours=ours(row, column),
                    paper=paper.value(row, column),
                    note=paper.slip(row, column),
                    interval=intervals(row, column),
                )
                for column in shown
            )
            for row in (paper.rows if rows is None else rows)
        },
    )


def _shown(number: float) -> str:
    """Counts as integers; measures with three decimals, or three significant digits below 0.1."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:.3f}" if abs(number) >= 0.1 else f"{number:.3g}"


def _printed(number: float) -> str:
    """As in the paper."""
    return f"{number:,}" if isinstance(number, int) else f"{round(number, 4):g}"


def differences(scale: Scale, kind: Kind, backbones: Iterable[str]) -> list[str]:
    """List how our runs differ from the paper's.

    Arguments:
        backbones: names of the backbones of the experiment.
    """
    every = [
        "One training of each network. In square brackets: 95 % intervals for the choice of test structures, taken as "
        "independent; another training scatters more.",
        "σ is calibrated by one factor on the validation structures. Calibration scores are means over single "
        "structures as in the paper (perfect: 1.254); rows named global use all structures together (perfect: 0).",
        "Inducing points are distributed over elements and chosen far apart; the paper takes the first of the training "
        "set. LNK and SVGP-DKL start from a trained backbone.",
        "Energies are total energies minus fitted reference energies of elements, in units of the rms force or of "
        "their spread per atom, whichever is larger.",
    ]
    if kind == "md17":
        every.append("Labels are the original ones of MD17, for the structures of rMD17.")
        every.append(_perfect_auroc(SIZES[scale][kind]))
    if kind == "qm7x":
        every.append(
            "Existing extxyz files are used as they are: 'sigmaff generate qm7x-like' labels by GFN2-xTB, the paper "
            "by PBE0+MBD."
        )
        every.append("AUC-ROC of forces uses the rms of force σ; the paper's trace grows with size.")
    return every + (_of_paper_scale(kind) if scale == "paper" else _of_quick_scale(kind, backbones))


def _perfect_auroc(sizes: Sizes) -> str:
    assert sizes.n_test is not None
    low, _ = auroc_interval(1.0, sizes.n_test, sizes.n_ood)
    return (
        f"Detection: {sizes.n_test} test structures against {sizes.n_ood} of each other molecule. An AUROC of 1 there "
        f"has a 95 % interval from {low:.3f} to 1."
    )


def _of_quick_scale(kind: Kind, backbones: Iterable[str]) -> list[str]:
    sizes, published, quick = SIZES["quick"][kind], SIZES["paper"][kind], QUICK[kind]
    notes = [
        f"Scale quick: {sizes.n_train} structures to train and {sizes.n_validation} to validate (paper: "
        f"{published.n_train} and {published.n_validation}), {quick.epochs} epochs in batches of {sizes.batch_size}."
    ]
    if quick.forces_weight is not None:
        notes.append(
            f"Scale quick: forces weigh {quick.forces_weight:g} in the loss, energies the rest (paper: 0.99 or 0.9), "
            "because the small forces of relaxed structures say little about energies in so few steps."
        )
    for name in backbones:
        config, default = BACKBONES["quick"][name].model_dump(), BACKBONES["paper"][name].model_dump()
        smaller = [f"{key} {config[key]} ({default[key]})" for key in config if config[key] != default[key]]
        notes.append(f"{TITLES[name]} is smaller than the paper's: {', '.join(smaller)}.")
    return notes


def _of_paper_scale(kind: Kind) -> list[str]:
    sizes = SIZES["paper"][kind]
    tested = "all other" if sizes.n_test is None else f"{sizes.n_test}"
    return [
        f"Scale paper: tested on {tested} structures and {sizes.n_ood} of each other set; the paper gives no numbers.",
        "The paper omits the training of NequIP: learning rate and averaging are those of the NequIP publication.",
    ]
