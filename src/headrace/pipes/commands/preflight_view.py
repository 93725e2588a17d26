"""Prints the findings of a preflight check as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.sources.preflight import Finding, Level
from headrace.terminal_text import escape_text

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def print_findings(findings: Sequence[Finding]) -> None:
    """Print an aligned table; findings that are not ok have an explanation and a remedy below."""
    table = Table("", "setting", "value", "meaning", box=None, pad_edge=False)
    for finding in findings:
        meaning = Text(escape_text(finding.meaning))
        if finding.repair:
            meaning.append(f"\nrepair: {escape_text(finding.repair)}", style="bold")
        table.add_row(
            Text(finding.level.value, style=_COLOURS[finding.level]),
            Text(escape_text(finding.name)),
            Text(escape_text(finding.value)),
            meaning,
        )
    # Piped output is not cut to a terminal's width.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    console.print(table)
    console.print(Text(f"\ncheck: {_count(findings, Level.ERROR)} errors, {_count(findings, Level.WARNING)} warnings"))


def findings_json(source: str, findings: Sequence[Finding]) -> str:
    counts = {"errors": _count(findings, Level.ERROR), "warnings": _count(findings, Level.WARNING)}
    return json.dumps({"source": source, **counts, "findings": [finding.to_json() for finding in findings]}, indent=2, ensure_ascii=False)


def _count(findings: Sequence[Finding], level: Level) -> int:
    return sum(finding.level is level for finding in findings)
