"""A campaign: explore, select, label, learn, and again, until there is a reason to stop.

Every stage leaves its result in a file that is written whole, is not done again where that file is there, and follows
from files and seeds alone. So the same call goes on after a kill at any moment, to the same data set.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase import Atoms

from sigmaff.data import GraphDataset, read_structures
from sigmaff.errors import DataError
from sigmaff.evaluation import evaluate, summarize
from sigmaff.evaluation.datasets import dataset_for
from sigmaff.files import write_json
from sigmaff.learning.config import CampaignConfig
from sigmaff.learning.directory import Directory, Round, read_frames, read_json, write_frames
from sigmaff.learning.explore import explore
from sigmaff.learning.fit import fit_round, validation_structures
from sigmaff.learning.labels import (
    engine_calls,
    keep_label,
    label_round,
    labelled_in,
    labelled_up_to,
    set_aside,
)
from sigmaff.learning.report import fresh_errors, write_campaign_report
from sigmaff.learning.selection import in_window, select
from sigmaff.learning.start import start_structures
from sigmaff.models.file import load
from sigmaff.progress import Listener
from sigmaff.simulation.md import Scores, structure_scores
from sigmaff.tasks import workers

if TYPE_CHECKING:
    from distributed import Client

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


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    directory: Path
    rounds: tuple[dict[str, Any], ...]  # figures of each
    reason: str  # why it is over

    @property
    def model_path(self) -> Path:
        return Directory(self.directory).round(len(self.rounds) - 1).model


def learn(config: CampaignConfig, listener: Listener | None = None, *, force: bool = False) -> CampaignResult:
    """A whole campaign, or what is left of it after an interruption."""
    directory = Directory(config.output)
    try:
        with directory.folder.lock(), ExitStack() as stack:
            directory.claim(config, force=force)
            return _Campaign(config, directory, listener or Listener(), _started_once(config, stack)).run()
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or f"stopped; the same command goes on ({directory.path})") from None


def _started_once(config: CampaignConfig, stack: ExitStack) -> Callable[[], "Client"]:
    """Workers, from the first time that they are asked for until the end."""
    clients: list[Client] = []

    def client() -> "Client":
        if not clients:
            clients.append(stack.enter_context(workers(config.cluster)))
        return clients[0]

    return client


class _Campaign:
    """A campaign under way."""

    def __init__(
        self, config: CampaignConfig, directory: Directory, listener: Listener, client: Callable[[], "Client"]
    ) -> None:
        self.config, self.directory, self.listener, self.client = config, directory, listener, client
        self.rounds: list[dict[str, Any]] = []

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
        write_campaign_report(self.directory, self.rounds, reason)
        return CampaignResult(directory=self.directory.path, rounds=tuple(self.rounds), reason=reason)

    def _begin(self, place: Round) -> None:
        if not place.selected.exists():
            structures = start_structures(self.config.start, self._rng(0, 0))
            if self.config.start.use_labels:
                for index, atoms in enumerate(structures):
                    keep_label(place, index, atoms)
            write_frames(place.selected, structures)

    def _round(self, place: Round) -> str | None:
        """One round, or why there is none."""
        if place.number > self.config.stop.max_rounds:
            return f"{self.config.stop.max_rounds} rounds are done (stop.max_rounds)"
        n_left = self._labels_left()
        if n_left == 0:
            return f"{self.rounds[-1]['n_labels']} structures are labelled (stop.max_labels)"
        self.listener.stage(f"round {place.number}: exploring")
        before = self.directory.round(place.number - 1)
        labelled = labelled_up_to(self.directory, before.number)
        explored = explore(
            place, self.config, before.model, labelled, self._scores(place, before), self.client, self.listener
        )
        if (reason := self._reached(explored)) is not None:
            return reason
        if not self._select(place, before, explored, n_left):
            return f"no candidate of round {place.number} is worth a label: {_why_none(explored)}"
        self._learn(place)
        return None if self.rounds[-1]["n_new"] else f"no structure of round {place.number} could be labelled"

    def _labels_left(self) -> int | None:
        limit = self.config.stop.max_labels
        return None if limit is None else max(0, limit - int(self.rounds[-1]["n_labels"]))

    def _scores(self, place: Round, before: Round) -> Scores | None:
        """σ and errors of held-out structures, where a limit on σ is yet to be found."""
        if place.explored.exists() or self.config.explore.stop_above is None:
            return None
        model = load(before.model)
        held_out = read_structures(before.dataset).subset(validation_structures(before))
        dataset = dataset_for(model, held_out)
        return structure_scores(evaluate(model, dataset, name="held out", listener=self.listener))

    def _reached(self, explored: dict[str, Any]) -> str | None:
        """The aims, where all that are given hold for the model that has just explored."""
        stop, test = self.config.stop, self.rounds[-1]["test"] or {}
        share = explored["share_above"] if self._promised(explored) else None
        aims = (
            ("share of exploration beyond the limit on σ", share, stop.share_above, ""),
            ("test force MAE", test.get("forces_mae"), stop.forces_mae, " eV/Å"),
            ("calibration score of force σ", test.get("forces_calibration"), stop.calibration, ""),
        )
        given = [(name, value, aim, unit) for name, value, aim, unit in aims if aim is not None]
        if not given or any(value is None or value > aim for _, value, aim, _ in given):
            return None
        return "converged: " + ", ".join(
            f"{name} {value:.3g}{unit} (at most {aim:g})" for name, value, aim, unit in given
        )

    def _promised(self, explored: dict[str, Any]) -> bool:
        """Whether a σ below the limit means anything: by risk control, or because the user says so."""
        limit = explored["limit"]
        return limit is not None and (limit["accepted"] is not None or self.config.explore.stop_above != "auto")

    def _select(self, place: Round, before: Round, explored: dict[str, Any], n_left: int | None) -> list[Atoms]:
        """The structures to label, each with the model's σ and what speaks for it."""
        if place.selected.exists():
            return read_frames(place.selected)
        self.listener.stage(f"round {place.number}: selecting")
        candidates, settings = read_frames(place.candidates), self.config.select
        limit = None if explored["limit"] is None else explored["limit"]["value"]
        if not self._promised(explored):
            settings = settings.model_copy(update={"lower": 0.0})
        n = settings.n if n_left is None else min(settings.n, n_left)
        picks = select(load(before.model), candidates, settings, limit=limit, rng=self._rng(place.number, 2), n=n)
        chosen = [candidates[pick.index] for pick in picks]
        for atoms, pick in zip(chosen, picks, strict=True):
            found = {"largest_std": pick.forces_std, "variance_share": pick.variance_share}
            atoms.info |= {key: value for key, value in found.items() if value is not None}
            atoms.info["method"] = settings.method
        if settings.method != "random":
            self.listener.stage(
                f"round {place.number}: {len(chosen)} of {in_window(candidates, settings, limit)} that qualify"
            )
        if chosen:
            write_frames(place.selected, chosen)
        return chosen

    def _learn(self, place: Round) -> None:
        """Labels, and the model that knows them."""
        if not place.summary.exists():
            selected = read_frames(place.selected)
            self.listener.stage(f"round {place.number}: labelling {len(selected)} structures")
            label_round(place, selected, self.config.engine, self.client, self.listener)
            labelled = labelled_up_to(self.directory, place.number)
            failures = set_aside(self.directory, place.number)
            write_json(self.directory.failures, failures, force=True)
            self._check(place, len(selected), len(labelled), failures)
            fit_round(place, self.directory, self.config, labelled, self.client, self.listener)
            write_frames(self.directory.dataset, labelled)
            self.rounds.append(self._figures(place, selected, labelled, len(failures)))
            write_json(place.summary, self.rounds[-1])
            if place.number:
                write_campaign_report(self.directory, self.rounds, None)
        else:
            self.rounds.append(read_json(place.summary))

    def _check(self, place: Round, n_selected: int, n_labelled: int, failures: list[dict[str, Any]]) -> None:
        """Tell of structures that were set aside; too many of them at the start are an error."""
        if n_lost := n_selected - len(labelled_in(place)):
            last = failures[-1]["errors"][-1]
            self.listener.warn(f"round {place.number}: {n_lost} of {n_selected} structures were set aside: {last}")
            if n_labelled < 2 * self.config.hold_out_every:
                raise DataError(f"only {n_labelled} structures have a label, too few to begin with; last error: {last}")

    def _figures(self, place: Round, selected: list[Atoms], labelled: list[Atoms], n_set_aside: int) -> dict[str, Any]:
        model = load(place.model)
        calls = engine_calls(place) + (self.rounds[-1]["engine_calls"] if self.rounds else 0)
        return {
            "round": place.number,
            "n_labels": len(labelled),
            "n_new": len(labelled_in(place)),
            "n_selected": len(selected),
            "n_set_aside": n_set_aside,
            "engine_calls": calls,
            "backbone": model.record["backbone"],
            "seconds": model.record["seconds"],
            "fresh": fresh_errors(place) if place.number else None,
            "test": self._test(place),
        }

    def _test(self, place: Round) -> dict[str, Any] | None:
        if self.config.test is None:
            return None
        self.listener.stage(f"round {place.number}: testing")
        model = load(place.model)
        dataset: GraphDataset = dataset_for(model, read_structures(self.config.test))
        summary = summarize(evaluate(model, dataset, name="test", listener=self.listener))
        return {key: summary[key] for key in TEST_MEASURES}

    def _rng(self, number: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, number, purpose])


def _why_none(explored: dict[str, Any]) -> str:
    if not explored["n_candidates"]:
        endings = ", ".join(f"{count} by {ending}" for ending, count in explored["endings"].items())
        return f"there is none. Replicas ended at once: {endings}" if endings else "the pool is used up"
    return f"of {explored['n_candidates']}, none has a σ in the window (select.lower, select.upper)"
