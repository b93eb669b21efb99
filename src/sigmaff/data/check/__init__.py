"""The data doctor: summarise a data set and find errors in it before training."""

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
    """Run all checks on a data set. Return the findings, errors first.

    Arguments:
        structures: eV and Å; read them with ``labels=()``, so that missing labels are findings instead of errors.
    """
    findings = [found for check in CHECKS for found in check(structures)]
    finite = finite_part(structures)
    if len(finite):
        findings += [found for check in CHECKS_OF_FINITE for found in check(finite)]
    return sorted(findings, key=lambda found: ("error", "warning", "info").index(found.severity))
