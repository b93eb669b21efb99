"""Tables of radial functions: close to the functions, conservative, and twice continuously differentiable."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.interpolate import BPoly
from torch import Tensor

from contract import BACKBONES, ETHANOL, STATISTICS, WATER, graph_of
from sigmaff.backbones import BackboneConfig, build_backbone
from sigmaff.backbones.radial_table import START, TOLERANCE, RadialTable
from sigmaff.errors import ConfigError

CUTOFF = 4.0


def waves(distance: Tensor) -> Tensor:
    """Smooth functions with closed forms: a damped sine and a Gaussian."""
    return torch.stack([torch.sin(5.0 * distance) / distance, torch.exp(-2.0 * (distance - 1.5).square())], dim=-1)


def wave_slopes(distance: Tensor) -> Tensor:
    gaussian = torch.exp(-2.0 * (distance - 1.5).square())
    sine = 5.0 * torch.cos(5.0 * distance) / distance - torch.sin(5.0 * distance) / distance.square()
    return torch.stack([sine, -4.0 * (distance - 1.5) * gaussian], dim=-1)


@pytest.fixture(scope="module")
def table() -> RadialTable:
    return RadialTable(waves, CUTOFF, torch.float64)


def test_values_and_slopes_of_closed_forms(table: RadialTable):
    distance = torch.linspace(START, CUTOFF, 1001, dtype=torch.float64)
    values, slopes = table.with_slopes(distance)
    assert table.error <= TOLERANCE
    for found, expected in ((values, waves(distance)), (slopes, wave_slopes(distance))):
        assert (found - expected).abs().max() <= 1.01 * TOLERANCE * expected.abs().max()


def test_it_is_the_spline_that_scipy_makes_of_its_knots(table: RadialTable):
    knots = np.linspace(START, CUTOFF, table.n_intervals + 1)
    scales = table.spacing ** np.arange(3.0)
    derivatives = table.rows.numpy().reshape(len(knots), 3, 2) / scales[:, None]
    oracle = BPoly.from_derivatives(knots, derivatives)
    distance = np.random.default_rng(0).uniform(START, CUTOFF, 200)
    values, slopes = table.with_slopes(torch.as_tensor(distance))
    np.testing.assert_allclose(values, oracle(distance), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slopes, oracle.derivative()(distance), rtol=1e-10, atol=1e-10)


def test_curvature_is_continuous_at_knots(table: RadialTable):
    """Second differences of values on both sides of a knot agree to the order of the step."""
    knots = torch.linspace(START, CUTOFF, table.n_intervals + 1, dtype=torch.float64)[1:-1]
    step = 1e-6
    (left, at), (_, right) = (
        (table.with_slopes(knots - step)[1], table.with_slopes(knots)[1]),
        (table.with_slopes(knots)[1], table.with_slopes(knots + step)[1]),
    )
    below, above = (at - left) / step, (right - at) / step
    torch.testing.assert_close(below, above, rtol=1e-3, atol=2e-3)


def test_derivatives_are_those_of_the_table_itself(table: RadialTable):
    """So forces are conservative whatever the error of the table is."""
    distance = torch.tensor([0.3, 1.234, 2.5, 3.99], dtype=torch.float64)
    step = 1e-6
    numerical = (table(distance + step) - table(distance - step)) / (2 * step)
    slopes = torch.func.jvp(table, (distance,), (torch.ones_like(distance),))[1]
    torch.testing.assert_close(slopes, numerical, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(slopes, table.with_slopes(distance)[1])


def test_beyond_the_cutoff_nothing_changes(table: RadialTable):
    values, slopes = table.with_slopes(torch.tensor([CUTOFF, CUTOFF + 0.5, CUTOFF + 5.0], dtype=torch.float64))
    torch.testing.assert_close(values[1:], values[:1].expand(2, -1))
    assert not slopes[1:].any()


def test_functions_with_a_kink_are_refused():
    with pytest.raises(ConfigError, match="not smooth"):
        RadialTable(lambda d: (d - 2.0123).abs().unsqueeze(-1), CUTOFF, torch.float64)


@pytest.mark.parametrize("config", BACKBONES, ids=lambda config: f"{config.name}-{getattr(config, 'l_max', '')}")
def test_tabulated_backbones_embed_as_before(config: BackboneConfig):
    torch.manual_seed(0)
    backbone = build_backbone(config, STATISTICS.elements, 8.0).double().eval()
    graph = graph_of(ETHANOL, WATER)
    fast = deepcopy(backbone)
    assert 0 < fast.tabulate() <= TOLERANCE
    with torch.no_grad():
        expected = backbone(backbone.prepare(graph))
        found = fast(fast.prepare(graph))
    torch.testing.assert_close(found, expected, rtol=0, atol=20 * TOLERANCE * float(expected.abs().max()))
    assert not torch.equal(found, expected)
