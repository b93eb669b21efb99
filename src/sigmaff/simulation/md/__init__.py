"""Guarded molecular dynamics: replicas in one batch, a limit on σ with a meaning, and runs that survive a kill."""

from sigmaff.simulation.md.config import MDConfig
from sigmaff.simulation.md.replica import Origin, Record
from sigmaff.simulation.md.run import MDResult, run_md
from sigmaff.simulation.md.threshold import Scores, Threshold, risk_threshold, structure_scores
