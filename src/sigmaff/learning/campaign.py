"""A campaign: explore, select, label, learn, and repeat until there is a reason to stop.

Every stage writes its result to a file atomically, is skipped if that file exists, and depends on files and seeds
alone. So the same call resumes after a kill at any moment, and arrives at the same data set.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from ase import Atoms

from sigmaff.allocator import return_free_memory
from sigmaff.backbones import AdoptConfig
from sigmaff.data import label_structures, read_structures, require_elements
from sigmaff.data.labelling import engine_state, origin_of, require_engine
from sigmaff.errors import DataError
from sigmaff.evaluation import evaluate, summarize
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.extras import require
from sigmaff.learning.config import CampaignConfig, SelectionMethod
from sigmaff.learning.directory import Context, Directory, Round, read_frames, write_frames
from sigmaff.learning.explore import explore
from sigmaff.learning.fit import fit_round
from sigmaff.learning.labels import (
    engine_calls,
    fresh_errors,
    keep_label,
    label_round,
    labelled_in,
    labels_so_far,
    set_aside,
)
from sigmaff.learning.records import Explored, RoundSummary, read_file, write_file
from sigmaff.learning.selection import Pick, in_window, largest_std, possible_method, replaced_method, select
from sigmaff.learning.start import check_sources, start_structures
from sigmaff.models.adopt import read_potential
from sigmaff.models.file import load
from sigmaff.models.record import Figures
from sigmaff.progress import Listener
from sigmaff.runs.stages import UNKNOWN_TO_HOST
from sigmaff.tasks import workers

TEST_MEASURES = (
    "energy_mae",
    "energy_mae_per_atom",
    "forces_mae",
    "forces_rmse",
    "energy_calibration",
    "forces_calibration",
    "forces_spearman",
)
"""Of a summary, what a round keeps of its test."""
LATE = ("scipy.stats", "sigmaff.learning.report")
"""Modules that later rounds use: calibration, and pages with figures."""


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    directory: Path
    rounds: tuple[RoundSummary, ...]
    reason: str  # why it is over

    @property
    def model_path(self) -> Path:
        return Directory(self.directory).round(len(self.rounds) - 1).model


def learn(
    config: CampaignConfig, listener: Listener | None = None, *, force: bool = False, skip_checks: bool = False
) -> CampaignResult:
    """Run a campaign. Call it again with the same settings to resume it.

    Arguments:
        config: settings; ``config.output`` is the directory of the campaign.
        listener: progress callbacks; ``None`` is silent.
        force: remove a campaign in that directory and begin anew.
        skip_checks: do not check the structures to start from and to test on first.
    """
    _load_packages(config)
    directory = Directory(config.output)
    try:
        with directory.folder.lock(), ExitStack() as stack:
            if not skip_checks and (force or not directory.round(0).selected.exists()):
                check_sources(config, listener)
            config = directory.claim(config, force=force)
            client = cache(lambda: stack.enter_context(workers(config.cluster)))
            return _Campaign(Context(config, listener or Listener(), client), directory).run()
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or f"stopped; run the same command to resume {directory.path}") from None


def _load_packages(config: CampaignConfig) -> None:
    """Load what rounds use, so that memory does not grow by it later. A missing package is a ``ConfigError`` now."""
    training = config.training.packages if config.trains else []
    packages = (*training, "distributed", "jinja2", "matplotlib")
    require("a campaign", *packages)
    for name in (*packages, *LATE):
        import_module(name)
    if config.cluster.scheduler is None:  # else the engine runs where that scheduler's workers are
        require_engine(config.engine)


class _Campaign:
    """A campaign under way."""

    def __init__(self, context: Context, directory: Directory) -> None:
        self.context, self.config, self.listener, self.directory = context, context.config, context.listener, directory
        self.rounds: list[RoundSummary] = []

    def run(self) -> CampaignResult:
        self.directory.end(None)
        first = self.directory.round(0)
        self._begin(first)
        self._learn(first)
        number, reason = 1, None
        while reason is None:
            reason = self._round(self.directory.round(number))
            number += 1
        self.directory.end(reason)
        self._report(reason)
        return CampaignResult(directory=self.directory.path, rounds=tuple(self.rounds), reason=reason)

    def _report(self, reason: str | None) -> None:
        from sigmaff.learning.report import write_campaign_report  # brings matplotlib

        write_campaign_report(self.directory, self.rounds, reason)

    def _begin(self, round_: Round) -> None:
        if not round_.selected.exists():
            structures = start_structures(self.config.start, self._rng(0, 0), engine_state(self.config.engine))
            if isinstance(backbone := self.config.model.backbone, AdoptConfig):
                self.listener.stage(f"reading {backbone.adopt}")
                require_elements(
                    label_structures(structures, ()), read_potential(backbone).elements, reason=UNKNOWN_TO_HOST
                )
            if self.config.start.use_labels:
                for index, atoms in enumerate(structures):
                    keep_label(round_, index, atoms)
            write_frames(round_.selected, structures)

    def _round(self, round_: Round) -> str | None:
        """Run one round; the reason to stop, or ``None``."""
        stop, n_labels = self.config.stop, self.rounds[-1].n_labels
        if round_.number > stop.max_rounds:
            return f"{stop.max_rounds} rounds are done (stop.max_rounds)"
        if stop.max_labels is not None and n_labels >= stop.max_labels:
            return f"{n_labels} structures are labelled (stop.max_labels)"
        self.listener.stage(f"round {round_.number}: exploring")
        explored = explore(self.context, round_)
        if (reason := self._reached(explored)) is not None:
            return reason
        if not self._select(round_, explored):
            return f"no candidate of round {round_.number} is worth a label: {_why_none(explored)}"
        self._learn(round_)
        return None if self.rounds[-1].n_new else f"no structure of round {round_.number} could be labelled"

    def _reached(self, explored: Explored) -> str | None:
        """The aims, if all that are given hold for the model of this exploration."""
        stop, last = self.config.stop, self.rounds[-1]
        share = explored.share_above if explored.is_promised(self.config.explore.trust_below) else None
        aims = (
            ("share of exploration beyond the limit on σ", share, stop.share_above, ""),
            ("test force MAE", last.test_value("forces_mae"), stop.forces_mae, " eV/Å"),
            ("calibration score of force σ", last.test_value("forces_calibration"), stop.calibration, ""),
        )
        given = [(name, value, aim, unit) for name, value, aim, unit in aims if aim is not None]
        if not given or any(value is None or value > aim for _, value, aim, _ in given):
            return None
        texts = (f"{name} {value:.3g}{unit} (at most {aim:g})" for name, value, aim, unit in given)
        return f"converged: {', '.join(texts)}"

    def _select(self, round_: Round, explored: Explored) -> list[Atoms]:
        """The structures to label, each with the model's σ and the reason for its choice; none if none is worth it.

        Those to hold out are drawn first, from all candidates, so that they are like frames of the exploration.
        """
        if round_.selected.exists():
            return read_frames(round_.selected)
        self.listener.stage(f"round {round_.number}: selecting")
        candidates, settings = read_frames(round_.candidates), self.config.select
        n, n_drawn = self._budget(round_, len(candidates))
        order = self._rng(round_.number, 3).permutation(len(candidates))
        drawn, rest = ([candidates[index] for index in np.sort(part)] for part in (order[:n_drawn], order[n_drawn:]))
        settings = settings.model_copy(update={"n": n - n_drawn})
        if not explored.is_promised(self.config.explore.trust_below):
            settings = settings.model_copy(update={"lower": 0.0})
        limit = None if explored.limit is None else explored.limit.value
        model = load(round_.before.model)
        if words := replaced_method(model, settings.method):
            self.listener.warn(f"round {round_.number}: {words}")
        picks = select(model, rest, settings, limit=limit, rng=self._rng(round_.number, 2))
        if not picks and n > n_drawn:
            return []
        method = possible_method(model, settings.method)
        chosen = [_explained(rest[pick.index], method, pick) for pick in picks]
        held_out = [_explained(atoms, "random", held_out=True) for atoms in drawn]
        words = "" if settings.method == "random" else f" of {len(in_window(rest, settings, limit))} that qualify"
        self.listener.stage(f"round {round_.number}: {len(picks)}{words}, and {n_drawn} at random to hold out")
        if chosen or held_out:
            write_frames(round_.selected, chosen + held_out)
        return chosen + held_out

    def _budget(self, round_: Round, n_candidates: int) -> tuple[int, int]:
        """Labels of the round, and how many of them to hold out: one in ``hold_out_every`` of all labels."""
        labelled, every = labels_so_far(round_.before, self.config.hold_out_every), self.config.hold_out_every
        n_held_out = sum(bool(atoms.info["held_out"]) for atoms in labelled)
        left = n_candidates if self.config.stop.max_labels is None else self.config.stop.max_labels - len(labelled)
        n = min(self.config.select.n, n_candidates, left)
        return n, min(n, max(0, (len(labelled) + n) // every - n_held_out))

    def _learn(self, round_: Round) -> None:
        """Compute labels and train the model of the round."""
        if round_.summary.exists():
            self.rounds.append(read_file(round_.summary, RoundSummary))
            return
        selected = read_frames(round_.selected)
        self.listener.stage(f"round {round_.number}: labelling {len(selected)} structures")
        label_round(self.context, round_, selected)
        labelled, failures = labels_so_far(round_, self.config.hold_out_every), set_aside(round_.so_far())
        for atoms in labelled:
            atoms.info |= origin_of(self.config.engine)
        write_file(self.directory.failures, failures, force=True)
        if n_lost := len(selected) - len(labelled_in(round_)):
            last = failures[-1].errors[-1]
            self.listener.warn(f"round {round_.number}: {n_lost} of {len(selected)} structures were set aside: {last}")
            if len(labelled) < 2 * self.config.hold_out_every:
                n = len(labelled)
                raise DataError(f"only {n} structures have a label, too few to begin with; last error: {last}")
        fit_round(self.context, round_, labelled)
        return_free_memory()
        write_frames(self.directory.dataset, labelled)
        self.rounds.append(self._summary(round_, labelled, len(failures)))
        write_file(round_.summary, self.rounds[-1])
        if round_.number:
            self._report(None)

    def _summary(self, round_: Round, labelled: Sequence[Atoms], n_set_aside: int) -> RoundSummary:
        record = load(round_.model).record
        return RoundSummary(
            round=round_.number,
            n_labels=len(labelled),
            n_new=len(labelled_in(round_)),
            n_selected=len(read_frames(round_.selected)),
            n_set_aside=n_set_aside,
            engine_calls=engine_calls(round_) + (self.rounds[-1].engine_calls if self.rounds else 0),
            backbone=record.backbone,
            seconds=record.seconds,
            fresh=fresh_errors(round_, drawn=False) if round_.number else None,
            random=fresh_errors(round_, drawn=True) if round_.number else None,
            n_held_out=sum(bool(atoms.info["held_out"]) for atoms in labelled),
            test=self._test(round_),
        )

    def _test(self, round_: Round) -> Figures | None:
        if self.config.test is None:
            return None
        self.listener.stage(f"round {round_.number}: testing")
        model = load(round_.model)
        dataset = dataset_for(model, read_structures(self.config.test))
        summary = summarize(evaluate(model, dataset, name="test", listener=self.listener))
        return {key: summary[key] for key in TEST_MEASURES}

    def _rng(self, number: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, number, purpose])


def _explained(atoms: Atoms, method: SelectionMethod, pick: Pick | None = None, *, held_out: bool = False) -> Atoms:
    """The structure, with why it is labelled in its ``info``."""
    figures = {"largest_std": largest_std(atoms)}
    if pick is not None:
        figures |= {"variance_left": pick.variance_left, "variance_share": pick.variance_share}
    atoms.info |= {"method": method, "held_out": held_out}
    atoms.info |= {name: value for name, value in figures.items() if value is not None}
    return atoms


def _why_none(explored: Explored) -> str:
    if not explored.n_candidates:
        endings = ", ".join(f"{count} by {ending}" for ending, count in explored.endings.items())
        return f"there is none. Replicas ended at once: {endings}" if endings else "the pool is used up"
    return f"of {explored.n_candidates}, none has a σ in the window (select.lower, select.upper)"
