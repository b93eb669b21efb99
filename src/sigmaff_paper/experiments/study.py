"""Studies: the models of one data set and one backbone. Experiments share them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TypedDict

from sigmaff.data import DataSource, SplitConfig
from sigmaff.heads import HEADS, EvidentialConfig, LNKConfig, SVGPConfig
from sigmaff.models import MonteCarloDropoutConfig, PotentialConfig
from sigmaff.runs import methods
from sigmaff.runs.config import DataConfig, OtherStructures, RunConfig
from sigmaff.runs.jobs import Job, JobResult, Results
from sigmaff.runs.methods import Method
from sigmaff.runs.model_jobs import method_jobs
from sigmaff.training import TrainingConfig
from sigmaff_paper.experiments.data import DataFolders
from sigmaff_paper.experiments.settings import (
    BACKBONES,
    SIZES,
    Scale,
    Setup,
    head_training,
    n_inducing,
    sizes_of,
    training,
)
from sigmaff_paper.experiments.value import Value, value_of
from sigmaff_paper.tables import hyperparameters as paper
from sigmaff_paper.tables.hyperparameters import Kind, Sizes
from sigmaff_paper.tables.md17 import MOLECULES, N_ATOMS

RATES = (1, 5, 10, 15, 20)
"""Dropout rates of the paper, in per cent."""
OUT_OF_EQUILIBRIUM = "non-equilibrium"
COPIES = "-copies"
"""End of the names of jobs that copy a molecule, after the method."""
MD17_MOLECULES: dict[Scale, tuple[str, ...]] = {
    "quick": ("ethanol", "malonaldehyde", "naphthalene", "uracil"),
    "hour": MOLECULES,
    "paper": MOLECULES,
}
"""Molecules on which models of the others are tested as out of distribution."""


def _with_dropout(name: str, percent: int, n_samples: int | None = None, sampled_from: str | None = None) -> Method:
    method = replace(methods.METHODS[name], dropout=percent / 100, sampled_from=sampled_from)
    return method if n_samples is None else replace(method, mc_dropout=MonteCarloDropoutConfig(n_samples=n_samples))


N, MORE = paper.N_SAMPLES, paper.N_MORE_SAMPLES
UNCHANGED = ("ensemble", "evidential", "gmdn", "svgp_dkl", "llpr", "latent_knn", "latent_mahalanobis")
METHODS: dict[str, Method] = {
    **methods.ensemble_members(paper.ENSEMBLE_SIZE),
    **{name.replace("_", "-"): methods.METHODS[name] for name in UNCHANGED},
    "fixed-lnk": methods.METHODS["fixed_lnk_variational"],
    "fixed-lnk-closed": methods.METHODS["fixed_lnk"],
    **{f"mcd-{rate}": _with_dropout("mc_dropout", rate, N) for rate in RATES},
    **{f"mcd-{rate}-69": _with_dropout("mc_dropout", rate, MORE, f"mcd-{rate}") for rate in (1, 20)},
    **{f"lnk-{rate}": _with_dropout("lnk", rate) for rate in RATES},
    **{f"mcd-lnk-{rate}": _with_dropout("mcd_lnk", rate, N, f"lnk-{rate}") for rate in RATES},
    "mcd-lnk-1-69": _with_dropout("mcd_lnk", 1, MORE, "lnk-1"),
}
"""Methods of the paper's columns, and ours."""


class _Length(TypedDict):
    """What the length of a training of scale hour depends on."""

    n_atoms: int | None
    n_train: int
    hours: float


@dataclass(frozen=True)
class Study:
    scale: Scale
    dataset: str  # a molecule of MD17, or qm7x
    backbone: str
    methods: tuple[str, ...] = ()  # names of METHODS
    hours: float = 1.0  # of a training of scale hour
    seed: int = 0  # 0, 1, …: other initial weights and batches, the same split
    device: str = "auto"
    force_std: bool = True  # whether analytic σ of forces is tested

    @property
    def kind(self) -> Kind:
        return "qm7x" if self.dataset == "qm7x" else "md17"

    def job(self, method: str) -> str:
        """Return the name of the job of a method."""
        folder = "qm7x" if self.kind == "qm7x" else f"md17-{self.dataset}"
        repeated = f"seed-{self.seed}/" if self.seed else ""
        return f"{self.scale}/{folder}/{self.backbone}/{repeated}{method}"

    def value(self, results: Results, method: str, *path: str) -> Value | None:
        """Look up a number of a method's results, of all seeds; ``None`` if it does not exist."""
        return value_of(self.results(results, method), *path)

    def results(self, results: Results, method: str) -> list[JobResult]:
        """Look up a method's results, of all seeds."""
        names = (replace(self, seed=seed).job(method) for seed in count())
        return [results[name] for name in takewhile(results.__contains__, names)]

    def repeated(self, setup: Setup) -> "list[Study]":
        """Return the study of each seed, with the length and the device that are asked for."""
        asked = replace(self, hours=setup.hours, device=setup.device, force_std=setup.force_std)
        return [replace(asked, seed=seed) for seed in range(setup.n_seeds)]

    def jobs(self, data: DataFolders) -> list[Job]:
        """Return the jobs of the methods and of all that these need."""
        first = data.qm7x().jobs if self.kind == "qm7x" else []
        return first + method_jobs(
            METHODS,
            self.methods,
            lambda method: self.config(method, data),
            prefix=self.job(""),
            after=tuple(job.name for job in first),
            needs=data.qm7x().needs if self.kind == "qm7x" else (data.md17(self.dataset).path,),
        )

    def config(self, method: Method, data: DataFolders) -> RunConfig:
        """Return the run of a method."""
        sizes, length = self.sizes(data), self._length(data)
        run = RunConfig(
            data=DataConfig(
                source=self._source(data),
                split=SplitConfig(
                    kind="random", n_train=sizes.n_train, n_validation=sizes.n_validation, n_test=sizes.n_test
                ),
            ),
            model=PotentialConfig(backbone=BACKBONES[self.scale][self.backbone], head=method.head),
            training=self._on_device(
                training(
                    self.scale, self.kind, self.backbone, evidential=isinstance(method.head, EvidentialConfig), **length
                )
            ),
            calibration="quantile",  # one factor for every method: its shape stays that of the method
            ood=self._others(data),
            seed=self.seed * paper.ENSEMBLE_SIZE,  # members of an ensemble have the seeds between
        )
        config = method.settings(run)
        tests_forces = self.force_std or not HEADS[method.head.name].force_std_methods
        config = config.model_copy(
            update={"model": self._with_inducing_points(config.model), "test_forces_std": tests_forces}
        )
        if not method.head.trains_on_backbone:
            return config
        second = head_training(self.scale, self.kind, self.backbone, frozen="head" in method.head.stages, **length)
        return config.model_copy(update={"head_training": self._on_device(second)})

    def sizes(self, data: DataFolders) -> Sizes:
        """Return the numbers of structures."""
        follows_data = self.scale == "hour" and self.kind == "qm7x"
        return sizes_of(self.scale, self.kind, data.qm7x().n_equilibrium if follows_data else None)

    def _length(self, data: DataFolders) -> _Length:
        return {"n_atoms": N_ATOMS.get(self.dataset), "n_train": self.sizes(data).n_train, "hours": self.hours}

    def _on_device(self, settings: TrainingConfig) -> TrainingConfig:
        return settings.model_copy(update={"accelerator": self.device})

    def _source(self, data: DataFolders) -> DataSource:
        return DataSource(path=data.qm7x().equilibrium) if self.kind == "qm7x" else data.md17(self.dataset)

    def _others(self, data: DataFolders) -> dict[str, OtherStructures]:
        """Sets of structures out of distribution, if their files exist."""
        n = SIZES[self.scale][self.kind].n_ood
        if self.kind == "qm7x":
            source = DataSource(path=data.qm7x().non_equilibrium)
            return {OUT_OF_EQUILIBRIUM: OtherStructures(source=source, n_structures=n)}
        others = {molecule: data.md17(molecule) for molecule in MD17_MOLECULES[self.scale] if molecule != self.dataset}
        return {
            molecule: OtherStructures(source=source, n_structures=n)
            for molecule, source in others.items()
            if source.path.is_file()
        }

    def _with_inducing_points(self, model: PotentialConfig) -> PotentialConfig:
        if not isinstance(model.head, LNKConfig | SVGPConfig):
            return model
        n = n_inducing(self.scale, self.kind, N_ATOMS.get(self.dataset))
        return model.model_copy(update={"head": model.head.model_copy(update={"n_inducing": n})})


def jobs_of(studies: Mapping[Scale, Iterable[Study]]) -> Callable[[Setup, DataFolders], list[Job]]:
    """Return a function that lists the jobs of all studies of a setup, each once, sources first."""

    def jobs(setup: Setup, data: DataFolders) -> list[Job]:
        repeated = [study for one in studies[setup.scale] for study in one.repeated(setup)]
        return list({job.name: job for study in repeated for job in study.jobs(data)}.values())

    return jobs
