"""Numbers of parameters, as published for the three backbones with their own readout, four outputs, and an LNK."""

import pytest
from torch import nn

from sigmaff.backbones import BackboneConfig, DimeNetPPConfig, NequIPConfig, SchNetConfig
from sigmaff.data import DatasetStatistics
from sigmaff.heads import LNK, DeterministicConfig, EvidentialConfig, HeadConfig, LNKConfig
from sigmaff.models import Potential, PotentialConfig

STATISTICS = DatasetStatistics(
    elements=(1, 6, 7, 8),
    reference_energies=dict.fromkeys((1, 6, 7, 8), 0.0),
    scale=1.0,
    mean_neighbors=8.0,
    n_structures=9,
)


def potential_with(backbone: BackboneConfig, head: HeadConfig) -> Potential:
    return Potential(PotentialConfig(backbone=backbone, head=head), STATISTICS)


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("backbone", "one_output", "four_outputs"),
    [
        (SchNetConfig(), 455_809, 456_004),
        (DimeNetPPConfig(), 1_885_830, 1_889_670),
        (NequIPConfig(), 189_080, 189_128),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_with_a_readout(backbone: BackboneConfig, one_output: int, four_outputs: int):
    """Of one output (an energy), and of four (an evidential distribution)."""
    potential = potential_with(backbone, DeterministicConfig())
    assert n_parameters(potential) == one_output
    assert all(parameter.requires_grad for parameter in potential.parameters())
    assert n_parameters(potential_with(backbone, EvidentialConfig())) == four_outputs


@pytest.mark.parametrize(
    ("backbone", "mean", "n_inducing", "n_features", "total"),
    [
        (SchNetConfig(), "constant", 84, 64, 468_263),
        (DimeNetPPConfig(), "constant", 100, 256, 1_920_253),
        (NequIPConfig(), "residual", 84, 16, 197_567),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_with_an_lnk(backbone: BackboneConfig, mean: str, n_inducing: int, n_features: int, total: int):
    """Inducing points, means, Cholesky factor, three numbers of kernel and mean; the noise is not counted.

    The published total of NequIP counts its readout, which a residual LNK keeps. The published total of DimeNet++,
    1,920,150, leaves out the means and the three numbers.
    """
    config = LNKConfig(kernel="rbf", mean=mean, n_inducing=n_inducing, n_samples=1, n_frequencies=1)
    potential = potential_with(backbone, config)
    head = potential.head
    assert isinstance(head, LNK)
    of_gp = n_inducing * n_features + n_inducing + n_inducing**2 + 3
    n_readout = 0 if head.readout is None else n_parameters(head.readout)
    assert n_parameters(head) - head.log_noise.numel() - n_readout == of_gp
    assert n_parameters(potential) - head.log_noise.numel() == total
