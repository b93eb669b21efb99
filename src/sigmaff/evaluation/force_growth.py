"""Fit the growth of force σ (``ForceGrowth``) on held-out force errors.

Held-out likelihood chooses isotropy α on a grid and exponent β, beside a factor a of all variances, which calibration
replaces. Errors follow Student's t with DOF degrees of freedom: a few large ones must not decide. The likeliest
exponent b has a standard error e, which counts structures: errors of one structure are correlated. Held-out structures
resemble each other and say little of growth. So b is weighed with what other data sets had, PRIOR:

    β = (b/e² + m/p²)/(1/e² + 1/p²) between 0 and LARGEST_EXPONENT,      (m, p) = PRIOR

With many structures β is b. With few, or where energy σ is the same for all, it is m.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy

from sigmaff.evaluation.metrics import FloatArray
from sigmaff.evaluation.samples import IntArray
from sigmaff.models.force_growth import ForceGrowth, growth_ratio

ISOTROPIES = (0.0, 0.25, 0.5, 0.75, 1.0)
PRIOR = (0.7, 0.5)
"""Mean and standard deviation of exponents. Of the LNK at 300 K: 0.9 ± 0.3 (3BPA), 1.0 ± 0.4 (acetylacetone)."""
LARGEST_EXPONENT = 1.5
DOF = 6.0
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
    index = np.repeat(structure[:, None], 3, axis=1)[usable]
    finite = all(np.isfinite(values).all() for values in (errors, std_raw, component_std))
    if not finite or np.unique(index).size < 2 or not errors[usable].any():
        return None
    typical = float(np.exp(np.log(component_std[usable.any(axis=1)]).mean()))
    log_ratio = np.repeat(np.log(growth_ratio(component_std / typical))[:, None], 3, axis=1)[usable]
    candidates = []
    for isotropy in ISOTROPIES:
        plain = ForceGrowth(isotropy=isotropy, exponent=0.0, typical=typical)
        exponent, nll = _HeldOut(errors[usable], plain.mixed(std_raw**2)[usable], log_ratio, index).fit()
        candidates.append((round(nll, 5), isotropy, replace(plain, exponent=round(exponent, 4))))
    best = min(candidates, key=lambda candidate: candidate[:2])[2]  # equally likely: the plainest
    return best if best.isotropy > 0 or best.exponent > 0 else None


@dataclass(frozen=True)
class _HeldOut:
    """Errors of components with a variance that is a · e^(β x) times a raw one."""

    errors: FloatArray  # (n,)
    variance: FloatArray  # (n,) raw
    log_ratio: FloatArray  # (n,) x
    structure: IntArray  # (n,)

    def fit(self) -> tuple[float, float]:
        """Exponent, and mean negative log-likelihood at the best a, without its constant."""
        scale = np.mean(self.errors**2 / self.variance)
        bounds = [(np.log(scale) - 20, np.log(scale) + 20), SEARCHED]
        start = (np.log(scale), PRIOR[0])
        likeliest = scipy.optimize.minimize(self._nll, start, jac=True, bounds=bounds, method="L-BFGS-B").x
        precision, (mean, std) = self._precision(likeliest), PRIOR
        weighed = (precision * likeliest[1] + mean / std**2) / (precision + 1 / std**2)
        exponent = float(np.clip(weighed, 0.0, LARGEST_EXPONENT))
        at_exponent = [bounds[0], (exponent, exponent)]
        best = scipy.optimize.minimize(
            self._nll, (likeliest[0], exponent), jac=True, bounds=at_exponent, method="L-BFGS-B"
        )
        return exponent, float(best.fun)

    def _excess(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log variance, and error² over DOF times the variance; parameters are log a and β."""
        log_growth = parameters[0] + parameters[1] * self.log_ratio
        return np.log(self.variance) + log_growth, self.errors**2 / (DOF * self.variance * np.exp(log_growth))

    def _nll(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Mean over errors, and its gradient."""
        log_variance, excess = self._excess(parameters)
        slopes = 0.5 - 0.5 * (DOF + 1) * excess / (1 + excess)
        nll = np.mean(0.5 * log_variance + 0.5 * (DOF + 1) * np.log1p(excess))
        return float(nll), np.array([slopes.mean(), (slopes * self.log_ratio).mean()])

    def _precision(self, likeliest: FloatArray) -> float:
        """1 over the variance of the likeliest exponent: of a sandwich, with the sums of scores by structure."""
        excess = self._excess(likeliest)[1]
        slopes = 0.5 - 0.5 * (DOF + 1) * excess / (1 + excess)
        curvatures = 0.5 * (DOF + 1) * excess / (1 + excess) ** 2
        if curvatures.sum() == 0:
            return 0.0
        deviation = self.log_ratio - np.average(self.log_ratio, weights=curvatures)
        scores = np.bincount(np.unique(self.structure, return_inverse=True)[1], slopes * deviation)
        spread = np.square(scores).sum() * scores.size / (scores.size - 1)
        return float((curvatures * deviation**2).sum() ** 2 / spread) if spread > 0 else 0.0
