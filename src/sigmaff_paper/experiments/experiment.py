"""What an experiment is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sigmaff_paper.experiments.cell import Cell, Results
from sigmaff_paper.experiments.presentation import Presentation
from sigmaff_paper.experiments.protocols import BACKBONES, QUICK, SIZES, TITLES, Scale
from sigmaff_paper.experiments.sources import Data
from sigmaff_paper.tables.hyperparameters import Kind


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper: the cells that it takes, and how their results are shown."""

    title: str
    shows: str  # which tables and figures
    cells: Callable[[Scale, Data], list[Cell]]
    present: Callable[[Results, Scale], Presentation]
    quick_minutes: int  # on two cores, with nothing done before


def once(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, sources before what takes them."""
    return list({cell.name: cell for cell in cells}.values())


def differences(scale: Scale, kind: Kind, backbones: Iterable[str]) -> list[str]:
    """How runs depart from the paper's."""
    every = [
        "Calibration scores are of σ after calibration by one factor on the validation structures, averaged over "
        "single structures as in the paper (perfect is 1.254); rows named global are of all structures together "
        "(perfect is 0).",
        "Inducing points are shared out by element and chosen far apart, not the first of the training set; LNK and "
        "SVGP-DKL go on from a trained backbone.",
        "Energies are total energies less fitted reference energies of elements, in units of the rms force or, if "
        "that is larger, of their spread per atom.",
    ]
    if kind == "md17":
        every.append("Labels are the original ones of MD17, of the structures that rMD17 kept.")
    if kind == "qm7x":
        every.append(
            "Where there are extxyz files, they are taken as they are: those of 'sigmaff generate qm7x-like' are "
            "labelled by GFN2-xTB, those of the paper by PBE0+MBD."
        )
        every.append(
            "AUC-ROC of forces goes by the rms of force σ, which, unlike the paper's trace, does not grow with size."
        )
    return every + (_of_paper_scale(kind) if scale == "paper" else _of_quick_scale(kind, backbones))


def _of_quick_scale(kind: Kind, backbones: Iterable[str]) -> list[str]:
    sizes, published, quick = SIZES["quick"][kind], SIZES["paper"][kind], QUICK[kind]
    notes = [
        f"Scale quick: {sizes.n_train} structures to train and {sizes.n_validation} to validate (paper: "
        f"{published.n_train} and {published.n_validation}), {quick.epochs} epochs in batches of {quick.batch_size}."
    ]
    if quick.forces_weight is not None:
        notes.append(
            f"Scale quick: forces weigh {quick.forces_weight:g} in the loss, energies the rest (paper: 0.99 or 0.9), "
            "because small forces of structures at rest teach little of energies in so few steps."
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
        f"Scale paper: tested on {tested} structures, and on {sizes.n_ood} of each other set; the paper does not tell.",
        "The paper omits the training of NequIP: rate and averaging are those of its publication.",
    ]
