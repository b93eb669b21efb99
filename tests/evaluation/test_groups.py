"""Errors and coverage of groups of structures, and of a set out of distribution."""

from dataclasses import replace

import numpy as np
import pytest
from ase.build import molecule
from scipy.stats import norm

from sigmaff.evaluation import Evaluation, full_summary, group_summaries, summarize
from sigmaff.models.prediction import Provenance


def known_errors(factor: float, n: int, seed: int) -> Evaluation:
    """Gaussian errors whose σ is stated too small by a factor."""
    rng, atoms = np.random.default_rng(seed), molecule("H2O")
    energy_error, forces_error = 0.1 * rng.normal(size=n), 0.3 * rng.normal(size=(3 * n, 3))
    return Evaluation(
        name="water",
        structure_index=np.repeat(np.arange(n), 3),
        atomic_numbers=np.tile(atoms.numbers, n),
        positions=np.tile(atoms.positions, (n, 1)),
        energy=np.zeros(n),
        energy_predicted=energy_error,
        energy_std_raw=np.full(n, 0.1 / factor),
        forces=np.zeros((3 * n, 3)),
        forces_predicted=forces_error,
        forces_std_raw=np.full((3 * n, 3), 0.3 / factor),
        provenance=Provenance(method="lnk", kind="epistemic", covariance="full", forces_std="exact"),
    )


def test_the_other_set_has_coverage_and_rms_z_beside_its_auroc() -> None:
    """Closed form: σ too small by f covers 2Φ(1/f) − 1 of the errors, and their rms over σ is f."""
    summary = summarize(known_errors(1.0, 800, 0), known_errors(2.0, 900, 1))
    for quantity in ("energy", "forces"):
        assert summary[f"{quantity}_rms_z"] == pytest.approx(1.0, abs=0.08)
        assert summary[f"ood_{quantity}_rms_z"] == pytest.approx(2.0, abs=0.12)
        assert summary[f"ood_{quantity}_coverage_68"] == pytest.approx(2 * norm.cdf(0.5) - 1, abs=0.04)
        assert summary[f"ood_{quantity}_coverage_95"] == pytest.approx(2 * norm.cdf(0.98) - 1, abs=0.04)
    assert summarize(known_errors(1.0, 5, 0))["ood_forces_rms_z"] is None


def test_groups_are_evaluated_as_if_alone() -> None:
    evaluation = replace(known_errors(1.0, 40, 2), groups=("bulk",) * 25 + ("surface",) * 15)
    groups = group_summaries(evaluation)
    assert list(groups) == ["bulk", "surface"]
    parts = {"bulk": slice(0, 25), "surface": slice(25, 40)}
    for name, part in parts.items():
        atoms = slice(3 * part.start, 3 * part.stop)
        alone = replace(
            evaluation,
            structure_index=evaluation.structure_index[atoms] - part.start,
            **{key: getattr(evaluation, key)[atoms] for key in ("atomic_numbers", "positions")},
            **{key: getattr(evaluation, key)[part] for key in ("energy", "energy_predicted", "energy_std_raw")},
            **{key: getattr(evaluation, key)[atoms] for key in ("forces", "forces_predicted", "forces_std_raw")},
            groups=None,
        )
        expected = summarize(alone)
        assert groups[name] == pytest.approx({key: expected[key] for key in groups[name]})
    assert full_summary(evaluation)["groups"] == groups
    assert "groups" not in full_summary(replace(evaluation, groups=None))
