"""The six desiderata of a force field with error bars, measured on any ASE calculator."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from sigmaff.audit.audit import (
    DESIDERATA,
    FULL,
    QUICK,
    Audit,
    AuditConfig,
    audit,
    audit_content,
    audit_markdown,
    audit_table,
)
from sigmaff.audit.finding import Finding, Series, Tolerance, Verdict
from sigmaff.audit.subject import Subject, ask, foreign_subject


class _CallablePackage(ModuleType):
    """Importing this package sets ``sigmaff.audit`` to it: it must still be the function of that name in the API."""

    @property
    def __call__(self) -> Callable[..., Audit]:
        return import_module("sigmaff.api").audit


sys.modules[__name__].__class__ = _CallablePackage
