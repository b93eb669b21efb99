"""The data doctor: summarise a data set and find errors in it before training."""

from collections.abc import Callable, Iterator

from sigmaff.data.check import consistency, contents, electrons, geometry, labels
from sigmaff.data.check.finding import Finding
from sigmaff.data.structures import LabelledStructures

Check = Callable[[LabelledStructures], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    contents.check_composition,
    contents.check_units,
    contents.check_missing,
    contents.check_finite,
    electrons.check_electrons,
)

CHECKS_OF_FINITE: tuple[Check, ...] = (
    contents.check_ranges,
    geometry.check_cells,
    contents.check_duplicates,
    contents.check_order,
    labels.check_force_size,
    labels.check_zero_forces,
    labels.check_energies,
    labels.check_magnitudes,
    consistency.check_net_force,
    consistency.check_net_torque,
    consistency.check_forces_against_energies,
)
"""Run on the frames without NaN or infinite values."""


def check_structures(structures: LabelledStructures, *, max_searched: int | None = None) -> list[Finding]:
    """Run all checks on a data set. Return the findings, errors first.

    Arguments:
        structures: eV and Å; read them with ``labels=()``, so that missing labels are findings instead of errors.
        max_searched: atoms in periodic and large structures whose neighbours are searched for, which takes longest;
            ``None``: all.
    """
    findings = [found for check in CHECKS for found in check(structures)]
    finite = contents.finite_part(structures)
    if len(finite):
        findings += geometry.check_geometry(finite, max_searched)
        findings += [found for check in CHECKS_OF_FINITE for found in check(finite)]
    return sorted(findings, key=lambda found: ("error", "warning", "info").index(found.severity))
