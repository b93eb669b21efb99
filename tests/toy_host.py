"""The smallest adapter: a network that stands for one of another program. Its readout is not linear.

Importing this module makes it known by the name ``toy``; ``toy:name`` reads a network whose weights follow from name.
"""

import torch
from torch import Tensor, nn

from sigmaff.backbones import HostConfig, SchNetConfig, build_backbone
from sigmaff.backbones.hosts import ADAPTERS, Host, Origin, Reading
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph

REFERENCES = {1: -13.0, 6: -1030.0, 7: -1480.0, 8: -2040.0}
N_FEATURES = 6


class ToyHost(Host):
    """SchNet, a hidden layer whose output are the features, and a product of two of them as energy."""

    package = "torch"

    def __init__(self, config: HostConfig) -> None:
        super().__init__(config)
        inner = SchNetConfig(**config.description["schnet"])
        self.network = build_backbone(inner, tuple(REFERENCES), 8.0)
        self.hidden = nn.Linear(inner.n_hidden // 2, N_FEATURES)

    @classmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        if not trust:
            raise ConfigError(f"{source}: trust is needed")
        return reading(source)

    def forward(self, graph: AtomicGraph) -> Tensor:
        features = torch.tanh(self.hidden(self.network(graph)))
        energy = features[:, 0] * features[:, 1] + features[:, 2:].square().sum(-1)
        return torch.cat([features, energy.unsqueeze(-1)], dim=-1)


def toy_config(source: str = "a", cutoff: float = 4.5) -> HostConfig:
    schnet = SchNetConfig(cutoff=cutoff, n_hidden=16, n_filters=16, n_interactions=2, n_gaussians=12)
    return HostConfig(
        adapter="toy",
        cutoff=cutoff,
        n_features=N_FEATURES,
        description={"schnet": schnet.model_dump(mode="json")},
        origin=Origin(source=f"toy:{source}", package="torch", version=torch.__version__, licence="MIT"),
    )


def reading(source: str) -> Reading:
    """A network whose weights follow from its name."""
    config = toy_config(source)
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, source)))
        tensors = ToyHost(config).double().state_dict()
    return Reading(config=config, references=REFERENCES, tensors=tensors)


ADAPTERS["toy"] = "toy_host:ToyHost"
