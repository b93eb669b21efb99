"""Error messages in the words of the command line: flags instead of keys and Python arguments."""

import re
from collections.abc import Mapping

PYTHON = re.compile(r",? (\(\w+=[^()]*\)|or \w+=True\b)")
"""What a message says to users of the Python functions, after the flag: `` (force=True)``, ``, or trust=True``."""
PHRASES = {"remove it from `labels`": "energies_only"}
"""What a message asks for that a flag does, by the argument of that flag."""


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message with the flags of a command.

    Arguments:
        message: of an error.
        flags: by the name of the argument that a flag gives, such as ``stop_above``: ``--stop-above``.
    """
    text = PYTHON.sub("", message)
    for phrase, name in PHRASES.items():
        if name in flags:
            text = text.replace(phrase, f"use {flags[name]}")
    for name, flag in flags.items():
        is_key = r"(?=: got )" if "_" not in name else r"(?![\w-])"  # one word may be a word of the sentence
        text = re.sub(rf"(?<![\w./-])`?{re.escape(name)}{is_key}`?", flag, text)
    return text
