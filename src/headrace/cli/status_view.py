"""Renders the status of a process for a terminal: a table of pipes, with errors and remedies below it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from headrace.service.status import ErrorStatus, PipeStage, PipeStatus, ServiceStatus, TableStatus, VerifyResult
from headrace.terminal_text import escape_text

_STYLES: Final = {
    PipeStage.STREAMING: "green",
    PipeStage.SNAPSHOT: "cyan",
    PipeStage.STARTING: "cyan",
    PipeStage.WAITING: "yellow",
    PipeStage.RETRYING: "yellow",
    PipeStage.FAILED: "bold red",
}
_VERDICTS: Final = {"equal": "green", "different": "bold red", "undecided": "yellow", "running": "cyan"}
_UNKNOWN: Final = "-"


def make_console() -> Console:
    """Return a console that does not truncate output to a file or program."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)


def render_status(status: ServiceStatus, *, tables: bool = False, now: float | None = None) -> RenderableType:
    at = time.time() if now is None else now
    parts: list[RenderableType] = [_head(status, at), _pipes(status, at)]
    if tables:
        parts.append(_tables(status, at))
    return Group(*parts, *_remarks(status, at))


def _head(status: ServiceStatus, now: float) -> Text:
    memory = f", {size(status.memory_bytes)} of memory" if status.memory_bytes else ""
    running = f"headrace {status.version}, process {status.pid}, up {duration(now - status.started)}{memory}"
    return Text(f"{running}: {status.file}", style="dim")


def _pipes(status: ServiceStatus, now: float) -> Table:
    table = Table("pipe", "stage", *(_right(name) for name in ("lag", "behind", "rate", "changes", "tables")), "position")
    for pipe in status.pipes:
        position = pipe.position if len(pipe.position) <= 60 else f"{pipe.position[:59]}…"
        table.add_row(
            Text(escape_text(pipe.name)),
            _stage(pipe, now),
            _UNKNOWN if pipe.lag_s is None else duration(pipe.lag_s),
            _UNKNOWN if pipe.lag_bytes is None else size(pipe.lag_bytes),
            f"{pipe.rate:,.0f}/s" if pipe.rate >= 1 or not pipe.rate else f"{pipe.rate:.1f}/s",
            f"{pipe.changes:,}",
            str(len(pipe.tables)) if pipe.tables else _UNKNOWN,
            Text(escape_text(position)),
        )
    return table


def _stage(pipe: PipeStatus, now: float) -> Text:
    text = Text(pipe.stage, style=_STYLES.get(pipe.stage, "dim"))
    if pipe.stage is PipeStage.SNAPSHOT:
        copied = [(one.copied, one.estimate) for one in pipe.tables if one.copied is not None and one.estimate]
        if copied:
            text.append(f" {min(1.0, sum(done for done, _ in copied) / sum(whole for _, whole in copied)):.0%}")
        if pipe.eta_s is not None:
            text.append(f", {duration(pipe.eta_s)} left")
    elif pipe.stage is PipeStage.RETRYING and pipe.next_try:
        text.append(f", again in {duration(max(0.0, pipe.next_try - now))}")
    elif pipe.stage is PipeStage.WAITING:
        text.append(f" {duration(pipe.waiting_s)}")
    return text


def _tables(status: ServiceStatus, now: float) -> Table:
    table = Table("pipe", "table", "target", *(_right(name) for name in ("rows", "changes", "last change")), "snapshot", "verified")
    shows_not_written = any(_not_written(one) for pipe in status.pipes for one in pipe.tables)
    if shows_not_written:
        table.add_column("not written")
    for pipe in status.pipes:
        for one in pipe.tables:
            table.add_row(
                Text(escape_text(pipe.name)),
                Text(escape_text(one.name)),
                Text(escape_text(one.target)),
                _UNKNOWN if one.rows is None else f"{one.rows:,}",
                f"{one.changes:,}",
                f"{duration(now - one.last_change)} ago" if one.last_change else _UNKNOWN,
                _copied(one),
                _verified(one, now),
                *([_not_written(one) or _UNKNOWN] if shows_not_written else ()),
            )
    return table


def _not_written(table: TableStatus) -> str:
    """Name the changes and rows of a table that are not in the target."""
    counts = ((table.skipped, "skipped"), (table.dead_letters, "refused"), (table.late_rows, "late"), (table.filtered, "filtered"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count)


def _copied(table: TableStatus) -> str:
    if table.complete:
        return "complete"
    if table.copied is None:
        return "waits"
    return f"{table.copied:,} of about {table.estimate:,}" if table.estimate else f"{table.copied:,} rows"


def _verified(table: TableStatus, now: float) -> Text:
    last = table.verify
    if last is None:
        return Text(_UNKNOWN)
    when = "" if last.verdict == "running" else f", {duration(now - last.at)} ago"
    rows = ", ".join(f"{count:,} {word}" for count, word in difference_counts(last))
    others = (
        f", {last.repaired:,} repaired" if last.repaired else "",
        f", {escape_text(last.partial)}" if last.partial else "",
        ", pipe stopped" if last.pipe_stopped else "",
    )
    return Text(f"{last.verdict}{f' ({rows})' if rows else ''}{when}{''.join(others)}", style=_VERDICTS.get(last.verdict, ""))


def difference_counts(last: VerifyResult) -> list[tuple[int, str]]:
    """Return the rows of a comparison that were not equal, by kind."""
    counts = [(last.different, "different"), (last.missing, "missing"), (last.extra, "extra"), (last.undecided, "undecided")]
    return [(count, word) for count, word in counts if count]


def _remarks(status: ServiceStatus, now: float) -> Iterator[Text]:
    """Yield errors, waits and other notes below the table."""
    for pipe in status.pipes:
        name = escape_text(pipe.name)
        if pipe.error is not None:
            yield from render_error(pipe.name, pipe.error, now)
        elif pipe.waiting:
            yield _note(name, f"waits: {escape_text(pipe.waiting)}")
        if pipe.dead_letters:
            yield _note(name, f"{pipe.dead_letters:,} rows were refused and wait in headrace.errors")
            yield Text("  remedy: headrace retry SINK --list shows them, headrace retry SINK writes them again")
        if pipe.skipped:
            listed = "skips.jsonl in the state directory lists them"
            yield _note(name, f"{pipe.skipped:,} events were left out by headrace skip, in total; {listed}")
        if pipe.unreadable:
            where = "they are in headrace.errors (state unreadable) or in the dead-letter topic"
            yield _note(name, f"{pipe.unreadable:,} records could not be read, in total; {where}")
        if pipe.filtered:
            excluded = f"{pipe.filtered:,} changes or snapshot rows were excluded by filters, since the process began"
            yield Text(f"{name}: {excluded}; headrace verify counts the rows")
        if pipe.late_rows:
            first = f", the first at {escape_text(pipe.late_place)}" if pipe.late_place else ""
            yield _note(name, f"{pipe.late_rows:,} log rows arrived too late to be read{first}")
            yield Text(
                f"  remedy: headrace verify --repair writes different rows again; headrace resync TABLE --pipe {name} copies it again"
            )
        differ = [one.name for one in pipe.tables if one.verify is not None and one.verify.verdict == "different"]
        if differ:
            yield _note(name, f"verify found differences in {', '.join(map(escape_text, differ))}")


def _note(name: str, text: str, style: str = "yellow") -> Text:
    return Text.assemble((f"{name}: ", style), text)


def render_error(name: str, error: ErrorStatus, now: float) -> Iterator[Text]:
    where = f" (at {escape_text(error.place)})" if error.place else ""
    when = f", {duration(now - error.at)} ago" if error.at else ""
    yield _note(escape_text(name), f"{escape_text(error.message)}{where}{when}", "yellow" if error.transient else "bold red")
    if error.remedy:
        yield Text(f"  remedy: {escape_text(error.remedy)}")
    if error.skippable:
        yield Text(f"  or leave out this one event: headrace skip {escape_text(name)}")


def _right(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def duration(seconds: float) -> str:
    """Format a duration in at most two units."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, name, smaller, smaller_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {smaller_name}" if rest else f"{whole // unit} {name}"
    raise AssertionError("a minute is the smallest unit")


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
