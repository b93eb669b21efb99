"""Splits: disjoint, of the sizes asked for, the same for the same seed, and honest about time."""

import numpy as np
import pytest

from sigmaff.data import Split, SplitConfig, make_split
from sigmaff.errors import ConfigError


def parts(split: Split) -> list[set[int]]:
    return [set(split.train.tolist()), set(split.validation.tolist()), set(split.test.tolist())]


@pytest.mark.parametrize("kind", ["random", "blocked"])
@pytest.mark.parametrize("n_test", [None, 5, 0])
def test_sizes_and_disjointness(kind, n_test):
    train, validation, test = parts(make_split(SplitConfig(kind=kind, n_train=20, n_validation=10, n_test=n_test), 50))
    assert (len(train), len(validation), len(test)) == (20, 10, 20 if n_test is None else n_test)
    assert len(train | validation | test) == len(train) + len(validation) + len(test)
    assert train | validation | test <= set(range(50))


def test_random_split_depends_on_the_seed_alone():
    config = SplitConfig(n_train=20, n_validation=10)
    assert parts(make_split(config, 50)) == parts(make_split(config, 50))
    assert parts(make_split(config, 50)) != parts(make_split(config.model_copy(update={"seed": 1}), 50))


def test_blocks_follow_each_other_in_time_with_gaps():
    split = make_split(SplitConfig(kind="blocked", n_train=10, n_validation=4, gap=3), 30)
    np.testing.assert_array_equal(split.train, np.arange(10))
    np.testing.assert_array_equal(split.validation, np.arange(13, 17))
    np.testing.assert_array_equal(split.test, np.arange(20, 30))


def test_blocks_follow_the_time_of_the_trajectory_not_of_the_file():
    time = np.random.default_rng(0).permutation(1000)[:60]
    split = make_split(SplitConfig(kind="blocked", n_train=30, n_validation=10), 60, time_index=time)
    assert time[split.train].max() < time[split.validation].min()
    assert time[split.validation].max() < time[split.test].min()


OFFICIAL = {"train": np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]), "test": np.array([[5, 6, 7], [0, 1, 2]])}


@pytest.mark.parametrize("fold", [0, 1])
def test_official_split_uses_no_label_outside_of_it(fold):
    config = SplitConfig(kind="official", n_train=3, n_validation=2, fold=fold)
    train, validation, test = parts(make_split(config, 20, OFFICIAL))
    assert train | validation == set(OFFICIAL["train"][fold].tolist())
    assert not train & validation
    assert test == set(OFFICIAL["test"][fold].tolist())


@pytest.mark.parametrize(
    ("config", "official", "message"),
    [
        (
            SplitConfig(n_train=40, n_validation=20),
            None,
            "has 50 structures, too few for n_train = 40, n_validation = 20",
        ),
        (SplitConfig(n_train=40, n_validation=5, n_test=6), None, "n_test = 6"),
        (SplitConfig(kind="blocked", n_train=40, n_validation=8, gap=5), None, "gaps of 5"),
        (SplitConfig(kind="official", n_train=3), None, "no official split"),
        (
            SplitConfig(kind="official", n_train=3, n_validation=2, fold=2),
            OFFICIAL,
            "fold is 2, .* 2 official splits",
        ),
        (SplitConfig(kind="official", n_train=4, n_validation=2), OFFICIAL, "has 5 training and 3 test"),
        (
            SplitConfig(kind="official", n_train=3, n_validation=2, n_test=4),
            OFFICIAL,
            "has 5 training and 3 test",
        ),
    ],
)
def test_too_few_structures(config, official, message):
    with pytest.raises(ConfigError, match=message):
        make_split(config, 50, official)
