"""The errors that sigmaff raises on purpose. Each message says what is wrong, where, and what to do."""


class SigmaffError(Exception):
    """Base of every error that is meant for a person to read; the command line prints it without a traceback."""


class DataError(SigmaffError):
    """A data file, a frame in it, or a label cannot be used as it is."""


class ConfigError(SigmaffError):
    """A configuration does not say what can be done."""


class ModelFileError(SigmaffError):
    """A model file is damaged, foreign, or written by a newer version."""
