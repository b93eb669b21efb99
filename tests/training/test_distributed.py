"""Two processes take the same steps as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import training_case as case
from sigmaff.training.batches import batch_share, epoch_batches
from sigmaff.training.checkpoint import read_checkpoint

TOLERANCE, RELATIVE = 1e-6, 3e-4
"""Adam divides by the size of past gradients: of a weight whose gradient is mostly rounding, it makes a step of it."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs by two processes, which Fabric starts as a user's command would be started."""
    directory = tmp_path_factory.mktemp("pair")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, case.__file__, "pair", str(directory)], check=True, env=environment, timeout=900)
    return directory


@pytest.mark.parametrize("name", case.PAIRS)
def test_two_processes_equal_one(tmp_path: Path, pair: Path, name: str) -> None:
    build, batch_size = case.PAIRS[name]
    result = case.run(build(), case.CONFIG.model_copy(update={"batch_size": batch_size}), tmp_path)
    expected, _, _ = read_checkpoint(tmp_path / "checkpoint.safetensors")
    tensors, state, _ = read_checkpoint(pair / name / "checkpoint.safetensors")
    for group in ("weights", "average", "best", "moments"):
        for key, value in expected[group].items():
            torch.testing.assert_close(tensors[group][key], value, atol=TOLERANCE, rtol=RELATIVE)
    assert [r.step for r in state.history] == [r.step for r in result.history]
    for ours, theirs in zip(state.history, result.history, strict=True):
        assert ours.validation_loss == pytest.approx(theirs.validation_loss, abs=1e-5)
        assert ours.train_loss == pytest.approx(theirs.train_loss, abs=1e-5)


def test_shares_make_up_the_batch() -> None:
    n_atoms = torch.tensor([3, 9, 3, 9, 3, 9, 3])
    (batch,) = epoch_batches(7, 1, seed=0, epoch=0)
    for n_processes in (1, 2, 3, 9):
        shares = [batch_share(batch, n_atoms, rank, n_processes) for rank in range(n_processes)]
        assert sum(share[1] for share in shares) == pytest.approx(1.0)
        assert sum(share[2] for share in shares) == pytest.approx(1.0)
        taken = torch.cat([indices for indices, fraction, _ in shares if fraction > 0])
        assert sorted(taken.tolist()) == list(range(7))
