"""Guarded molecular dynamics: replicas in one batch, a limit on σ with a meaning, and runs that resume after a kill."""

from sigmaff.simulation.md.config import DynamicsConfig, GuardConfig, Limit, MDConfig
from sigmaff.simulation.md.guard import GuardResult, guard
from sigmaff.simulation.md.pilots import PilotRun, Promise
from sigmaff.simulation.md.replica import Origin, Record
from sigmaff.simulation.md.run import MDResult, run_md
from sigmaff.simulation.md.safety import KnownStd, Safety, choose_safety
from sigmaff.simulation.md.threshold import (
    Scores,
    Threshold,
    choose_threshold,
    conditional_threshold,
    risk_threshold,
    structure_scores,
)
