"""Parses an existing table's engine and columns for one source table.

Invariant: an `InspectedTable` has a supported engine. Every mismatch raises the same form of error: target table, source table, hint.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.identifiers import qualify
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.tables.engine_parser import (
    EngineParseError,
    TableEngine,
    nondeterministic_function,
    parse_distribution,
    parse_engine,
)
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable

START_OVER: Final = "drop or rename the table in ClickHouse and start with a new state directory, or use another target database"
_FAMILIES: Final = {
    "ReplacingMergeTree": EngineFamily.REPLACING,
    "CollapsingMergeTree": EngineFamily.COLLAPSING,
    "VersionedCollapsingMergeTree": EngineFamily.VERSIONED,
    "MergeTree": EngineFamily.HISTORY,
    "CoalescingMergeTree": EngineFamily.COALESCING,
}
_UNFIT: Final = {
    "SummingMergeTree": "adds up the rows of a key instead of keeping the last one",
    "AggregatingMergeTree": "aggregates the rows of a key instead of keeping the last one",
    "GraphiteMergeTree": "thins out rows by age",
    "Log": "can neither change nor take away a row",
    "TinyLog": "can neither change nor take away a row",
    "StripeLog": "can neither change nor take away a row",
    "Memory": "can neither change nor take away a row, and forgets all of them when the server stops",
    "Null": "keeps nothing",
    "Set": "cannot be read",
    "Join": "keeps one row of each key in memory, whichever came first or last",
    "Buffer": "holds rows back in memory and loses them in a crash",
    "Merge": "only reads other tables",
    "View": "is a query, not a table",
    "MaterializedView": "is the result of a query; rows are written to the table that it reads",
    "LiveView": "is a query, not a table",
    "WindowView": "is a query, not a table",
    "Dictionary": "is filled from its own source",
    "EmbeddedRocksDB": "has no versions: a replay would put an old row over a new one",
    "KeeperMap": "has no versions: a replay would put an old row over a new one",
    "Kafka": "is a stream, not a table",
    "URL": "is elsewhere, and cannot take away a row",
    "File": "cannot take away a row",
    "S3": "cannot take away a row",
    "MySQL": "is another server's table",
}
MAKE_OTHER: Final = "make the table a ReplacingMergeTree(version, is_deleted), or let Headrace make it: rename it, or choose another target"
_MAKE_SUMS: Final = (
    f"{MAKE_OTHER}; to keep this table's sums, fill it by a materialized view over a target with engine = collapsing"
    ' (docs/clickhouse.md, "Sums and aggregates")'
)
_HINTS: Final = {"SummingMergeTree": _MAKE_SUMS, "AggregatingMergeTree": _MAKE_SUMS}


def engine_family(table: ExistingTable) -> EngineFamily | None:
    """Return the family of an existing table's engine; None if it cannot be a target."""
    try:
        return _FAMILIES.get(parse_engine(table.engine).name) if table.engine else None
    except EngineParseError:
        return None


class InspectedTable:
    def __init__(self, plan: TargetTable, found: ExistingTable, options: TableOptions, local_table: ExistingTable | None) -> None:
        self.plan, self.found, self.options = plan, found, options
        self.shard_by = ""
        engine = self._parsed(found)
        self.is_distributed = engine.name == "Distributed"
        if self.is_distributed:
            self.shard_by, held = self._distribution(engine, local_table)
            self.table, self.engine = held, self._parsed(held)
        else:
            self.table, self.engine = found, engine
        family = _FAMILIES.get(self.engine.name)
        if family is None:
            reason = _UNFIT.get(self.engine.name, "Headrace does not know")
            raise self.mismatch(f"its engine is {self.engine.full_name}, which {reason}", _HINTS.get(self.engine.name, MAKE_OTHER))
        if any(argument.name is None and not argument.sql.startswith("(") for argument in self.engine.arguments):
            raise self.mismatch(f"its engine {self.engine.full_name} has arguments in the old way, before ORDER BY was written", MAKE_OTHER)
        self.family = family

    def _parsed(self, table: ExistingTable) -> TableEngine:
        if not table.engine:
            kind = table.kind or "unknown"
            raise self.mismatch(f"its engine is {kind}, which {_UNFIT.get(kind, 'Headrace does not know')}", MAKE_OTHER)
        try:
            return parse_engine(table.engine)
        except EngineParseError as error:
            raise self.mismatch(f"its engine is unknown: {table.engine}", MAKE_OTHER) from error

    def _distribution(self, engine: TableEngine, local_table: ExistingTable | None) -> tuple[str, ExistingTable]:
        try:
            over = parse_distribution(engine)
        except EngineParseError as error:
            raise self.mismatch(f"it distributes rows in a way that is not understood: {error}", MAKE_OTHER) from error
        if local_table is None:
            raise self.mismatch(
                f"it distributes rows over {over.database}.{over.table}, which is not on this server",
                "give the address of a server that holds the table as well",
            )
        if local_table.kind == "Distributed":
            raise self.mismatch(
                f"it distributes rows over {over.database}.{over.table}, which distributes them again", "choose the inner table as target"
            )
        if self.found.has_remote_shards and over.cluster != self.plan.storage.cluster:
            raise self.mismatch(
                f"it distributes rows over the servers of cluster {over.cluster}, and Headrace is not configured for that cluster: what"
                " it does to the table itself would reach one server only",
                f'choose cluster = "{over.cluster}", or make the table that holds the rows the target',
            )
        nondeterministic = nondeterministic_function(over.shard_by)
        if nondeterministic:
            raise self.mismatch(
                f"its shard key {over.shard_by} is not decided by the row: {nondeterministic}() gives another each time, so a deletion"
                " would not find its row",
                "recreate the table with a shard key of columns, such as cityHash64 of the key",
            )
        return over.shard_by, local_table

    def local_table_name(self) -> tuple[str, str]:
        over = parse_distribution(parse_engine(self.found.engine))
        return over.database or self.plan.database, over.table

    def local_table_sql(self) -> str:
        return qualify(self.local_table_name()) if self.is_distributed else self.plan.qualified

    def argument(self, place: int) -> str | None:
        names = self.engine.names or ()
        return names[place] if place < len(names) else None

    def column(self, name: str) -> ExistingColumn | None:
        held = self.table.column(name)
        if self.is_distributed and held is not None:
            outer = self.found.column(name)
            if outer is None or outer.type != held.type:
                there = "no column" if outer is None else f"column {outer.type}"
                raise self.mismatch(
                    f"it has {there} {name}, the table that holds the rows has {held.type} {name}", "make both tables of equal columns"
                )
        return held

    def require_column(self, name: str) -> ExistingColumn:
        column = self.column(name)
        if column is None:
            raise self.mismatch(
                f"it has no column {name}",
                f"add it, choose another name for it, or choose missing_columns = add ({START_OVER})",
            )
        return column

    def is_source_column(self, name: str) -> bool:
        return any(column.name == name for column in self.plan.columns)

    def mismatch(self, difference: str, hint: str) -> DefiniteError:
        return DefiniteError(
            f"the table {self.plan.full_name} is there, but is not what Headrace needs: {difference}",
            place=f"table {self.plan.source}",
            hint=hint,
        )
