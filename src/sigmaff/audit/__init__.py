"""The six desiderata of a force field with error bars, measured on any ASE calculator."""

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
