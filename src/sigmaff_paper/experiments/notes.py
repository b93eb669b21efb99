"""What differs from the paper: sentences below the tables of every experiment."""

from collections.abc import Iterable

from sigmaff.evaluation.metrics import auroc_interval
from sigmaff.heads import LNKConfig
from sigmaff.runs.jobs import Results
from sigmaff.runs.methods import PAPERS_LNK
from sigmaff_paper.experiments.settings import (
    BACKBONES,
    HEAD_SHARE,
    HOUR,
    JOINT_SHARE,
    QUICK,
    SIZES,
    TITLES,
    Setup,
)
from sigmaff_paper.tables.hyperparameters import Kind, Sizes

ALWAYS = (
    "Energies are total energies minus fitted reference energies of elements, in units of the rms force or of their "
    "spread per atom, whichever is larger.",
    "Gradients are clipped at a norm of 10; the paper does not mention clipping.",
)
CALIBRATION = (
    "Calibration per sample is the paper's score: the mean over single structures or force components, of σ as the "
    "method gives it (perfect: 1.254, range 0.922 to 1.688; lower is not better). Global scores take all together "
    "(perfect: 0).",
    "Raw σ of the closed form, of LLPR and of latent distances is scaled to validation errors by their fits; the raw σ "
    "of the other methods is not. Calibrated σ is scaled by one factor on the validation structures; force σ there "
    "also grows with energy σ.",
)
LNK = (
    "Inducing points are distributed over elements and chosen far apart, two for each element along the readout; the "
    "paper takes the first of the training set.",
    "Kernels of distances compare activated embeddings, weighed as the readout does.",
    "Variational fits begin with the posterior of the closed form. After training mean and covariance are solved for "
    "again, without dropout, with new inducing points if the network was trained too. The mean is kept if validation "
    "errors are lower, and σ gets the size of training errors.",
)
"""Of the variational processes, whatever their settings."""
UNTESTED = "Analytic σ of forces was not tested (--no-force-std); the paper has none."


def differences(setup: Setup, kind: Kind, backbones: Iterable[str], results: Results) -> list[str]:
    """List how our runs differ from the paper's.

    Arguments:
        backbones: names of the backbones of the experiment.
        results: which tell the data.
    """
    of_scale = {"quick": _of_quick_scale, "hour": _of_hour_scale, "paper": _of_paper_scale}[setup.scale]
    of_kind = _of_md17(setup, results) if kind == "md17" else _of_qm7x()
    of_methods = [*CALIBRATION, *LNK, *_of_settings(PAPERS_LNK), *ALWAYS]
    untested = [] if setup.force_std else [UNTESTED]
    return [_trainings(setup), *of_methods, *untested, *of_kind, *of_scale(setup, kind, list(backbones))]


def _of_settings(lnk: LNKConfig) -> list[str]:
    """Of the paper's LNK, where its settings are not the paper's."""
    started = "LNK and SVGP-DKL start from a trained backbone; the paper trains them from scratch."
    by_element = "The LNK compares atoms of one element only; the paper compares all."
    return [note for note, holds in ((started, not lnk.from_scratch), (by_element, lnk.by_element)) if holds]


def _trainings(setup: Setup) -> str:
    square = "In square brackets: 95 % intervals for the choice of test structures, taken as independent"
    if setup.n_seeds == 1:
        return f"One training of each network. {square}; another training scatters more."
    return (
        f"Means over {setup.n_seeds} trainings of each network from other seeds, on the same structures, and in braces "
        f"their range. {square}, means over trainings. Ensembles of two seeds share no member."
    )


def _of_md17(setup: Setup, results: Results) -> list[str]:
    return [_labels(results), _perfect_auroc(SIZES[setup.scale]["md17"])]


def _labels(results: Results) -> str:
    """Which file of MD17 the models were trained on."""
    files = {str(result.content["data"]).rpartition("/")[2] for result in results.values() if "data" in result.content}
    published = sorted(file for file in files if file.startswith("md17_"))
    revised = "the original ones of MD17, for the structures of rMD17"
    if not published:
        return f"Labels are {revised}."
    others = f"; for the other molecules {revised}" if any(file.startswith("rmd17_") for file in files) else ""
    return f"Labels and structures are those of the published MD17 ({', '.join(published)}){others}."


def _perfect_auroc(sizes: Sizes) -> str:
    assert sizes.n_test is not None
    low, _ = auroc_interval(1.0, sizes.n_test, sizes.n_ood)
    return (
        f"Detection: {sizes.n_test} test structures against {sizes.n_ood} of each other molecule. An AUROC of 1 there "
        f"has a 95 % interval from {low:.3f} to 1."
    )


def _of_qm7x() -> list[str]:
    return [
        "Existing extxyz files are used as they are: 'sigmaff generate qm7x-like' labels by GFN2-xTB, the paper by "
        "PBE0+MBD.",
        "AUC-ROC of forces: by the trace of the force covariance, the sum of σ² as the method gives it, as in the "
        "paper (it grows with the number of atoms), and by the rms of calibrated force σ, which does not.",
    ]


def _of_quick_scale(setup: Setup, kind: Kind, backbones: list[str]) -> list[str]:
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


def _of_hour_scale(setup: Setup, kind: Kind, backbones: list[str]) -> list[str]:
    sizes, published = SIZES["hour"][kind], SIZES["paper"][kind]
    rates = ", ".join(f"{HOUR[name].learning_rate:g} for {TITLES[name]}" for name in backbones)
    is_same = sizes.batch_size == published.batch_size
    batches = f"batches of {sizes.batch_size}" + (
        " as in the paper" if is_same else f" (paper: {published.batch_size})"
    )
    notes = [
        "Scale hour: networks and losses are the paper's. A training has as many epochs as one core does in "
        f"{setup.hours:g} {'hour' if setup.hours == 1.0 else 'hours'}, far fewer than the paper's. A Gaussian process "
        f"has {HEAD_SHARE:g} of them on a frozen network and {JOINT_SHARE:g} with it.",
        f"Scale hour: {batches}, a cosine schedule without patience, learning rates of {rates}.",
    ]
    if kind == "qm7x":
        notes.append(
            f"Scale hour: {published.n_train} structures train and {published.n_validation} validate, as in the paper, "
            "if the data has them; else 80 and 10 % of the structures. The rest are tests, against "
            f"{sizes.n_ood} non-equilibrium structures."
        )
    else:
        notes.append(
            f"Scale hour: {sizes.n_train} structures train and {sizes.n_validation} validate, as in the paper."
        )
    return notes


def _of_paper_scale(setup: Setup, kind: Kind, backbones: list[str]) -> list[str]:
    sizes = SIZES["paper"][kind]
    tested = "all other" if sizes.n_test is None else f"{sizes.n_test}"
    return [
        f"Scale paper: tested on {tested} structures and {sizes.n_ood} of each other set; the paper gives no numbers.",
        "The paper omits the training of NequIP: learning rate and averaging are those of the NequIP publication.",
    ]
