"""JSON files of a campaign's rounds."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import to_jsonable_python

from sigmaff.errors import DataError
from sigmaff.files import write_json
from sigmaff.models.record import BackboneRecord, Figures
from sigmaff.simulation.md import Safety, Threshold

Content = TypeVar("Content")


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)


class Explored(_File):
    """``explored.json``: the exploration of a round."""

    n_candidates: int
    share_above: float | None  # of the frames asked for, beyond the limit or not reached; None without a limit
    endings: dict[str, int]  # number of replicas by ending
    limit: Threshold | None = None  # on the largest force σ of an atom
    safety: Safety | None = None  # stops of replicas beside it

    def is_promised(self, trust_below: float | str | None) -> bool:
        """Whether the limit on σ is guaranteed by risk control, or given by the user."""
        return self.limit is not None and (self.limit.accepted is not None or trust_below != "auto")


class Trajectories(_File):
    """``explore/<temperature>K.json``: the replicas at one temperature."""

    n_wanted: int  # frames asked for
    endings: dict[str, int]


class FreshErrors(_File):
    """Errors of a model on the labels of the next round, eV and Å."""

    energy_mae_per_atom: float
    forces_mae: float
    forces_rmse: float
    forces_std: float | None


class RoundSummary(_File):
    """``round.json``: one round."""

    round: int
    n_labels: int  # of all rounds so far
    n_new: int
    n_selected: int
    n_set_aside: int  # of all rounds so far
    engine_calls: int  # of all rounds so far
    backbone: BackboneRecord | None = None  # None: the network is adopted
    seconds: float | None  # of training and calibration
    fresh: FreshErrors | None  # of the selected labels of this round
    random: FreshErrors | None = None  # of its labels drawn at random from the exploration, which are held out
    n_held_out: int | None = None  # of all rounds so far; None: a round of version 0.1
    test: Figures | None

    def test_value(self, name: str) -> float | None:
        """A metric of the test structures."""
        value = (self.test or {}).get(name)
        return value if isinstance(value, float | int) else None


class SetAside(_File):
    """A structure of ``failures.json``, which could not be labelled."""

    label_id: str
    errors: list[str]


def read_file(path: Path, kind: type[Content]) -> Content:
    try:
        return TypeAdapter(kind).validate_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{path} is damaged or not written by a campaign; remove it to compute it again") from None


def write_file(path: Path, content: Any, *, force: bool = False) -> None:
    write_json(path, to_jsonable_python(content), force=force)
