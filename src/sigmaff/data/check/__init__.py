"""The data doctor: what is in a data set, and what is wrong with it, before any training."""

from collections.abc import Callable, Iterator

from sigmaff.data.check.consistency import check_forces_against_energies, check_magnitudes
from sigmaff.data.check.contents import (
    check_composition,
    check_duplicates,
    check_finite,
    check_missing,
    check_ranges,
    finite_part,
)
from sigmaff.data.check.finding import Finding
from sigmaff.data.check.geometry import check_cells, check_geometry
from sigmaff.data.check.labels import check_energies, check_force_size, check_net_force, check_zero_forces
from sigmaff.data.structures import LabelledStructures

Check = Callable[[LabelledStructures], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (check_composition, check_missing, check_finite)

CHECKS_OF_FINITE: tuple[Check, ...] = (
    check_ranges,
    check_geometry,
    check_cells,
    check_duplicates,
    check_force_size,
    check_zero_forces,
    check_net_force,
    check_energies,
    check_forces_against_energies,
    check_magnitudes,
)
"""Run on the frames without NaN or infinite values."""

__all__ = ["Finding", "check_structures"]


def check_structures(structures: LabelledStructures) -> list[Finding]:
    """Everything worth knowing, errors first. Read with ``labels=()`` to have missing labels found too."""
    findings = [found for check in CHECKS for found in check(structures)]
    finite = finite_part(structures)
    if len(finite):
        findings += [found for check in CHECKS_OF_FINITE for found in check(finite)]
    return sorted(findings, key=lambda found: ("error", "warning", "info").index(found.severity))
