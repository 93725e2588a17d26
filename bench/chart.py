"""A chart of rates for the README, as SVG without a plotting library: `make bench` writes it next to its figures.

`python -m bench.chart bench/last.json docs/images/benchmark.svg` draws the figures of a stored run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

READERS: Final = {"mysql-replication": "mysql-replication", "debezium": "Debezium engine", "headrace": "Headrace, into ClickHouse"}
"""The readers that the chart compares, and their names in it."""
PANELS: Final = {"per_s": "changes per second", "per_cpu_s": "changes per CPU second"}
WIDTH, LABEL, BAR, ROW, HEAD, FIGURE = 720, 190, 20, 30, 40, 70
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600}.bar{fill:#8b949e}.own{fill:#0969da}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#6e7681}.own{fill:#4493f8}}"
)


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    value: float
    is_own: bool


def draw_chart(figures: Mapping[str, Any]) -> str:
    """Return the chart of a run's figures (`Report.to_json`); empty if a reader is missing in them."""
    reference = figures["reference"] or {}
    if not READERS.keys() <= reference.keys():
        return ""
    height = len(PANELS) * (HEAD + ROW * len(READERS)) + 10
    workload, server = reference["workload"], reference["server"]
    title = f"Reading {workload['changes']:,} changes from the log of {server['flavour']} {server['version']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
    ]
    for number, (key, heading) in enumerate(PANELS.items()):
        bars = [_Bar(shown, reference[name][key], name == "headrace") for name, shown in READERS.items()]
        parts += _panel(heading, bars, number * (HEAD + ROW * len(READERS)))
    return "\n".join((*parts, "</svg>", ""))


def _panel(heading: str, bars: Sequence[_Bar], top: int) -> list[str]:
    longest = max(bar.value for bar in bars)
    lines = [f'<text class="head" x="0" y="{top + 25}">{escape(heading)}</text>']
    for number, bar in enumerate(bars):
        y, length = top + HEAD + number * ROW, (WIDTH - LABEL - FIGURE) * bar.value / longest
        lines += [
            f'<text x="0" y="{y + 15}">{escape(bar.name)}</text>',
            f'<rect class="bar{" own" if bar.is_own else ""}" x="{LABEL}" y="{y}" width="{max(length, 1):.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{LABEL + length + 8:.1f}" y="{y + 15}">{bar.value:,.0f}</text>',
        ]
    return lines


def main(arguments: Sequence[str]) -> int:
    source, target = map(Path, arguments)
    chart = draw_chart(json.loads(source.read_text()))
    if not chart:
        print(f"bench: {source} has no figures of {', '.join(READERS)}", file=sys.stderr)
        return 2
    target.write_text(chart)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
