"""A table's rows by the server's SELECT and by the model in this process, in one form: serialised values, write times, expiries."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.cql.decode.pages import read_rows
from headrace.cql.decode.value_order import elements
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.schema_reader import list_tables
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import quoted
from headrace.sources.scylla.capture.storage_model import Cell, SelectedRow

Times = tuple[int | None, ...]


@dataclass(frozen=True)
class FoundRow:
    """A row: its columns by name, without those that are null."""

    key: tuple[bytes | None, ...]
    values: tuple[tuple[str, bytes], ...]
    times: tuple[tuple[str, Times], ...]
    """The write times of each column's cells; a user type's field by field."""
    expiring: tuple[tuple[str, tuple[bool, ...]], ...]
    """Whether those cells expire."""


def is_scylla(session: CqlSession) -> bool:
    """Whether the server writes CDC logs itself."""
    names = {name for keyspace in ("system", "system_distributed") for name in list_tables(session, keyspace)}
    return bool({"cdc_generation_timestamps", "cdc_timestamps"} & names)


def server_rows(session: CqlSession, table: CqlTable) -> list[FoundRow]:
    """Return the rows of SELECT with WRITETIME and TTL of every column outside of the key (collections need Cassandra 5)."""
    keys = [*table.partition_key, *table.clustering]
    names = [quoted(column.name) for column in (*keys, *table.cells)]
    timed = [f"{function}({quoted(column.name)})" for column in table.cells for function in ("WRITETIME", "TTL")]
    found = []
    for batch in read_rows(session, f"SELECT {', '.join(names + timed)} FROM {table_name(table.name)}"):
        columns = [column.to_pylist() for column in batch.columns]
        found += [_from_server(table, row[: len(keys)], row[len(keys) :]) for row in zip(*columns, strict=True)]
    return sorted(found, key=_by_key)


def _by_key(row: FoundRow) -> list[tuple[bool, bytes]]:
    return [(part is not None, part or b"") for part in row.key]


def _from_server(table: CqlTable, key: tuple[bytes | None, ...], rest: tuple[bytes | None, ...]) -> FoundRow:
    cells = table.cells
    values = {column.name: value for column, value in zip(cells, rest, strict=False) if value is not None}
    times_of = {column.name: (rest[len(cells) + 2 * i], rest[len(cells) + 2 * i + 1]) for i, column in enumerate(cells)}
    times = {column.name: _numbers(column, times_of[column.name][0], "q") for column in cells if column.name in values}
    ttls = {column.name: _numbers(column, times_of[column.name][1], "i") for column in cells if column.name in values}
    expiring = ((name, tuple(one is not None for one in found)) for name, found in ttls.items())
    return FoundRow(key, tuple(values.items()), tuple(times.items()), tuple(expiring))


def _numbers(column: CqlColumn, raw: bytes | None, form: str) -> Times:
    """Return a result of WRITETIME or TTL as a list."""
    if raw is None:
        return (None,)
    if column.type.is_atomic:
        return (struct.unpack(f">{form}", raw)[0],)
    width = struct.calcsize(form)
    return tuple(struct.unpack(f">{form}", part)[0] if len(part) == width else None for part in elements(raw))


def model_rows(table: CqlTable, rows: Iterable[SelectedRow]) -> list[FoundRow]:
    """Return the rows of the model."""
    return sorted((_from_model(table, row) for row in rows), key=_by_key)


def _from_model(table: CqlTable, row: SelectedRow) -> FoundRow:
    clustering = row.clustering if row.clustering is not None else (None,) * len(table.clustering)
    names = [column.name for column in table.cells if column.name in row.values]
    cells = {name: list(_cells(table.column(name), row.cells[name])) for name in names}
    return FoundRow(
        (*row.partition, *clustering),
        tuple((name, row.values[name]) for name in names),
        tuple((name, tuple(cell.timestamp if cell else None for cell in cells[name])) for name in names),
        tuple((name, tuple(bool(cell and cell.ttl) for cell in cells[name])) for name in names),
    )


def _cells(column: CqlColumn, found: Cell | tuple[tuple[bytes, Cell], ...]) -> Iterator[Cell | None]:
    if isinstance(found, Cell):
        yield found
    elif column.type.name == "udt":
        fields = {int.from_bytes(key, "big"): cell for key, cell in found}
        yield from (fields.get(i) for i in range(len(column.type.fields)))
    else:
        yield from (cell for _, cell in found)
