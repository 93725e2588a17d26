"""Lists on Apache Cassandra, which cannot write an element by its key.

A table with lists has an auxiliary table with the same key, in which each list is a map from its keys (timeuuids) to its elements. The
log's changes of a list are applied to the map, in any order and any number of times. Then each row's list is made equal to its map: the
same elements in the same order, with the same timestamps and expiries (to the second). This step compares both and writes the difference,
so a replay of the block completes an interrupted one.

The elements' own keys stay Cassandra's, which no reader can see; the map keeps those of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.language.value_encoder import collection
from headrace.cql.session import CqlSession
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sinks.cql.execution import Place, ask, run_together
from headrace.sinks.cql.log_row_writes import LogRows, Write, int_bytes, long_bytes
from headrace.sinks.cql.statements import Scope

SUFFIX: Final = "_list_keys"
_LOOKS: Final = 4
_SLACK_S: Final = 3
"""The server returns the remaining seconds of an expiry, and requests follow one another."""
_TIMES: Final = CqlType("list", (CqlType("bigint"),), frozen=True)
_TTLS: Final = CqlType("list", (CqlType("int"),), frozen=True)


class Element(NamedTuple):
    value: bytes
    time: int
    ttl: int | None

    def is_like(self, other: Element) -> bool:
        if self.value != other.value or self.time != other.time or (self.ttl is None) != (other.ttl is None):
            return False
        return self.ttl is None or other.ttl is None or abs(self.ttl - other.ttl) <= _SLACK_S


def keys_table(table: CqlTable) -> CqlTable | None:
    """Return the auxiliary table; None if there are no lists."""
    columns: list[CqlColumn] = []
    for column in table.columns:
        if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING):
            columns.append(column)
        elif column.type.name == "list" and not column.type.is_atomic:
            columns.append(replace(column, type=CqlType("map", (CqlType("timeuuid"), column.type.args[0]))))
    if not any(column.role in (ColumnRole.STATIC, ColumnRole.REGULAR) for column in columns):
        return None
    return CqlTable(TableName(table.name.database, table.name.table + SUFFIX), tuple(columns))


def check(session: CqlSession, table: CqlTable) -> None:
    """Raise `DefiniteError` if the server cannot return the write times of list elements."""
    for scope in (Scope.row(table), Scope.partition(table)):
        if scope.lists:
            try:
                session.prepare(_select(scope, scope.lists))
            except DefiniteError as error:
                message = f"lists cannot be replayed into this server, which does not tell their elements' times: {error.message}"
                hint = "replay into ScyllaDB or Cassandra 5, or leave the table out"
                raise DefiniteError(message, place=f"table {table.name}, {session.address}", hint=hint) from error


def follow(session: CqlSession, rows: LogRows, listed: Sequence[int], table: CqlTable, maps: CqlTable) -> None:
    """Update the lists of rows to match their maps."""
    for role, scope in ((ColumnRole.REGULAR, Scope.row(table)), (ColumnRole.STATIC, Scope.partition(table))):
        columns = scope.lists
        chosen = [row for row in listed if _is_static(rows, table, row) is (role is ColumnRole.STATIC)]
        if not columns or not chosen:
            continue
        keys = [rows.raw(name) for name in scope.keys]
        places = {tuple(key[row] for key in keys): row for row in chosen}
        follow_keys(session, places, scope, replace(scope, table=table_name(maps.name)), rows.place)


def follow_keys(session: CqlSession, keys: dict[tuple[bytes, ...], int], scope: Scope, maps: Scope, place: Place) -> None:
    """The same, given the rows' keys (and which row of a block each is).

    The rows are read again afterwards: a snapshot task and a log task may change the same row at once, and would add an element twice.
    """
    for _ in range(_LOOKS):
        keys = _follow_once(session, keys, scope, maps, place)
        if not keys:
            return


def _follow_once(
    session: CqlSession, keys: dict[tuple[bytes, ...], int], scope: Scope, maps: Scope, place: Place
) -> dict[tuple[bytes, ...], int]:
    """Apply the missing changes; return the changed rows."""
    wanted = ask(session, [Write(_select(maps, scope.lists), key, row) for key, row in keys.items()], place)
    there = ask(session, [Write(_select(scope, scope.lists), key, row) for key, row in keys.items()], place)
    batches = []
    for (key, row), map_row, list_row in zip(keys.items(), wanted, there, strict=True):
        batch: list[Write] = []
        for number, column in enumerate(scope.lists):
            target = _elements(CqlType("map", (CqlType("timeuuid"), column.type.args[0]), frozen=True), map_row, number)
            current = _elements(column.type, list_row, number)
            batch += _steps(scope, column, current, target, key, row)
        batches.append(batch)
    run_together(session, batches, place)
    return {key: row for (key, row), batch in zip(keys.items(), batches, strict=True) if batch}


def _is_static(rows: LogRows, table: CqlTable, row: int) -> bool:
    return bool(table.clustering) and not rows.block.rows.column(table.clustering[0].name)[row].is_valid


def _select(scope: Scope, columns: Sequence[CqlColumn]) -> str:
    wanted = ", ".join(f"{form.format(quoted(column.name))}" for column in columns for form in ("{}", "WRITETIME({})", "TTL({})"))
    where = " AND ".join(f"{quoted(key)} = ?" for key in scope.keys)
    return f"SELECT {wanted} FROM {scope.table} WHERE {where} LIMIT 1"


def _elements(kind: CqlType, row: pa.RecordBatch | None, number: int) -> list[Element]:
    if row is None or not row.column(3 * number)[0].is_valid:
        return []
    # The elements stay as they are serialised.
    value = to_arrow(replace(kind, args=(*kind.args[:-1], CqlType("blob"))), row.column(3 * number))[0].as_py()
    times = to_arrow(_TIMES, row.column(3 * number + 1))[0].as_py()
    ttls = to_arrow(_TTLS, row.column(3 * number + 2))[0].as_py() or [None] * len(value)
    values = [part[1] for part in value] if kind.name == "map" else value
    return [Element(*parts) for parts in zip(values, times, ttls, strict=True)]


def _steps(
    scope: Scope, column: CqlColumn, current: Sequence[Element], target: Sequence[Element], key: tuple[bytes, ...], row: int
) -> Iterator[Write]:
    """Return the changes that turn one into the other: deleted indexes, then elements to append or (if all others follow) to prepend."""
    same = _common(current, target)
    tail = _common(current[same:][::-1], target[same:][::-1])
    comes = target[same : len(target) - tail]
    if comes and same and tail:
        # No element can be inserted between two others: all later ones are written again.
        tail, comes = 0, target[same:]
    for place in range(same, len(current) - tail):
        # A tombstone wins over a cell of its own timestamp.
        yield Write(scope.remove_at(column), (int_bytes(place), long_bytes(current[place].time), *key), row)
    groups = [list(group) for _, group in groupby(comes, key=lambda element: (element.time, element.ttl))]
    in_front = bool(tail)
    for group in reversed(groups) if in_front else groups:
        values = collection((element.value for element in group), len(group))
        text = scope.prepend(column) if in_front else scope.append(column)
        yield Write(text, (long_bytes(group[0].time), int_bytes(group[0].ttl or 0), values, *key), row)


def _common(one: Sequence[Element], other: Sequence[Element]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0].is_like(pair[1]), zip(one, other, strict=False)))
