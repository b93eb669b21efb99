"""Error classes. Each message says what is wrong, where, and what to do."""

import errno


class SigmaffError(Exception):
    """Base class of all errors for users. The command line prints them without a traceback."""


class DataError(SigmaffError):
    """Invalid data file, frame or label."""


class ConfigError(SigmaffError):
    """Invalid configuration."""


class UncertaintyError(SigmaffError):
    """A σ of a structure is above the limit that it should stop at."""


class UncertaintyWarning(UserWarning):
    """A σ of a structure is above the limit that it should warn of."""


class ModelFileError(SigmaffError):
    """The model file is damaged, not a model file, or written by a newer version."""


class UndeterminedEnergyWarning(UserWarning):
    """An energy lacks a constant that no training structure of its composition determines."""


def in_words(error: BaseException) -> str:
    """The text of an error; of one of the system, the file first, and for a full disk what to do."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    remedy = "; make room, and run the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename}: {error.strerror}{remedy}"
