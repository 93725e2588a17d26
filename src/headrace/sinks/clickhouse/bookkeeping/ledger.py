"""Records schema changes in `headrace.schema_changes`: the source's statement, the sink's statements and the outcome.

Invariant: a change of a table at a position has one row. Existing rows are not written again; duplicates after a lost answer merge by key.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTable, OwnTables
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.schema_changes import LedgerEntry

LEDGER = OwnTable(
    "schema_changes",
    (
        ("pipe", "String"),
        ("version", "UInt64"),
        ("position", "String"),
        ("source_table", "String"),
        ("kind", "LowCardinality(String)"),
        ("statement", "String"),
        ("translation", "String"),
        ("outcome", "LowCardinality(String)"),
        ("detail", "String"),
        ("time", "DateTime64(3, 'UTC')"),
    ),
    ("pipe", "version", "source_table"),
)


def record(tables: OwnTables, entries: Iterable[LedgerEntry]) -> None:
    """Write the entries that are not stored yet."""
    wanted = list(entries)
    if not wanted:
        return
    tables.ensure(LEDGER)
    pipes = ", ".join(sorted({quote_text(entry.pipe) for entry in wanted}))
    versions = ", ".join(sorted({str(entry.version) for entry in wanted}))
    there = {tuple(row) for row in tables.select(LEDGER, LEDGER.sort_key, f"pipe IN ({pipes}) AND version IN ({versions})")}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    fresh = [entry for entry in wanted if (entry.pipe, entry.version, entry.source_table) not in there]
    tables.insert(LEDGER, [{**entry.to_json(), "time": now} for entry in fresh])
