"""Checks before work with a data set: errors stop it, warnings are told."""

from sigmaff.data.check import check_structures
from sigmaff.data.check.finding import Finding
from sigmaff.data.structures import LabelledStructures
from sigmaff.errors import DataError
from sigmaff.progress import Listener

MAX_SEARCHED = 20_000
"""Atoms in periodic and large structures whose neighbours are searched for: about a second."""

MAX_TOLD = 5
"""Errors in one message."""


def require_sound(structures: LabelledStructures, listener: Listener | None = None) -> None:
    """Run the checks of ``sigmaff check``: raise a ``DataError`` for errors, and tell the warnings.

    Labels that are missing are no error here: whoever reads a file says which it must have.

    Arguments:
        structures: eV and Å.
        listener: callbacks for warnings; ``None`` is silent.
    """
    findings = [
        found
        for found in check_structures(structures, max_searched=MAX_SEARCHED)
        if found.code != "missing_labels" and (found.severity != "info" or found.code == "sampled")
    ]
    errors = [_told(found, structures) for found in findings if found.severity == "error"]
    if errors:
        left_out = [f"and {len(errors) - MAX_TOLD} errors more"] if len(errors) > MAX_TOLD else []
        remedy = "correct the data ('sigmaff check' shows more), or go on with --skip-checks (skip_checks=True)"
        raise DataError("\n".join([*errors[:MAX_TOLD], *left_out, remedy]))
    for found in findings:
        tell = (listener or Listener()).warn if found.severity == "warning" else (listener or Listener()).tell
        tell(_told(found, structures))


def _told(found: Finding, structures: LabelledStructures) -> str:
    where = f", frame {found.frames[0]}" if found.frames else ""
    return f"{structures.source}{where}: {found.message}"
