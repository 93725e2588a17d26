"""Finds base tables and their logs in a cluster, and checks that each log matches its base table.

A log that differs from the one ScyllaDB derives from the base table cannot be read: changes of a missing column would be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from headrace.cql.language.ddl_printer import table_name
from headrace.cql.log import SUFFIX, log_table
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe_all, describe_options, list_keyspaces, list_tables
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.snapshot.options import ScyllaOptions

log = logging.getLogger("headrace.scylla")


@dataclass(frozen=True, slots=True)
class LoggedTable:
    table: CqlTable
    id: UUID
    """Differs after the table is dropped and created again."""
    ttl: int
    """TTL of the log's rows in seconds; 0: they do not expire."""
    options: CdcOptions | None
    """None: the server does not provide it."""


@dataclass(frozen=True, slots=True)
class SelectedTables:
    logged: tuple[TableName, ...]
    unlogged: tuple[TableName, ...]


def select_tables(session: CqlSession, wanted: Callable[[TableName], bool]) -> SelectedTables:
    """Return the selected tables with and without a log. Log tables themselves are never selected."""
    logged: list[TableName] = []
    unlogged: list[TableName] = []
    for keyspace in list_keyspaces(session):
        if keyspace == "system" or keyspace.startswith("system_"):
            continue
        there = set(list_tables(session, keyspace))
        for table in sorted(there):
            name = TableName(keyspace, table)
            if wanted(name) and not table.endswith(SUFFIX):
                (logged if table + SUFFIX in there else unlogged).append(name)
    return SelectedTables(tuple(logged), tuple(unlogged))


def check_tables_readable(session: CqlSession, names: Iterable[TableName], source_options: ScyllaOptions) -> dict[TableName, LoggedTable]:
    """Return these tables as they are now; raise for the first whose log cannot be read."""
    wanted = tuple(names)
    described = describe_all(session, [*wanted, *map(log_name, wanted)])
    found = {}
    for name in wanted:
        base, options = described[name], describe_options(session, name)
        check_log(base.table, described[log_name(name)].table)
        check_options(name, options)
        found[name] = LoggedTable(base.table, base.id, log_ttl(session, name, options, source_options), options)
    return found


def log_name(name: TableName) -> TableName:
    return TableName(name.database, name.table + SUFFIX)


def log_ttl(session: CqlSession, name: TableName, options: CdcOptions | None, source_options: ScyllaOptions) -> int:
    """Return the TTL of log rows in seconds: the configured one, the base table's option, or the log table's own."""
    if source_options.log_ttl:
        return source_options.log_ttl
    return options.ttl if options is not None else default_ttl(session, log_name(name))


def default_ttl(session: CqlSession, name: TableName) -> int:
    """Return the default TTL of a table's rows in seconds; 0: none."""
    query = "SELECT default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    rows = session.execute(query, (name.database, name.table))
    return int(rows[0].default_time_to_live or 0) if rows else 0


def enabling(name: TableName) -> str:
    """Return the statement that enables the log of a table."""
    return f"ALTER TABLE {table_name(name)} WITH cdc = {{'enabled': true}}"


def no_log(name: TableName, place: str) -> DefiniteError:
    return DefiniteError(f"the table {name} has no CDC log", place=place, hint=f"{enabling(name)}; or leave it out with --exclude")


def missing_table_error(name: TableName, place: str) -> DefiniteError:
    """Return the error for a replicated table that no longer exists."""
    hint = f"the rows read from it stay in the sink; to continue without it: --exclude {name}"
    return DefiniteError(f"the table {name} no longer exists", place=place, hint=hint)


def check_options(name: TableName, options: CdcOptions | None) -> None:
    """Raise if the log's options omit needed data."""
    if options is not None and options.delta != "full":
        message = f"the log of {name} has delta = '{options.delta}': it contains the changed keys, but not the values"
        hint = f"{enabling(name).removesuffix('}')}, 'delta': 'full'}}; or leave it out with --exclude"
        raise DefiniteError(message, place=f"table {name}", hint=hint)


def check_log(base: CqlTable, found: CqlTable) -> None:
    """Raise if a log table does not match its base table."""
    there = {column.name: column for column in found.columns}
    for column in log_table(base).columns:
        other = there.pop(column.name, None)
        if other is None or (str(other.type), other.role) != (str(column.type), column.role):
            should = f"{column.type} ({column.role.value})"
            is_there = "is missing" if other is None else f"is {other.type} ({other.role.value})"
            message = f"the log of {base.name} was altered: its column {column.name} should be {should}, and {is_there}"
            hint = "a log table must be as ScyllaDB creates it: switch CDC off and on for the table and copy it again with a new --state"
            raise DefiniteError(message, place=f"table {found.name}", hint=hint)
    for name in there:
        log.warning("the log of %s has a column %s that its table does not have: it is not read", base.name, name)
