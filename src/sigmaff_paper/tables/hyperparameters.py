"""How the paper's models are trained: Tables 8, 9 and 10."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["md17", "qm7x"]
"""Kind of data."""


@dataclass(frozen=True)
class Training:
    """A column of Table 9."""

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    decay_rate: float = 0.01
    ema_decay: float = 0.999
    patience: int = 50
    forces_weight: float = 0.99  # ρ


TRAININGS: dict[tuple[str, str, Kind], Training] = {  # backbone, method, data
    ("dimenet++", "dropout", "qm7x"): Training(0.002, 550, 6_600_000),
    ("dimenet++", "dropout", "md17"): Training(0.001, 10_000, 1_200_000),
    ("dimenet++", "evidential", "qm7x"): Training(0.001, 550, 660_000, ema_decay=0.99, forces_weight=0.9),
    ("dimenet++", "evidential", "md17"): Training(0.001, 10_000, 1_200_000, forces_weight=0.9),
    ("schnet", "dropout", "qm7x"): Training(0.001, 1000, 4_000_000),
    ("schnet", "dropout", "md17"): Training(0.001, 10_000, 4_000_000),
    ("schnet", "evidential", "qm7x"): Training(0.001, 1000, 4_000_000, forces_weight=0.9),
    ("schnet", "evidential", "md17"): Training(0.001, 1000, 4_000_000, forces_weight=0.9),
}


FIXED_LNK_RATE, LNK_RATE = 0.01, 0.001
"""Learning rates of Table 8. Patience and ρ are those of dropout in Table 9."""
N_INDUCING: dict[Kind, int] = {"qm7x": 256, "md17": 100}
"""Inducing points of Table 8."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of structures. The paper's are a column of Table 10."""

    batch_size: int
    n_train: int
    n_validation: int
    n_test: int | None = None  # None: all others; the paper does not state it
    n_ood: int = 0  # of each other set; the paper does not state it


SIZES: dict[Kind, Sizes] = {
    "qm7x": Sizes(batch_size=32, n_train=33_213, n_validation=4151),
    "md17": Sizes(batch_size=1, n_train=1000, n_validation=1000),
}

DROPOUT_PERCENT = 20
N_SAMPLES, N_MORE_SAMPLES = 5, 69
ENSEMBLE_SIZE = 5
COPIES_APART = 15.0  # Å
