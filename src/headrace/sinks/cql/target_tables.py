"""The tables that a log is replayed into: created if missing, checked if they exist, altered with the source's.

Every step reads the target's definition first and applies the difference, so it may be interrupted and repeated. A target may have further
columns. The columns that it shares with the source's table must have the same key, types and static columns.

Claims on tables are rows of the table `headrace_targets` in the keyspace of the target tables. Plain writes and reads at the consistency of
the address (LOCAL_QUORUM by default) suffice, without lightweight transactions: a read that follows a write sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.cql.address import CqlAddress
from headrace.cql.language.ddl_printer import create_table, create_type, table_name, types_used
from headrace.cql.schema_reader import describe_all, describe_types, list_keyspaces, list_tables
from headrace.cql.session import CqlSession, shared_session
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.target_claims import Claim

_ROLE_WORDS = dict(zip(ColumnRole, (" partition key", " clustering", " static", ""), strict=True))
_HINT = "drop the target table and let it be made, or alter it to match"


def moved(table: CqlTable, keyspace: str) -> CqlTable:
    """Return the table with its user types in another keyspace."""
    columns = tuple(replace(column, type=_moved_type(column.type, keyspace)) for column in table.columns)
    return CqlTable(TableName(keyspace, table.name.table), columns)


def _moved_type(kind: CqlType, keyspace: str) -> CqlType:
    args = tuple(_moved_type(arg, keyspace) for arg in kind.args)
    return replace(kind, args=args, keyspace=keyspace if kind.name == "udt" else kind.keyspace)


def prepare(session: CqlSession, tables: Iterable[CqlTable], *, create: bool) -> None:
    """Create or check each table and its user types; `create`: whether anything may be created."""
    wanted = list(tables)
    keyspaces = set(list_keyspaces(session))
    for keyspace in sorted({table.name.database for table in wanted}):
        if keyspace not in keyspaces:
            raise _no_keyspace(session, keyspace)
        here = [table for table in wanted if table.name.database == keyspace]
        _prepare_types(session, keyspace, types_used(here), create)
        there = set(list_tables(session, keyspace))
        missing = [table for table in here if table.name.table not in there]
        for table in missing:
            _may_create(session, f"there is no table {table.name}", create)
            session.execute(create_table(table, if_not_exists=True))
        found = describe_all(session, [table.name for table in here if table.name.table in there])
        for table in here:
            if table.name in found:
                _complete(session, found[table.name].table, table, create)


def alter(session: CqlSession, old: CqlTable, new: CqlTable, *, create: bool, drop: bool) -> None:
    """Apply a change of the source's definition to the target; `drop`: also drop columns."""
    there = describe_types(session, new.name.database)
    before = {kind.udt: kind for kind in types_used([old])}
    for kind in types_used([new]):
        known = there.get(kind.udt)
        for was, name in zip(before[kind.udt].fields if kind.udt in before else (), kind.fields, strict=False):
            if known is not None and was != name and was in known.fields:
                session.execute(f"ALTER TYPE {_type_name(kind)} RENAME {quoted(was)} TO {quoted(name)}")
    _prepare_types(session, new.name.database, types_used([new]), create)
    found = describe_all(session, [new.name])[new.name].table
    columns = {column.name: column for column in found.columns}
    for was_key, key in zip(_keys(old), _keys(new), strict=True):
        if was_key.name != key.name and was_key.name in columns:
            session.execute(f"ALTER TABLE {table_name(new.name)} RENAME {quoted(was_key.name)} TO {quoted(key.name)}")
    kept = {column.name: column for column in new.cells}
    for column in old.cells if drop else ():
        gone = column.name not in kept or not _same_type(kept[column.name].type, column.type)
        if gone and column.name in columns and not _fits(columns[column.name], kept.get(column.name)):
            session.execute(f"ALTER TABLE {table_name(new.name)} DROP {quoted(column.name)}")
    _complete(session, describe_all(session, [new.name])[new.name].table, new, create)


def _fits(there: CqlColumn, wanted: CqlColumn | None) -> bool:
    return wanted is not None and there.role is wanted.role and _same_type(there.type, wanted.type)


def _prepare_types(session: CqlSession, keyspace: str, wanted: Iterable[CqlType], create: bool) -> None:
    there: Mapping[str, CqlType] = describe_types(session, keyspace)
    for kind in wanted:
        known = there.get(kind.udt)
        if known is None:
            _may_create(session, f"there is no type {_type_name(kind)}", create)
            session.execute(create_type(kind, if_not_exists=True))
            continue
        for number, (name, of) in enumerate(zip(known.fields, known.args, strict=True)):
            if number < len(kind.fields) and (name != kind.fields[number] or not _same_type(of, kind.args[number])):
                message = f"type {_type_name(kind)} has {name} {of} where the source's has {kind.fields[number]} {kind.args[number]}"
                hint = "replay into a keyspace without that type, or alter it to match"
                raise DefiniteError(message, place=str(session.address), hint=hint)
        for name, of in list(zip(kind.fields, kind.args, strict=True))[len(known.fields) :]:
            _may_create(session, f"type {_type_name(kind)} has no field {name}", create)
            session.execute(f"ALTER TYPE {_type_name(kind)} ADD {quoted(name)} {of}")


def _complete(session: CqlSession, there: CqlTable, wanted: CqlTable, create: bool) -> None:
    """Check an existing table, and add the columns that it lacks."""
    keys, theirs = _keys(wanted), _keys(there)
    if [(c.name, str(c.type), c.role, c.descending) for c in keys] != [(c.name, str(c.type), c.role, c.descending) for c in theirs]:
        message = f"the target table's key is ({_spelled(theirs)}), the source's is ({_spelled(keys)})"
        raise DefiniteError(message, place=f"table {wanted.name}, {session.address}", hint=_HINT)
    columns = {column.name: column for column in there.columns}
    for column in wanted.cells:
        found = columns.get(column.name)
        if found is None:
            _may_create(session, f"table {wanted.name} has no column {column.name}", create)
            static = " static" if column.role is ColumnRole.STATIC else ""
            session.execute(f"ALTER TABLE {table_name(wanted.name)} ADD {quoted(column.name)} {column.type}{static}")
        elif not _fits(found, column):
            message = f"the target's column is {_spelled([found])}, the source's is {_spelled([column])}"
            raise DefiniteError(message, place=f"table {wanted.name}, column {column.name}, {session.address}", hint=_HINT)


def _same_type(one: CqlType, other: CqlType) -> bool:
    """Compare types by structure; user types by name, because their fields are checked separately."""
    return str(one) == str(other)


def _keys(table: CqlTable) -> tuple[CqlColumn, ...]:
    return table.partition_key + table.clustering


def _spelled(columns: Iterable[CqlColumn]) -> str:
    return ", ".join(f"{c.name} {c.type}{_ROLE_WORDS[c.role]}{' descending' if c.descending else ''}" for c in columns)


def _type_name(kind: CqlType) -> str:
    return f"{quoted(kind.keyspace)}.{quoted(kind.udt)}"


def _may_create(session: CqlSession, message: str, create: bool) -> None:
    if not create:
        raise DefiniteError(message, place=str(session.address), hint="make it, or let it be made: leave out replay.missing = halt")


def _no_keyspace(session: CqlSession, keyspace: str) -> DefiniteError:
    replication = ", ".join(f"'{name}': 3" for name in session.datacenters)
    statement = f"CREATE KEYSPACE {quoted(keyspace)} WITH replication = {{'class': 'NetworkTopologyStrategy', {replication}}}"
    hint = f"make it with the replication that you want, e.g. {statement}; or write another one in the address"
    return DefiniteError(f"there is no keyspace {keyspace!r} to replay into", place=str(session.address), hint=hint)


log = logging.getLogger("headrace")

TABLE: Final = "headrace_targets"
_COLUMNS: Final = ("target", "state", "pipe", "source", "host", "directory", "claimed_us", "created")


@dataclass(frozen=True, slots=True)
class CqlClaims:
    """All claims of one cluster. `creates`: whether the table may be created."""

    address: CqlAddress
    creates: bool = True

    def read(self) -> list[Claim]:
        session, columns = self._session, ", ".join(_COLUMNS)
        return [Claim(*row) for keyspace in self._keyspaces for row in session.execute(f"SELECT {columns} FROM {quoted(keyspace)}.{TABLE}")]

    def write(self, claims: Sequence[Claim]) -> None:
        session, known = self._session, self._keyspaces
        for keyspace in sorted({_keyspace(claim.target) for claim in claims} - set(known)):
            if not self.creates:
                log.warning(
                    "a second pipe that writes to the same tables cannot be noticed: the keyspace %s has no table %s, and replay.missing "
                    "does not allow to create it",
                    keyspace,
                    TABLE,
                )
                continue
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{TABLE} (target text, state text, pipe text, source text, host text, "
                "directory text, claimed_us bigint, created boolean, PRIMARY KEY (target, state))"
            )
        for keyspace, claim in self._recorded(claims):
            values = tuple(getattr(claim, name) for name in _COLUMNS)
            marks = ", ".join(["%s"] * len(_COLUMNS))
            session.execute(f"INSERT INTO {quoted(keyspace)}.{TABLE} ({', '.join(_COLUMNS)}) VALUES ({marks})", values)

    def remove(self, claims: Sequence[Claim]) -> None:
        for keyspace, claim in self._recorded(claims):
            self._session.execute(f"DELETE FROM {quoted(keyspace)}.{TABLE} WHERE target = %s AND state = %s", (claim.target, claim.state))

    def existing(self, targets: Collection[str]) -> set[str]:
        there = set(list_keyspaces(self._session))
        wanted = {_keyspace(target) for target in targets} & there
        return {f"{keyspace}.{table}" for keyspace in wanted for table in list_tables(self._session, keyspace)}.intersection(targets)

    def last_seen_us(self, claim: Claim) -> int:
        """Return 0: pipes do not report to a cluster that they run."""
        del claim
        return 0

    @property
    def _session(self) -> CqlSession:
        return shared_session(self.address)

    @property
    def _keyspaces(self) -> list[str]:
        """Return the keyspaces that have the table."""
        rows = self._session.execute("SELECT keyspace_name, table_name FROM system_schema.tables")
        return sorted(row.keyspace_name for row in rows if row.table_name == TABLE)

    def _recorded(self, claims: Iterable[Claim]) -> list[tuple[str, Claim]]:
        """Return the claims in existing tables."""
        known = set(self._keyspaces)
        return [(_keyspace(claim.target), claim) for claim in claims if _keyspace(claim.target) in known]


def _keyspace(target: str) -> str:
    # No name of a keyspace has a dot.
    return target.partition(".")[0]
