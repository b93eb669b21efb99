"""Training settings at each scale: those of the paper's tables, the same with short schedules, or small models."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.errors import ConfigError
from sigmaff.training import CosineSchedule, ExponentialSchedule, TrainingConfig
from sigmaff_paper.tables import hyperparameters as paper
from sigmaff_paper.tables.hyperparameters import Kind, Sizes

Scale = Literal["quick", "hour", "paper"]
"""quick: small networks, few structures; hour: the paper's networks, sizes and losses, trainings of an hour; paper."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How large the trainings of an experiment are, how many of each, and where."""

    scale: Scale
    hours: float = 1.0  # of a training of scale hour, of one core
    n_seeds: int = 1  # trainings of each network, from seeds of their own
    device: str = "auto"  # accelerator of the trainings
    force_std: bool = True  # whether analytic σ of forces is tested too, which the paper does not have

    def __post_init__(self) -> None:
        if self.scale != "hour" and self.hours != 1.0:
            raise ConfigError(f"--hours is the length of trainings of --scale hour, not of {self.scale}")

    @property
    def title(self) -> str:
        """What a reader of results has to know."""
        length = f", trainings of {self.hours:g} hours" if self.hours != 1.0 else ""
        return f"scale {self.scale}{length}" + (f", {self.n_seeds} seeds" if self.n_seeds > 1 else "")

    @property
    def options(self) -> str:
        """The options of ``sigmaff reproduce`` that ask for it, on any device."""
        length = f" --hours {self.hours:g}" if self.hours != 1.0 else ""
        seeds = f" --seeds {self.n_seeds}" if self.n_seeds > 1 else ""
        return f"--scale {self.scale}{length}{seeds}" + ("" if self.force_std else " --no-force-std")


SIZES: dict[Scale, dict[Kind, Sizes]] = {
    "quick": {
        "md17": Sizes(batch_size=5, n_train=400, n_validation=200, n_test=300, n_ood=100),
        "qm7x": Sizes(batch_size=10, n_train=1400, n_validation=200, n_test=300, n_ood=300),
    },
    "hour": {  # larger batches than the paper's 1
        "md17": replace(paper.SIZES["md17"], batch_size=10, n_test=2000, n_ood=200),
        "qm7x": replace(paper.SIZES["qm7x"], n_ood=1000),
    },
    "paper": {  # the numbers of test structures are ours
        "md17": replace(paper.SIZES["md17"], n_test=2000, n_ood=1000),
        "qm7x": replace(paper.SIZES["qm7x"], n_ood=4000),
    },
}
TRAIN_SHARE, VALIDATION_SHARE = 0.8, 0.1
"""Of the structures of QM7-X, in the paper and, at scale hour, of any number of them."""
_PUBLISHED: dict[str, BackboneConfig] = {
    "schnet": SchNetConfig(),
    "dimenet++": DimeNetPPConfig(),
    "nequip": NequIPConfig(),
}
BACKBONES: dict[Scale, dict[str, BackboneConfig]] = {
    "quick": {
        "schnet": SchNetConfig(n_hidden=64, n_filters=64, n_interactions=3, n_gaussians=25, cutoff=5.0),
        "dimenet++": DimeNetPPConfig(
            n_hidden=32, n_blocks=2, n_directional=16, n_output=64, n_spherical=4, n_output_layers=2, cutoff=4.0
        ),
        "nequip": NequIPConfig(n_features=16, n_layers=3),
    },
    "hour": _PUBLISHED,
    "paper": _PUBLISHED,
}
TITLES = {"schnet": "SchNet", "dimenet++": "DimeNet++", "nequip": "NequIP"}


@dataclass(frozen=True, kw_only=True)
class Quick:
    """Trainings at quick scale: cosine schedule, no patience."""

    epochs: int
    head_epochs: int  # of a Gaussian process on a trained backbone
    warmup_steps: int = 100
    n_inducing: int = 100
    forces_weight: float | None = None  # ρ; None: the default of a training


QUICK: dict[Kind, Quick] = {
    "md17": Quick(epochs=50, head_epochs=15),
    "qm7x": Quick(epochs=40, head_epochs=12, forces_weight=0.5),
}
QUICK_RATES = {"schnet": 2e-3, "dimenet++": 2e-3, "nequip": 5e-3}
QUICK_SECOND_RATE = 3e-4
"""Learning rate of a backbone that is fine-tuned with a Gaussian process. That of the process is its default."""


@dataclass(frozen=True, kw_only=True)
class Hour:
    """Trainings at scale hour: cosine schedule, no patience, compiled unless they are short."""

    learning_rate: float
    structures: int  # times atoms^1.5, that a training sees in an hour of one core


HOUR = {
    "schnet": Hour(learning_rate=1e-3, structures=27_000_000),
    "dimenet++": Hour(learning_rate=1e-3, structures=5_400_000),
    "nequip": Hour(learning_rate=5e-3, structures=20_000_000),
}
"""Measured on ethanol; the number of pairs within a cutoff grows more slowly than the square of that of atoms."""
HOUR_VALIDATIONS = 20
COMPILED_HOURS = 0.1
"""Below this, compiling a network takes longer than it saves."""
MEAN_ATOMS = 17
"""Of structures of QM7-X."""
HEAD_SHARE, JOINT_SHARE = 0.2, 0.4
"""Epochs of a Gaussian process on a frozen network, and of one that is trained with it, over those of the network."""

NEQUIP = paper.Training(learning_rate=0.01, warmup_steps=1000, decay_steps=1_200_000, ema_decay=0.99)
"""The paper omits NequIP's. Rate and EMA are those of the NequIP publication; decay and patience as for DimeNet++."""


def sizes_of(scale: Scale, kind: Kind, n_structures: int | None = None) -> Sizes:
    """Return the numbers of structures of a study.

    At scale hour QM7-X may be any set of relaxed structures: the paper's numbers if it has as many, else its shares.

    Arguments:
        n_structures: of the data; None if it is not known yet.
    """
    sizes = SIZES[scale][kind]
    has_all = n_structures is None or n_structures > sizes.n_train + sizes.n_validation
    if scale != "hour" or kind != "qm7x" or has_all:
        return sizes
    assert n_structures is not None
    n_train, n_validation = max(1, int(TRAIN_SHARE * n_structures)), int(VALIDATION_SHARE * n_structures)
    return replace(sizes, n_train=n_train, n_validation=n_validation)


def training(
    scale: Scale,
    kind: Kind,
    backbone: str,
    *,
    evidential: bool,
    n_atoms: int | None = None,
    n_train: int | None = None,
    hours: float = 1.0,
) -> TrainingConfig:
    """Return the training of a network from scratch.

    Arguments:
        n_atoms: of the molecule; None for structures of many sizes.
        n_train: structures of a training of scale hour; None for those of ``SIZES``.
        hours: length of a training of scale hour, of one core.
    """
    if scale == "quick":
        return _quick(kind, QUICK[kind].epochs, QUICK_RATES[backbone])
    if scale == "hour":
        return _hour(kind, backbone, n_atoms, n_train, hours, evidential=evidential)
    if backbone == "nequip":
        return _as_published(replace(NEQUIP, forces_weight=0.9 if evidential else 0.99), kind)
    return _as_published(paper.TRAININGS[backbone, "evidential" if evidential else "dropout", kind], kind)


def head_training(
    scale: Scale,
    kind: Kind,
    backbone: str,
    *,
    frozen: bool,
    n_atoms: int | None = None,
    n_train: int | None = None,
    hours: float = 1.0,
) -> TrainingConfig:
    """Return the training of a Gaussian process on a trained backbone, frozen (fixed-LNK) or fine-tuned (LNK)."""
    if scale == "quick":
        return _quick(kind, QUICK[kind].head_epochs, QUICK_SECOND_RATE)
    rate = paper.FIXED_LNK_RATE if frozen else paper.LNK_RATE
    rates = {"learning_rate": rate, "head_learning_rate": rate}
    share = 1.0 if scale == "paper" else HEAD_SHARE if frozen else JOINT_SHARE
    length = share * hours
    first = training(scale, kind, backbone, evidential=False, n_atoms=n_atoms, n_train=n_train, hours=length)
    return first.model_copy(update=rates)


def n_inducing(scale: Scale, kind: Kind, n_atoms: int | None) -> int:
    """Return the number of inducing points; for a molecule of MD17 the same number for each atom, ⌊100/n⌋·n."""
    if scale == "quick":
        return QUICK[kind].n_inducing
    most = paper.N_INDUCING[kind]
    return most if n_atoms is None else most // n_atoms * n_atoms


def _quick(kind: Kind, epochs: int, learning_rate: float) -> TrainingConfig:
    return TrainingConfig(
        forces_weight=QUICK[kind].forces_weight,
        batch_size=SIZES["quick"][kind].batch_size,
        max_epochs=epochs,
        validate_every=5,
        learning_rate=learning_rate,
        schedule=CosineSchedule(warmup_steps=QUICK[kind].warmup_steps, final_fraction=0.01),
        ema_decay=0.99,
        threads=1,
        tensorboard=False,
    )


def _hour(
    kind: Kind, backbone: str, n_atoms: int | None, n_train: int | None, hours: float, *, evidential: bool
) -> TrainingConfig:
    """As many epochs as fit into the time."""
    sizes, own = SIZES["hour"][kind], HOUR[backbone]
    n_train = n_train or sizes.n_train
    structures = hours * own.structures / (n_atoms or MEAN_ATOMS) ** 1.5
    epochs = max(2, round(structures / n_train))
    return TrainingConfig(
        forces_weight=0.9 if evidential else 0.99,
        batch_size=sizes.batch_size,
        max_epochs=epochs,
        validate_every=max(1, epochs // HOUR_VALIDATIONS),
        learning_rate=own.learning_rate,
        schedule=CosineSchedule(warmup_steps=min(1000, epochs * n_train // sizes.batch_size // 10)),
        compile=hours >= COMPILED_HOURS,
        threads=1,
        tensorboard=False,
    )


def _as_published(settings: paper.Training, kind: Kind) -> TrainingConfig:
    """Until the learning rate has decayed by its factor, or patience ends."""
    sizes = paper.SIZES[kind]
    steps_per_epoch = math.ceil(sizes.n_train / sizes.batch_size)
    return TrainingConfig(
        forces_weight=settings.forces_weight,
        batch_size=sizes.batch_size,
        max_epochs=math.ceil(settings.decay_steps / steps_per_epoch),
        patience=settings.patience,
        learning_rate=settings.learning_rate,
        schedule=ExponentialSchedule(
            warmup_steps=settings.warmup_steps,
            decay_steps=settings.decay_steps,
            decay_rate=settings.decay_rate,
        ),
        ema_decay=settings.ema_decay,
        compile=True,
        threads=1,
        tensorboard=False,
    )
