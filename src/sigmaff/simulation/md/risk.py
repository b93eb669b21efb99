"""How many of n calibration items may do harm under a limit that promises a risk of at most x.

Each item (a structure, or a whole run) does harm under every limit from its own score on, and under none below: its
loss L(t) = 1[score ≤ t] never falls as t grows. Two promises, with k the number of items that do harm:

- on average over draws of the items: the largest t of (k + 1) / (n + 1) ≤ x. Angelopoulos, Bates, Fisch, Lei and
  Schuster, "Conformal risk control" (2022);
- with a confidence of 1 − δ over draws of the items: the largest t at which a binomial variable of n trials of chance x
  is at most k with a chance of at most δ. Bates, Angelopoulos, Lei, Malik and Jordan, "Distribution-free, risk-
  controlling prediction sets" (2021): where the loss is monotone, the fixed sequence of tests needs no grid.
"""

from math import ceil, floor, log, log1p

import numpy as np
import scipy

from sigmaff.models.prediction import FloatArray

ROUNDING = 1e-12


def n_allowed(n: int, risk: float, confidence: float | None = None) -> int:
    """The largest number of n items that may do harm; −1 if no limit can promise the risk.

    Arguments:
        confidence: of the promise; ``None``: on average over draws of the items.
    """
    if confidence is None:
        return floor(risk * (n + 1) * (1.0 + ROUNDING)) - 1
    return int(scipy.stats.binom.ppf((1.0 - confidence) * (1.0 + ROUNDING), n, risk)) - 1


def fewest(risk: float, confidence: float | None = None) -> int:
    """The smallest number of items that can promise the risk, if none of them does harm."""
    if confidence is None:
        return ceil((1.0 - ROUNDING) / risk) - 1
    return ceil(log(1.0 - confidence) / log1p(-risk) * (1.0 - ROUNDING))


def largest_limit(harmful: FloatArray, n_harmful: int, otherwise: float) -> float:
    """The largest limit under which ``n_harmful`` items at most do harm.

    Arguments:
        harmful: scores from which on items do harm.
        otherwise: the limit if no more do harm under any.
    """
    if harmful.size <= n_harmful:
        return otherwise
    return float(np.nextafter(np.sort(harmful)[n_harmful], -np.inf))


def highest_risk(n: int, n_harmful: int, confidence: float) -> float:
    """Clopper and Pearson's upper bound on a chance, of which ``n_harmful`` of n trials came true.

    If the number is fixed before n items are drawn, it bounds the risk of ``largest_limit`` of this number, too: the
    chance of a score below the k-th smallest of n is a beta variable.
    """
    return 1.0 if n_harmful >= n else float(scipy.stats.beta.ppf(confidence, n_harmful + 1, n - n_harmful))
