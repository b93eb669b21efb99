"""Audits side by side: the six desiderata as rows, the methods as columns, every mark with its number."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sigmaff.audit.audit import DESIDERATA, Audit
from sigmaff.audit.finding import Finding


def audit_table(audits: Sequence[Audit]) -> list[list[str]]:
    """A header, then one row for each desideratum."""
    return [
        ["desideratum", *(audit.name for audit in audits)],
        *([name, *(cell(audit[name]) for audit in audits)] for name in DESIDERATA),
    ]


def cell(finding: Finding) -> str:
    """✓ holds, (✓) approximately, ✗ fails, – not applicable; and the number behind it."""
    return f"{finding.mark} {finding.figure}".strip()


def audit_markdown(audits: Sequence[Audit]) -> str:
    """The table, and below it a sentence on each of its cells."""
    header, *body = audit_table(audits)
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
    for audit in audits:
        lines += ["", f"**{audit.name}**", ""]
        lines += [f"- {item.mark} {item.desideratum}: {item.sentence}" for item in audit.findings]
    return "\n".join(lines) + "\n"


def audit_content(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Everything, for a JSON file."""
    return [asdict(audit) for audit in audits]
