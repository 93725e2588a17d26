"""Prints definitions as CQL, in the form of DESCRIBE: user types, base tables, and log tables with ScyllaDB's options."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cql.log import log_table
from headrace.cql.options import CdcOptions
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.model.schema import TableName


def table_name(name: TableName) -> str:
    return f"{quoted(name.database)}.{quoted(name.table)}"


def create_type(kind: CqlType, *, if_not_exists: bool = False) -> str:
    head = "CREATE TYPE IF NOT EXISTS" if if_not_exists else "CREATE TYPE"
    fields = ",\n".join(f"    {quoted(name)} {of}" for name, of in zip(kind.fields, kind.args, strict=True))
    return f"{head} {quoted(kind.keyspace)}.{quoted(kind.udt)} (\n{fields}\n);"


def create_table(table: CqlTable, options: CdcOptions | None = None, *, if_not_exists: bool = False) -> str:
    """Print a base table's statement. `options`: CDC options, which Apache Cassandra does not accept."""
    chosen = [f"cdc = {options}"] if options is not None else []
    return _create(table, chosen, if_not_exists)


def create_log_table(base: CqlTable, options: CdcOptions | None = None, *, cassandra: bool = False, if_not_exists: bool = False) -> str:
    """Return the CREATE TABLE statement of a log table; with `cassandra`, in Apache Cassandra's dialect."""
    return _create(log_table(base), _log_options(base, options or CdcOptions(enabled=True), cassandra), if_not_exists)


def types_used(tables: Iterable[CqlTable]) -> list[CqlType]:
    """Return the user types of tables, each once, dependencies first; not frozen."""
    found: dict[tuple[str, str], CqlType] = {}

    def look(kind: CqlType) -> None:
        for arg in kind.args:
            look(arg)
        if kind.name == "udt":
            found.setdefault((kind.keyspace, kind.udt), CqlType("udt", kind.args, keyspace=kind.keyspace, udt=kind.udt, fields=kind.fields))

    for table in tables:
        for column in table.columns:
            look(column.type)
    return list(found.values())


def _create(table: CqlTable, options: list[str], if_not_exists: bool) -> str:
    head = "CREATE TABLE IF NOT EXISTS" if if_not_exists else "CREATE TABLE"
    lines = [f"    {_column(column)}" for column in table.columns]
    lines.append(f"    PRIMARY KEY ({_primary_key(table)})")
    orders = ", ".join(f"{quoted(column.name)} {'DESC' if column.descending else 'ASC'}" for column in table.clustering)
    chosen = [f"CLUSTERING ORDER BY ({orders})", *options] if orders else options
    tail = " WITH " + "\n    AND ".join(chosen) if chosen else ""
    return f"{head} {table_name(table.name)} (\n" + ",\n".join(lines) + f"\n){tail};"


def _column(column: CqlColumn) -> str:
    return f"{quoted(column.name)} {column.type}{' static' if column.role is ColumnRole.STATIC else ''}"


def _primary_key(table: CqlTable) -> str:
    partition = [quoted(column.name) for column in table.partition_key]
    first = partition[0] if len(partition) == 1 else f"({', '.join(partition)})"
    return ", ".join([first, *(quoted(column.name) for column in table.clustering)])


def _log_options(base: CqlTable, options: CdcOptions, cassandra: bool) -> list[str]:
    compaction = {"class": "TimeWindowCompactionStrategy"}
    grace = []
    if options.ttl:
        # At most 24 files: a log's window is the 24th part of its rows' life, in whole minutes.
        window = -(-options.ttl // 24)
        compaction |= {
            "compaction_window_size": str(-(-window // 60)),
            "compaction_window_unit": "MINUTES",
            "expired_sstable_check_frequency_seconds": str(max(1, window // 2)),
        }
        # Cassandra drops a logged batch after that time, executed or not; and no other table option shows how long rows live.
        grace = [f"default_time_to_live = {options.ttl}"] if cassandra else ["gc_grace_seconds = 0"]
    caching = ({} if cassandra else {"enabled": "false"}) | {"keys": "NONE", "rows_per_partition": "NONE"}
    comment = f"CDC log for {base.name}".replace("'", "''")
    return [f"caching = {_map(caching)}", f"comment = '{comment}'", f"compaction = {_map(compaction)}", *grace]


def _map(words: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{name}': '{value}'" for name, value in words.items()) + "}"
