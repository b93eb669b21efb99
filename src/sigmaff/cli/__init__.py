"""The command line."""

from sigmaff.cli.main import main

__all__ = ["main"]
