"""Whole runs: from labelled structures to a calibrated model, and the demonstration."""
