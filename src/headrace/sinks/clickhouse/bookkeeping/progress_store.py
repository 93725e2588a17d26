"""Stores each pipe's progress (`headrace.positions`: one row per pipe; the view `headrace.lag`) and definition (`headrace.pipes`).

Invariant: when the row is written, the tables contain every change before `position`, except the tables in `incomplete`, whose snapshot
runs. The row is written after a batch's data and before the batch is committed: after a crash it may be ahead of the checkpoint, never
ahead of the data. A replayed batch is not counted again, because its end is not above the stored position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import MOMENT, OwnTable, OwnTables, format_timestamp, parse_timestamp_us
from headrace.sinks.clickhouse.server.identifiers import quote_text

PIPES = OwnTable(
    "pipes",
    (
        ("pipe", "String"),
        ("source", "String"),
        ("selection", "String"),
        ("options", "String"),
        ("state", "String"),
        ("host", "String"),
        ("statement", "String"),
        ("created", MOMENT),
    ),
    ("pipe",),
)
POSITIONS = OwnTable(
    "positions",
    (
        ("pipe", "String"),
        ("source", "String"),
        ("position", "String"),
        ("gtid", "String"),
        ("version", "UInt64"),
        ("commit_time", f"Nullable({MOMENT})"),
        ("rows", "UInt64"),
        ("total_rows", "UInt64"),
        ("incomplete", "Array(String)"),
        ("updated_at", MOMENT),
        ("seen_at", MOMENT),
        ("pending_since", f"Nullable({MOMENT})"),
        ("state", "String"),
    ),
    ("pipe",),
)
LAG = "lag"
STOPPED_S = 30
"""A pipe without a heartbeat for this long counts as stopped."""


_TIMES: Final = {"commit_time": "commit_us", "updated_at": "updated_us", "seen_at": "seen_us", "pending_since": "pending_us"}
"""Columns with times, and the fields of `Progress` that they store."""


@dataclass(frozen=True, slots=True)
class ClickHouseProgressStore:
    own: OwnTables

    @property
    def is_in_sink(self) -> bool:
        return True

    def begin(self) -> None:
        self.own.ensure(POSITIONS)
        self.own.create_view(
            LAG,
            "SELECT pipe, source, position, version, commit_time, "
            # The lag of a stopped pipe counts from its last heartbeat.
            f"ifNull(greatest(dateDiff('millisecond', multiIf(pending_since IS NOT NULL, pending_since, "
            f"silent_seconds > {STOPPED_S}, toNullable(seen_at), NULL), now64(6, 'UTC')), 0) / 1000, 0) AS lag_seconds, "
            "dateDiff('millisecond', updated_at, now64(6, 'UTC')) / 1000 AS idle_seconds, "
            "dateDiff('millisecond', seen_at, now64(6, 'UTC')) / 1000 AS silent_seconds, "
            f"rows, total_rows, incomplete FROM {POSITIONS.qualified} FINAL",
        )

    def progress(self, pipe: str) -> Progress | None:
        # Headrace 0.9 created the table without the last two columns; a pipe adds them when it starts.
        there = self.own.columns(POSITIONS)
        names = [name for name, _ in POSITIONS.columns if name in there]
        for values in self.own.select(POSITIONS, names, f"pipe = {quote_text(pipe)}") if names else ():
            row = dict(zip(names, values, strict=True))
            times = {field: parse_timestamp_us(row[name]) if row.get(name) is not None else 0 for name, field in _TIMES.items()}
            same = {name: row[name] for name in names if name not in _TIMES}
            return Progress(**{**same, **times, "incomplete": tuple(row["incomplete"])})
        return None

    def report(self, progress: Progress) -> None:
        times = {name: format_timestamp(getattr(progress, field)) for name, field in _TIMES.items()}
        unknown = {name: None for name in ("commit_time", "pending_since") if not getattr(progress, _TIMES[name])}
        self.own.insert(POSITIONS, [{**asdict(progress), **times, **unknown}])

    def register(self, pipe: Mapping[str, str]) -> None:
        """Store a pipe's row; creation time and statement of an earlier row of the same pipe stay."""
        self.own.ensure(PIPES)
        row, names = dict(pipe), ("state", "host", "created", "statement")
        for state, host, created, statement in self.own.select(PIPES, names, f"pipe = {quote_text(pipe['pipe'])}"):
            if (state, host) == (row["state"], row["host"]):
                row |= {"created": created, "statement": row["statement"] or statement}
        self.own.insert(PIPES, [row])
