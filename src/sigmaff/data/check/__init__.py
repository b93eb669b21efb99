"""The data doctor: summarise a data set and find errors in it before training."""

from collections.abc import Callable, Iterator

from sigmaff.data.check import contents, labels
from sigmaff.data.check.finding import Finding
from sigmaff.data.structures import LabelledStructures

Check = Callable[[LabelledStructures], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (contents.check_composition, contents.check_missing, contents.check_finite)

CHECKS_OF_FINITE: tuple[Check, ...] = (
    contents.check_ranges,
    contents.check_geometry,
    contents.check_cells,
    contents.check_duplicates,
    contents.check_order,
    labels.check_force_size,
    labels.check_zero_forces,
    labels.check_net_force,
    labels.check_energies,
    labels.check_forces_against_energies,
    labels.check_magnitudes,
)
"""Run on the frames without NaN or infinite values."""


def check_structures(structures: LabelledStructures) -> list[Finding]:
    """Run all checks on a data set. Return the findings, errors first.

    Arguments:
        structures: eV and Å; read them with ``labels=()``, so that missing labels are findings instead of errors.
    """
    findings = [found for check in CHECKS for found in check(structures)]
    finite = contents.finite_part(structures)
    if len(finite):
        findings += [found for check in CHECKS_OF_FINITE for found in check(finite)]
    return sorted(findings, key=lambda found: ("error", "warning", "info").index(found.severity))
