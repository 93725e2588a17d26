"""Generated events and measurements of the pipes of `FakeControl`."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from headrace.telemetry.event import EventKind, PipeEvent, draft_event
from headrace.telemetry.log_reader import LEVELS, LogLine, LogPage, LogQuery
from headrace.telemetry.metrics import RANGES, Measurement, Series

MARKUP = "shop.<b>bold</b>\u202e"
"""A table whose name contains markup and turns the direction of text."""


def made_up_events(now: float) -> list[PipeEvent]:
    """Return one event of each kind, newest first."""
    refused = "cannot connect to the sink: connection refused"
    started = "starts with the process, Headrace 0.9.0"
    poison = "the value '0000-00-00' of column placed is no date"
    return [
        draft_event(now - 9, "billing", EventKind.ERROR, refused, "clickhouse://default@ch2:8123/billing", "start it"),
        draft_event(now - 40, "events", EventKind.FAILED, poison, "binlog.000042:1337", "skip this one event: headrace skip events"),
        draft_event(now - 50, "metrics", EventKind.WAITING, "the brokers of kafka://k1:9092 do not answer"),
        draft_event(now - 60, "crm", EventKind.SNAPSHOT_STARTED, "snapshot of 2 tables, about 1,290,000 rows"),
        draft_event(now - 300, "shop", EventKind.SCHEMA_CHANGE, f"ALTER TABLE {MARKUP} ADD COLUMN note TEXT (applied)", MARKUP),
        draft_event(now - 3600, "shop", EventKind.VERIFIED, "4 tables are equal"),
        draft_event(now - 7200, "shop", EventKind.DIFFERENCES, "3 rows differ in shop.audit; 3 tables are equal"),
        draft_event(now - 80_000, "shop", EventKind.RECOVERED, "runs again, after 5 min"),
        draft_event(now - 80_300, "shop", EventKind.FAILOVER, "continues by GTID on db2:3306, epoch 1, from binlog.000007:4"),
        draft_event(now - 90_000, "shop", EventKind.SNAPSHOT_FINISHED, "snapshot complete: 10,330,512 rows in 61.0 s (169,352 rows/s)"),
        draft_event(now - 90_061, "shop", EventKind.STARTED, started),
        draft_event(now - 90_061, "archive", EventKind.PAUSED, "is paused"),
        draft_event(now - 90_061, "reports", EventKind.STOPPED, "is stopped"),
    ]


def made_up_series(span: str, now: float, scale: float) -> Series:
    """Return a rate that follows the days, with a snapshot in the middle of the range."""
    resolution = RANGES[span]
    points = []
    for at in range(resolution.points - 1, -1, -1):
        when = now - (at + 0.5) * resolution.step_s
        day = 1000 * scale * (1.2 - math.cos(2 * math.pi * when / 86_400))
        copied = 9000.0 if 0.4 < at / resolution.points < 0.5 else 0.0
        points.append(Measurement(when, day, copied, 0.5 + copied / 3000, 212 * day))
    return Series(resolution.step_s, tuple(points))


def made_up_log(begun: float, now: float, query: LogQuery) -> LogPage:
    """Return a page of a log that has a line of the stream each second, 1000 older ones, and some troubles."""
    lines = [_made_up_line(number, begun) for number in range(1000 + int(now - begun))]
    lowest = LEVELS.index(query.level) if query.level else 0
    chosen = [
        line
        for line in lines
        if LEVELS.index(line.level) >= lowest
        and query.search.lower() in line.message.lower()
        and (query.before is None or line.position < query.before)
        and (query.after is None or line.position > query.after)
    ]
    page = chosen[-query.limit :]
    return LogPage(tuple(page), page[0].position if len(chosen) > len(page) else None, lines[-1].position)


def _made_up_line(number: int, begun: float) -> LogLine:
    at = datetime.fromtimestamp(begun - 1000 + number, UTC).isoformat(timespec="milliseconds")
    match number % 100:
        case 50:
            return LogLine(200 * number, at, "error", "failed: the value is no date", place="binlog.000042:1337", remedy="skip the event")
        case 51:
            trace = 'Traceback (most recent call last):\n  File "pipe.py", line 1, in run\nValueError: <b>bold</b>'
            return LogLine(200 * number, at, "error", "an unexpected error ended the pipe", exception=trace)
        case 70:
            return LogLine(200 * number, at, "warning", "<b>waiting</b>: the server does not answer; try 1, again in 1.0 s")
    return LogLine(200 * number, at, "info", f"stream: {7 * number} changes, 7/s, lag 0.4 s, at binlog.000042:{1000 * number}")
