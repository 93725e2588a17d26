"""Base tables and their logs, as a cluster has them: which tables have one, and whether it is what its base table demands.

A log that is not what ScyllaDB makes of the base table cannot be read by its rules: a column that is missing is a change that is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace.cql.log import SUFFIX, log_table
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe_all, describe_options, list_keyspaces, list_tables
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla.snapshot.options import ScyllaOptions

log = logging.getLogger("headrace.scylla")

_SYSTEM: Final = ("system", "system_")


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A base table that has a log."""

    table: CqlTable
    id: UUID
    """Changes when the table is dropped and created again."""
    ttl: int
    """Seconds for which the log's rows live; 0: for ever."""
    options: CdcOptions | None
    """None: the server does not provide it."""


@dataclass(frozen=True, slots=True)
class SelectedTables:
    """The tables of a cluster that somebody chose."""

    logged: tuple[TableName, ...]
    unlogged: tuple[TableName, ...]


def select_tables(session: CqlSession, wanted: Callable[[TableName], bool]) -> SelectedTables:
    """The chosen tables, with a log and without. Log tables themselves are not chosen."""
    logged: list[TableName] = []
    unlogged: list[TableName] = []
    for keyspace in list_keyspaces(session):
        if keyspace == _SYSTEM[0] or keyspace.startswith(_SYSTEM[1]):
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
    """A base table's log table."""
    return TableName(name.database, name.table + SUFFIX)


def log_ttl(session: CqlSession, name: TableName, options: CdcOptions | None, source_options: ScyllaOptions) -> int:
    """Return the TTL of log rows in seconds: the configured one, the base table's option, or the log table's own."""
    if source_options.log_ttl:
        return source_options.log_ttl
    if options is not None:
        return options.ttl
    target = log_name(name)
    rows = session.execute(
        "SELECT default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
        (target.database, target.table),
    )
    return int(rows[0].default_time_to_live or 0) if rows else 0


def enabling(name: TableName) -> str:
    """The statement that gives a table a log."""
    return f"ALTER TABLE {quoted(name.database)}.{quoted(name.table)} WITH cdc = {{'enabled': true}}"


def no_log(name: TableName, place: str) -> DefiniteError:
    """A chosen table has no log."""
    return DefiniteError(f"the table {name} has no CDC log", place=place, hint=f"{enabling(name)}; or leave it out with --exclude")


def missing_table_error(name: TableName, place: str) -> DefiniteError:
    """Return the error for a replicated table that no longer exists."""
    return DefiniteError(
        f"the table {name} is not there any more",
        place=place,
        hint=f"what was read of it stays in the sink; go on without it: --exclude {name}",
    )


def check_options(name: TableName, options: CdcOptions | None) -> None:
    """Raise if the log's options omit needed data."""
    if options is not None and options.delta != "full":
        raise DefiniteError(
            f"the log of {name} has delta = '{options.delta}': it says which rows changed, and not how",
            place=f"table {name}",
            hint=f"{enabling(name).removesuffix('}')}, 'delta': 'full'}}; or leave it out with --exclude",
        )


def check_log(base: CqlTable, found: CqlTable) -> None:
    """Raise if a log table is not what its base table demands."""
    there = {column.name: column for column in found.columns}
    for column in log_table(base).columns:
        other = there.pop(column.name, None)
        if other is None or (str(other.type), other.role) != (str(column.type), column.role):
            should = f"{column.type} ({column.role.value})"
            is_there = "is not there" if other is None else f"is {other.type} ({other.role.value})"
            raise DefiniteError(
                f"the log of {base.name} was altered: its column {column.name} should be {should}, and {is_there}",
                place=f"table {found.name}",
                hint="a log table must be as ScyllaDB makes it: switch CDC off and on for the table, and copy it again with a new --state",
            )
    for name in there:
        log.warning("the log of %s has a column %s that its table has not: it is not read", base.name, name)
