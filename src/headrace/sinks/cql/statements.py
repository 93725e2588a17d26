"""The prepared statements of replay: a few for each table.

Each takes raw values, a timestamp and a TTL. A column that a row does not change is bound as *unset*, so one statement serves
every set of columns. The statements write the cells of the log exactly:

- INSERT writes the row's marker, as only the log's inserts do; everything else is UPDATE, which writes none;
- `c = ?` on a collection or user type puts its tombstone at the timestamp less one, as the server did that wrote the log;
- the TTL is always given: 0 keeps a table's default from applying.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.cql.language.ddl_printer import table_name
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import quoted

_USING = "USING TIMESTAMP ? AND TTL ?"


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns of a row, or the static columns of a partition, and its key."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[CqlColumn, ...]

    @classmethod
    def row(cls, table: CqlTable) -> Scope:
        return cls(table_name(table.name), tuple(c.name for c in (*table.partition_key, *table.clustering)), table.regular)

    @classmethod
    def partition(cls, table: CqlTable) -> Scope:
        return cls(table_name(table.name), tuple(c.name for c in table.partition_key), table.static)

    @property
    def atomic(self) -> tuple[CqlColumn, ...]:
        return tuple(column for column in self.columns if column.type.is_atomic)

    @property
    def made(self) -> tuple[CqlColumn, ...]:
        """Maps, sets and user types that are not one cell."""
        return tuple(column for column in self.columns if not column.type.is_atomic and column.type.name != "list")

    @property
    def lists(self) -> tuple[CqlColumn, ...]:
        return tuple(column for column in self.columns if not column.type.is_atomic and column.type.name == "list")

    def insert(self, columns: Sequence[CqlColumn]) -> str:
        """Bound: the key, the columns, timestamp, TTL."""
        names = [*self.keys, *(column.name for column in columns)]
        return f"INSERT INTO {self.table} ({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))}) {_USING}"

    def assign(self, columns: Sequence[CqlColumn]) -> str:
        """Bound: timestamp, TTL, the columns, the key."""
        return self._update(f"{quoted(column.name)} = ?" for column in columns)

    def change(self, columns: Sequence[CqlColumn]) -> str:
        """Parts of maps, sets and user types. Bound: timestamp, TTL, for each what is added and what is removed (a user type: its
        fields), the key."""
        return self._update(part for column in columns for part in _changes(column))

    def restore(self) -> str:
        """Live cells; nothing is cleared. Bound: timestamp, TTL, atomic columns, what is added to maps and sets and a user type's
        fields, the key."""
        parts = [f"{quoted(column.name)} = ?" for column in self.atomic]
        for column in self.made:
            parts += _changes(column) if column.type.name == "udt" else _changes(column)[:1]
        return self._update(parts)

    def element(self, column: CqlColumn) -> str:
        """A list's element by its key (ScyllaDB only). Bound: timestamp, TTL, the element's key, its value, the key."""
        return self._update([f"{quoted(column.name)}[SCYLLA_TIMEUUID_LIST_INDEX(?)] = ?"])

    def put(self, column: CqlColumn) -> str:
        """A map's element. Bound: timestamp, TTL, its key, its value, the key."""
        return self._update([f"{quoted(column.name)}[?] = ?"])

    def append(self, column: CqlColumn) -> str:
        """Bound: timestamp, TTL, a list, the key."""
        name = quoted(column.name)
        return self._update([f"{name} = {name} + ?"])

    def prepend(self, column: CqlColumn) -> str:
        """Bound: timestamp, TTL, a list, the key."""
        name = quoted(column.name)
        return self._update([f"{name} = ? + {name}"])

    def remove_at(self, column: CqlColumn) -> str:
        """A list's element by its place. Bound: the place, timestamp, the key."""
        return f"DELETE {quoted(column.name)}[?] FROM {self.table} USING TIMESTAMP ? WHERE {self._where}"

    def delete(self) -> str:
        """The row, or the partition. Bound: timestamp, the key."""
        return f"DELETE FROM {self.table} USING TIMESTAMP ? WHERE {self._where}"

    def delete_range(self, relations: Iterable[str]) -> str:
        """Bound: timestamp, the partition key (this is its scope), what the relations take."""
        return " AND ".join([self.delete(), *relations])

    @property
    def _where(self) -> str:
        return " AND ".join(f"{quoted(key)} = ?" for key in self.keys)

    def _update(self, assignments: Iterable[str]) -> str:
        return f"UPDATE {self.table} {_USING} SET {', '.join(assignments)} WHERE {self._where}"


def _changes(column: CqlColumn) -> list[str]:
    name = quoted(column.name)
    if column.type.name == "udt":
        return [f"{name}.{quoted(field)} = ?" for field in column.type.fields]
    return [f"{name} = {name} + ?", f"{name} = {name} - ?"]
