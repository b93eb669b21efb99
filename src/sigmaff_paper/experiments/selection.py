"""Choose cells of an experiment by molecule, backbone and method."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sigmaff.errors import ConfigError
from sigmaff.runs.jobs import Job
from sigmaff_paper.experiments.study import COPIES

Only = Mapping[str, tuple[str, ...]]
"""Names to choose, by "molecule", "backbone" and "method"; a key that is not there chooses all."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a job makes: one entry of the paper's tables."""

    molecule: str  # of MD17, or qm7x
    backbone: str
    method: str

    @classmethod
    def of(cls, job: Job) -> "Cell | None":
        """Read the name of a job, scale/data/backbone/method; ``None`` if it belongs to no model."""
        parts = job.name.split("/")
        if len(parts) < 4:
            return None
        return cls(molecule=parts[1].removeprefix("md17-"), backbone=parts[2], method=parts[-1].removesuffix(COPIES))


KEYS = ("molecule", "backbone", "method")


def read_only(texts: Iterable[str]) -> Only:
    """Read choices such as ``molecule=ethanol,uracil``. Several of one key add up."""
    only: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, _, names = text.partition("=")
        values = tuple(name.strip() for name in names.split(",") if name.strip())
        if key not in KEYS or not values:
            raise ConfigError(f"--only {text}: write {', '.join(f'{known}=NAME,NAME' for known in KEYS)}")
        only[key] = only.get(key, ()) + values
    return only


def select(jobs: Sequence[Job], only: Only, name: str) -> list[Job]:
    """Return the chosen jobs and all that they need, in their order.

    Arguments:
        name: of the experiment, for errors.
    """
    if not only:
        return list(jobs)
    cells = {job.name: cell for job in jobs if (cell := Cell.of(job)) is not None}
    for key, values in only.items():
        known = dict.fromkeys(str(asdict(cell)[key]) for cell in cells.values())
        if unknown := [value for value in values if value not in known]:
            raise ConfigError(f"--only: {name} has no {key} {', '.join(unknown)}; known: {', '.join(known) or 'none'}")
    needed = {job for job, cell in cells.items() if all(asdict(cell)[key] in values for key, values in only.items())}
    if not needed:
        raise ConfigError(f"--only: {name} has no cell with all of these names")
    for job in reversed(jobs):  # each comes after the jobs that it needs
        if job.name in needed:
            needed.update(job.after)
    return [job for job in jobs if job.name in needed]
