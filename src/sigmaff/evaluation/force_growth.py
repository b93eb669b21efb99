"""Fit the growth of force σ (``ForceGrowth``) on held-out force errors.

The Gaussian likelihood of the errors, with a factor a of all variances in closed form, chooses isotropy α on a grid and
exponent β. Its optimum b has a standard error e, which counts structures: errors of one structure are correlated. What
validation structures say of growth is little, because they resemble each other. So b is weighed with what other data
sets and methods had, PRIOR:

    β = (b/e² + m/p²)/(1/e² + 1/p²) between 0 and LARGEST_EXPONENT,      (m, p) = PRIOR

With many structures β is b. With few, or where energy σ is the same for all, it is m.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray
from sigmaff.models.force_growth import ForceGrowth, growth_ratio

ISOTROPIES = (0.0, 0.25, 0.5, 0.75, 1.0)
PRIOR = (0.7, 0.5)
"""Mean and standard deviation of exponents. Of the LNK at 300 K: 0.9 ± 0.3 (3BPA), 1.0 ± 0.4 (acetylacetone)."""
LARGEST_EXPONENT = 1.5
SEARCHED = (-5.0, 5.0)


def fit_force_growth(
    errors: FloatArray, std_raw: FloatArray, component_std: FloatArray, structure: IntArray
) -> ForceGrowth | None:
    """The growth that held-out errors of forces ask for; ``None`` if they ask for none, or there is no σ to grow with.

    Arguments:
        errors: predicted minus true forces (n_atoms, 3), eV/Å.
        std_raw: raw force σ (n_atoms, 3); components with σ = 0 are left out.
        component_std: raw energy σ of the connected part that holds the atom, per atom of it, (n_atoms,), eV.
        structure: index of the structure of each atom, (n_atoms,).
    """
    usable = (std_raw > 0) & (component_std > 0)[:, None]
    values = (errors, std_raw, component_std)
    if not all(np.isfinite(v).all() for v in values) or np.unique(structure[usable.any(axis=1)]).size < 2:
        return None
    typical = float(np.exp(np.log(component_std[usable.any(axis=1)]).mean()))
    log_ratio = np.log(growth_ratio(component_std / typical))
    candidates = []
    for isotropy in ISOTROPIES:
        plain = ForceGrowth(isotropy=isotropy, exponent=0.0, typical=typical)
        held_out = _HeldOut.of(errors, plain.mixed(std_raw**2), usable, log_ratio, structure)
        exponent = held_out.exponent()
        found = ForceGrowth(isotropy=isotropy, exponent=round(exponent, 4), typical=typical)
        candidates.append((round(held_out.nll(exponent), 6), isotropy, found))  # equal likelihood: the plainest
    best = min(candidates, key=lambda candidate: candidate[:2])[2]
    return best if best.isotropy > 0 or best.exponent > 0 else None


@dataclass(frozen=True)
class _HeldOut:
    """Sums over the usable components of each atom. The variance of each is a · e^(β x) times a raw one."""

    counts: FloatArray  # (n_atoms,) components
    squares: FloatArray  # (n_atoms,) Σ error²/raw variance
    log_variance: float  # Σ log raw variance, of all
    log_ratio: FloatArray  # (n_atoms,) x
    structure: IntArray  # (n_atoms,)

    @classmethod
    def of(
        cls, errors: FloatArray, variance: FloatArray, usable: np.ndarray, log_ratio: FloatArray, structure: IntArray
    ) -> "_HeldOut":
        safe = np.where(usable, variance, 1.0)
        return cls(
            counts=usable.sum(axis=1).astype(np.float64),
            squares=np.where(usable, errors**2 / safe, 0.0).sum(axis=1),
            log_variance=float(np.log(safe).sum()),
            log_ratio=log_ratio,
            structure=structure,
        )

    def nll(self, exponent: float) -> float:
        """Mean of all errors, without its constant, at the best a."""
        n = self.counts.sum()
        factor = (self.squares * np.exp(-exponent * self.log_ratio)).sum() / n
        growth = exponent * (self.counts * self.log_ratio).sum()
        return float(0.5 * (np.log(max(factor, np.finfo(float).tiny)) + (self.log_variance + growth) / n))

    def exponent(self) -> float:
        """The likeliest one, weighed with ``PRIOR`` by its standard error."""
        likeliest = float(minimize_scalar(self.nll, bounds=SEARCHED, method="bounded").x)
        precision = self._precision(likeliest)
        mean, std = PRIOR
        weighed = (precision * likeliest + mean / std**2) / (precision + 1 / std**2)
        return float(np.clip(weighed, 0.0, LARGEST_EXPONENT))

    def _precision(self, exponent: float) -> float:
        """1 over the variance of the likeliest exponent: of a sandwich, with the sums of scores by structure."""
        weights = self.squares * np.exp(-exponent * self.log_ratio)
        n, total = self.counts.sum(), weights.sum()
        if total == 0:
            return 0.0
        weights = weights * (n / total)
        deviation = self.log_ratio - (weights * self.log_ratio).sum() / n
        scores = np.bincount(self.structure, 0.5 * deviation * (self.counts - weights))
        curvature = 0.5 * (weights * deviation**2).sum()
        n_structures = np.unique(self.structure).size
        spread = np.square(scores).sum() * n_structures / (n_structures - 1)
        return float(curvature**2 / spread) if spread > 0 else 0.0
