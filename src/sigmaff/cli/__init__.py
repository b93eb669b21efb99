"""The command line."""

from sigmaff.cli.main import main
