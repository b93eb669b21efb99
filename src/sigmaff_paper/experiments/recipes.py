"""The columns of the paper's tables as methods of ours: which model each is, and of which other models it is made."""

from dataclasses import dataclass, replace

from sigmaff.models import MonteCarloDropoutConfig
from sigmaff.runs.methods import METHODS, Method
from sigmaff_paper.tables import hyperparameters as paper

RATES = (1, 5, 10, 15, 20)
"""Rates of dropout that the paper tries, in per cent."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model of a study: a method, with what distinguishes this one."""

    method: Method
    seed: int = 0
    joins: tuple[str, ...] = ()  # recipes whose models are its members
    samples: str | None = None  # the recipe whose model it samples

    @property
    def after(self) -> tuple[str, ...]:
        """Recipes that have to be done before it."""
        if self.joins:
            return self.joins
        if self.samples is not None:
            return (self.samples,)
        return ("backbone",) if self.method.takes_backbone else ()


MEMBERS = ("backbone", *(f"member-{number}" for number in range(1, paper.ENSEMBLE_SIZE)))


def _method(name: str, percent: int, n_samples: int | None = None) -> Method:
    """A method at another rate of dropout, with another number of samples."""
    method = replace(METHODS[name], dropout=percent / 100)
    return method if n_samples is None else replace(method, mc_dropout=MonteCarloDropoutConfig(n_samples=n_samples))


def _sampled(name: str, percent: int, n_samples: int, source: str) -> Recipe:
    return Recipe(method=_method(name, percent, n_samples), samples=source)


RECIPES: dict[str, Recipe] = {
    "backbone": Recipe(method=METHODS["backbone"]),
    **{name: Recipe(method=METHODS["backbone"], seed=seed) for seed, name in enumerate(MEMBERS) if seed > 0},
    "ensemble": Recipe(method=METHODS["ensemble"], joins=MEMBERS),
    **{f"mcd-{rate}": Recipe(method=_method("mc_dropout", rate, paper.N_SAMPLES)) for rate in RATES},
    **{f"mcd-{rate}-69": _sampled("mc_dropout", rate, paper.N_MORE_SAMPLES, f"mcd-{rate}") for rate in (1, 20)},
    "evidential": Recipe(method=METHODS["evidential"]),
    "gmdn": Recipe(method=METHODS["gmdn"]),
    "svgp-dkl": Recipe(method=METHODS["svgp_dkl"]),
    **{f"lnk-{rate}": Recipe(method=_method("lnk", rate)) for rate in RATES},
    **{f"mcd-lnk-{rate}": _sampled("mcd_lnk", rate, paper.N_SAMPLES, f"lnk-{rate}") for rate in RATES},
    "mcd-lnk-1-69": _sampled("mcd_lnk", 1, paper.N_MORE_SAMPLES, "lnk-1"),
    "fixed-lnk": Recipe(method=METHODS["fixed_lnk_variational"]),
    "fixed-lnk-closed": Recipe(method=METHODS["fixed_lnk"]),
    "llpr": Recipe(method=METHODS["llpr"]),
    "latent-knn": Recipe(method=METHODS["latent_knn"]),
    "latent-mahalanobis": Recipe(method=METHODS["latent_mahalanobis"]),
}


def with_sources(names: tuple[str, ...]) -> list[str]:
    """Recipes and all that they are made of, sources first, each once."""
    ordered: dict[str, None] = {}
    for name in names:
        ordered.update(dict.fromkeys([*with_sources(RECIPES[name].after), name]))
    return list(ordered)
