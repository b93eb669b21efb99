"""Which process of a distributed training this one is, before the processes find each other."""

import os

from sigmaff.training.config import TrainingConfig

RANKS = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Set by torchrun, by Lightning Fabric and by SLURM."""


def is_helper(config: TrainingConfig) -> bool:
    """Whether this process was started to help the first one, which writes the files."""
    n_processes = config.devices * config.n_nodes
    return n_processes > 1 and any(int(os.environ.get(name, "0")) > 0 for name in RANKS)
