"""Methods that repeat predictions: ensembles of potentials, and dropout at prediction."""

from sigmaff.sampling.dropout import MonteCarloDropout, MonteCarloDropoutConfig
from sigmaff.sampling.ensemble import Ensemble

__all__ = ["Ensemble", "MonteCarloDropout", "MonteCarloDropoutConfig"]
