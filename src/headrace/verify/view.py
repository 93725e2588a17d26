"""Shows a comparison: a bar per table while it runs, a line per table with its differences at the end; or JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from headrace.pipes.lifecycle.progress_view import start_bars
from headrace.stage_report import end_report, enter_stage
from headrace.terminal_text import escape_text
from headrace.verify.result import TableResult, Verdict
from headrace.verify.row_compare import Difference

log = logging.getLogger("headrace")
_WIDEST = 200


class VerifyView(Protocol):
    """Receives the progress of a comparison."""

    def note(self, message: str) -> None: ...

    def begins(self, estimates: Mapping[str, int]) -> None:
        """The estimated rows of each table."""

    def advanced(self, table: str, rows: int) -> None: ...

    def ends(self) -> None: ...


def choose_view() -> VerifyView:
    return BarView() if sys.stderr.isatty() else LineView()


class LineView:
    def __init__(self) -> None:
        self._rows = self._compared = 0

    def note(self, message: str) -> None:
        log.info(message)

    def begins(self, estimates: Mapping[str, int]) -> None:
        self._rows, self._compared = sum(estimates.values()), 0
        log.info("verify: %d tables, about %d rows", len(estimates), self._rows)
        self._enter_stage()

    def advanced(self, table: str, rows: int) -> None:
        self._compared += rows
        self._enter_stage()
        log.debug("verify: %s %d rows more", table, rows)

    def ends(self) -> None:
        log.debug("verify: all rows summed up")

    def _enter_stage(self) -> None:
        enter_stage("comparing", f": {self._compared} of about {self._rows} rows")


class BarView:
    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def note(self, message: str) -> None:
        self._console.print(Text(escape_text(message)))

    def begins(self, estimates: Mapping[str, int]) -> None:
        # Lines between the bars would break them.
        end_report()
        self._bars = start_bars(self._console)
        self._tasks = {table: self._bars.add_task(escape_text(table), total=max(rows, 1)) for table, rows in estimates.items()}

    def advanced(self, table: str, rows: int) -> None:
        if self._bars is not None:
            self._bars.advance(self._tasks[table], rows)

    def ends(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def result_lines(result: TableResult) -> list[str]:
    """Format a table's result, escaped for the terminal."""
    found = result.comparison
    text = f"{result.schema.name}: {found.rows} rows, {summary([result])}"
    if result.verdict is not Verdict.EQUAL:
        text += f" ({result.verdict})"
    lines = [text]
    if result.excluded is not None:
        lines.append(f"  the filter excludes {result.excluded} of {found.rows + result.excluded} source rows")
    if result.repaired:
        lines.append(f"  {result.repaired} rows were different and have been repaired")
    if result.behind:
        lines.append(f"  {result.behind} rows differ that may only be behind")
    if result.changing:
        lines.append(f"  {result.changing} rows changed each time they were compared")
    lines += [f"  {note}" for note in result.notes]
    lines += [f"  {difference_text(difference, result.schema.row_key)}" for difference in found.differences]
    if found.total > len(found.differences):
        lines.append(f"  … and {found.total - len(found.differences)} more")
    if result.unread:
        lines.append(f"  … and parts of {result.unread} rows that differ were not compared row by row")
    return list(map(escape_text, lines))


def summary(results: Sequence[TableResult]) -> str:
    """Summarize the differences: never "0 differences" while a row is pending or a table was not compared."""
    sure, behind = sum(one.comparison.total for one in results), sum(one.behind for one in results)
    missing, extra = sum(one.missing for one in results), sum(one.extra for one in results)
    others = [
        (missing, "missing"),
        (extra, "extra"),
        (sum(one.changing for one in results), "changing"),
        (sum(one.unread for one in results), "not compared row by row"),
        (sum(one.is_behind for one in results), "not compared"),
    ]
    if not behind and not any(count for count, _ in others):
        return f"{sure} differences"
    parts = [f"{sure + behind - missing - extra} different", *(f"{count} {word}" for count, word in others if count)]
    pipe_position = next((result.pipe_position for result in results if result.pipe_position), "")
    return ", ".join(parts) + (f" ({pipe_position})" if pipe_position else "")


def excluded_text(results: Sequence[TableResult]) -> str:
    """State how many source rows the filters exclude, after a summary; empty if no table has a filter."""
    counts = [one.excluded for one in results if one.excluded is not None]
    return f"; filters exclude {sum(counts)} source rows" if counts else ""


def difference_text(difference: Difference, key: tuple[str, ...]) -> str:
    named = ", ".join(f"{name}={_shown(value)}" for name, value in zip(key, difference.key, strict=True)) if key else _shown(difference.key)
    match difference.kind:
        case "missing":
            return f"{named}: missing in the sink"
        case "extra":
            return f"{named}: only in the sink"
    return f"{named}: {difference.column} is {_shown(difference.source)} at the source, {_shown(difference.target)} in the sink"


def _shown(value: object) -> str:
    """Format a value on one line; long ones are cut, with their length, so that a difference far behind is visible."""
    text = repr(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}… ({len(text)} characters)"


def results_json(results: Iterable[TableResult], **about: Any) -> str:
    listed = list(results)
    return json.dumps(
        {**about, "verdict": overall(listed).value, "tables": [_table_json(result) for result in listed]}, indent=1, default=str
    )


def overall(results: Iterable[TableResult]) -> Verdict:
    """The worst verdict."""
    order = list(Verdict)
    return max((result.verdict for result in results), key=order.index, default=Verdict.EQUAL)


def _table_json(result: TableResult) -> dict[str, Any]:
    found = result.comparison
    return {
        "table": str(result.schema.name),
        "verdict": result.verdict.value,
        "rows": found.rows,
        "differences": found.total,
        "behind": result.behind,
        "missing": result.missing,
        "extra": result.extra,
        "changing": result.changing,
        "unread": result.unread,
        "repaired": result.repaired,
        "excluded": result.excluded or 0,
        "seconds": round(result.seconds, 3),
        "notes": list(result.notes),
        "first": [
            {"key": list(one.key), "kind": one.kind, "column": one.column, "source": one.source, "target": one.target}
            for one in found.differences
        ],
    }
