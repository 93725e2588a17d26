"""Records log rows that arrived too late to be read, in `headrace.errors` with state `late`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.sinks.cdc_log_sink import LateBatch
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, format_timestamp
from headrace.sinks.clickhouse.dead_letters.dead_letters import DONE, ERRORS, SUPERSEDED
from headrace.sinks.clickhouse.server.identifiers import quote_text

LATE: Final = "late"
_NAMES: Final = tuple(name for name, _ in ERRORS.columns)


def store_late_rows(tables: OwnTables, pipe: str, batches: Iterable[LateBatch]) -> None:
    """Record rows that arrived too late. The same position is stored once."""
    now = format_timestamp(time.time_ns() // 1000)
    rows = [
        {
            "id": hashlib.sha256("\n".join((pipe, LATE, one.place)).encode()).hexdigest()[:16],
            "pipe": pipe,
            "table": one.table,
            "target": "",
            "state": LATE,
            "key": "",
            "column": "",
            "reason": f"{one.rows} log rows arrived {(one.written_us - one.time_us) / 1e6:.0f} s later than their timestamps say, "
            "which is more than scylla.look_back allows: they were not read",
            "operation": "event",
            "version": 0,
            "position": one.place,
            "commit_time": format_timestamp(max(one.time_us, 0)),
            "row": "",
            "place": None,
            "definition": "",
            "tries": 1,
            "failed_at": now,
            "updated_at": now,
        }
        for one in batches
    ]
    if rows:
        tables.ensure(ERRORS)
        tables.insert(ERRORS, rows)


def resolve_late_rows(tables: OwnTables, pipe: str, table: str, *, copied: bool) -> None:
    """Close the records of a table that was copied again, or whose different rows were repaired."""
    state, now = SUPERSEDED if copied else DONE, format_timestamp(time.time_ns() // 1000)
    found = [dict(zip(_NAMES, row, strict=True)) for row in _select(tables, _NAMES, LATE, pipe) if row[_NAMES.index("table")] == table]
    tables.insert(ERRORS, [{**row, "state": state, "updated_at": now} for row in found])


def repaired_positions(tables: OwnTables, pipe: str) -> set[str]:
    """Return the positions of late rows whose effect was repaired."""
    return {str(place) for place, operation in _select(tables, ("position", "operation"), DONE, pipe) if operation == "event"}


@dataclass(frozen=True, slots=True)
class ClickHouseLateRowStore:
    """The `LateRowStore` of the ClickHouse sinks."""

    tables: OwnTables

    def store(self, pipe: str, batches: Iterable[LateBatch]) -> None:
        store_late_rows(self.tables, pipe, batches)

    def resolve(self, pipe: str, table: str, *, copied: bool) -> None:
        resolve_late_rows(self.tables, pipe, table, copied=copied)

    def repaired_positions(self, pipe: str) -> set[str]:
        return repaired_positions(self.tables, pipe)


def _select(tables: OwnTables, names: tuple[str, ...], state: str, pipe: str) -> list[list[Any]]:
    if not tables.exists(ERRORS):
        return []
    return tables.select(ERRORS, names, f"state = {quote_text(state)} AND pipe = {quote_text(pipe)}")
