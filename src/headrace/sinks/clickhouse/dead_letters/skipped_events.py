"""Records events that the user skipped, in `headrace.errors` with state `skipped`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, format_timestamp
from headrace.sinks.clickhouse.dead_letters.dead_letters import ERRORS

SKIPPED: Final = "skipped"


def store_skipped_event(tables: OwnTables, pipe: str, found: Mapping[str, str]) -> None:
    """Record an event: `place`, `table`, `error` (why it was skipped), `content`. Repeating it stores the same row."""
    now = format_timestamp(time.time_ns() // 1000)
    row = {
        "id": hashlib.sha256("\n".join((pipe, SKIPPED, found["place"])).encode()).hexdigest()[:16],
        "pipe": pipe,
        "table": found.get("table", ""),
        "target": "",
        "state": SKIPPED,
        "key": "",
        "column": "",
        "reason": found.get("error", ""),
        "operation": "event",
        "version": 0,
        "position": found["place"],
        "commit_time": format_timestamp(0),
        "row": found.get("content", ""),
        "place": None,
        "definition": "",
        "tries": 1,
        "failed_at": now,
        "updated_at": now,
    }
    tables.ensure(ERRORS)
    tables.insert(ERRORS, [row])


@dataclass(frozen=True, slots=True)
class ClickHouseSkippedEventStore:
    """The `SkippedEventStore` of the ClickHouse sink."""

    tables: OwnTables

    def store(self, pipe: str, event: Mapping[str, str]) -> None:
        store_skipped_event(self.tables, pipe, event)
