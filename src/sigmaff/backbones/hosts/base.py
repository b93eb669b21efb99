"""Base class of adapters: a network of another program, the host, as a backbone.

Its embedding has the host's features and, after them, the host's own energy of the atom. So any readout, charges,
dispersion or repulsion of the host stays as it is, and a head learns what the labels say beyond it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from sigmaff.backbones.base import Backbone, BackboneSettings
from sigmaff.backbones.linear_response import AutomaticResponse, LinearResponse, PlainResponse
from sigmaff.errors import ConfigError
from sigmaff.graph import AtomicGraph, Embedding
from sigmaff.graph.neighbors import MIN_DISTANCE


class Origin(BaseModel):
    """Where a network comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str  # as the user named it
    package: str  # that its classes are from, and its version
    version: str
    file: str | None = None  # absolute path
    sha256: str | None = None  # of the file
    licence: str | None = None  # None: not known
    weights: Literal["copied", "referenced"] = "copied"  # into the model file, or read again from ``file``


class HostConfig(BackboneSettings):
    """An adopted network, as the model file describes it."""

    name: Literal["host"] = "host"
    adapter: str = Field(description="name of the adapter, as in mace")
    cutoff: float = Field(gt=MIN_DISTANCE, le=100, description="radius within which atoms are neighbours, Å")
    n_features: int = Field(ge=1, le=100_000, description="features of an atom")
    description: dict[str, Any] = Field(description="what the host's classes need to build the network again")
    origin: Origin = Field(description="where the network comes from")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a description is a dictionary


class AdoptConfig(BackboneSettings):
    """A network of another program that is still to be read."""

    name: Literal["adopt"] = "adopt"
    adopt: str = Field(description="adapter:source, as in mace:MACE-OFF23_small.model or sevennet:7net-0")
    trust: bool = Field(False, description="whether a file that can run programs (a pickle, TorchScript) may be read")
    cutoff: ClassVar[float] = 0.0  # Å; not known before it is read


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an adapter found in a source."""

    config: HostConfig
    references: dict[int, float]  # eV; the host's energy of an isolated atom of each element that it knows
    tensors: dict[str, Tensor]  # state of the backbone; empty if its weights are referenced


class Host(Backbone):
    """An adopted network. It is never trained here.

    A subclass sets ``network`` in ``__init__`` from ``config.description``, with the classes of its package, which it
    imports inside of functions.
    """

    Config = HostConfig
    package: ClassVar[str]
    """Name to install the host by."""
    transformable: ClassVar[bool] = False
    """Whether torch.func goes through ``forward``."""

    def __init__(self, config: HostConfig) -> None:
        embedding = Embedding(
            n_features=config.n_features, activation=nn.Identity(), readout_bias=False, has_own_energy=True
        )
        super().__init__(config.cutoff, embedding)
        self.config = config

    @classmethod
    @abstractmethod
    def read(cls, source: str, *, trust: bool) -> Reading:
        """Read a network of the host.

        Arguments:
            source: a path, or a name that the host's package knows the weights of. Nothing is downloaded.
            trust: whether a file that can run programs may be read.
        """

    @classmethod
    def describe(cls, calculator: Any) -> Reading:
        """What ``read`` would find, of a network in memory: in the host's ASE calculator. Nothing in it is changed."""
        raise ConfigError(f"a calculator of {cls.package} cannot be adopted; name the source of its network")

    @abstractmethod
    def forward(self, graph: AtomicGraph) -> Tensor:
        """Features, and the host's energy of the atom less its reference, eV: (n_atoms, n_features + 1)."""

    def linear_response(self, graph: AtomicGraph, *, all_layers: bool = False) -> LinearResponse:
        return AutomaticResponse(self, graph) if self.transformable else PlainResponse(self, graph)
