"""Compares the output that a document shows with the real one.

Figures, with their units, and widths of columns may differ; `…` stands for any text in a line, and alone in a line for any lines. The other
lines must occur in the real output in the same order. Real lines may begin with more, such as a date, and others may be between them.
"""

from __future__ import annotations

import re

_FIGURE = re.compile(r"\d[\d.,]*(?: ?(?:[kMGT]?B|ms|s|min|m|h|d)\b)?")
_FIGURES = re.compile(r"#(?: #)+")
_RULE = re.compile(r"([─━])\1+")


def masked(line: str) -> str:
    """Return a line with each figure as `#`, and with one space and one dash for several."""
    line = _FIGURES.sub("#", _FIGURE.sub("#", line))
    return " ".join(_RULE.sub(r"\1", line).split())


def missing_lines(shown: str, real: str) -> list[str]:
    """Return the lines of a shown output that the real one does not have in this order."""
    missing = []
    lines = [masked(line) for line in real.splitlines()]
    at = 0
    for line in shown.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in masked(line).split("…"))
        found = next((number for number, other in enumerate(lines[at:], at) if re.search(rf"(?:^| ){pattern}$", other)), None)
        if line.strip() in ("", "…"):
            continue
        if found is None:
            missing.append(line)
        else:
            at = found + 1
    return missing
