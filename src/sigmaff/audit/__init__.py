"""The six desiderata of a force field with error bars, measured on any ASE calculator."""

from sigmaff.audit.audit import DESIDERATA, FULL, QUICK, Audit, AuditConfig, audit
from sigmaff.audit.external import foreign_subject
from sigmaff.audit.finding import Finding, Series, Tolerance, Verdict
from sigmaff.audit.subject import Answer, Subject, ask
from sigmaff.audit.table import audit_content, audit_markdown, audit_table
