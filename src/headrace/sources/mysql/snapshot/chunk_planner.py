"""Cuts a table into chunks of about equal size by its key, without scanning it.

The key space is split repeatedly at existing keys, largest part first, until every part is estimated to be a fraction of a chunk. Then
neighbours are joined. Each split costs two index look-ups. Each estimate is the optimiser's own (EXPLAIN), which dives into the index at
both ends of a range. So the cost depends on the number of chunks, not of rows.

For any estimates, the conditions are total and disjoint under the server's own comparison: a chunk is `key > bound AND key <= next bound`,
the first and last are open, and bounds are keys read from the table, which compare equal to themselves. Texts compare by the collation that
their column had when the chunks were planned. A chunk is an error if the column has got another character set.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from headrace.model.schema import TableSchema
from headrace.sources.mysql.server.connection import MySQLAddress, is_mariadb, query, quote_name, server_errors
from headrace.sources.mysql.snapshot.key_columns import KeyColumn, key_column

_PARTS_PER_CHUNK: Final = 4
# A part that this many splits did not reduce holds keys that the guesses cannot separate.
_FRUITLESS_SPLITS: Final = 64
_SPARE_SPLITS: Final = 500
_STATISTICS: Final = """
SELECT index_name, column_name, sub_part, collation, index_type, non_unique FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND column_name IS NOT NULL ORDER BY index_name, seq_in_index"""
_TEXTS: Final = """
SELECT column_name, character_set_name, collation_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """The last key of each chunk except the last chunk, and the estimated number of rows of each chunk."""

    columns: tuple[KeyColumn, ...]
    bounds: tuple[Key, ...]
    sizes: tuple[int, ...]

    @property
    def ranges(self) -> list[tuple[str, int]]:
        """The SQL condition of each chunk (empty for a whole table), and its estimated number of rows."""
        lower = ["", *(compare_key(self.columns, bound, ">", ">") for bound in self.bounds)]
        upper = [*(compare_key(self.columns, bound, "<", "<=") for bound in self.bounds), ""]
        guards = [column.guard for column in self.columns if self.bounds]
        sides = zip(lower, upper, strict=True)
        return [(" AND ".join(filter(None, (*pair, *guards))), max(size, 1)) for pair, size in zip(sides, self.sizes, strict=True)]


def plan_bounds(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, rows: int, chunk_rows: int) -> ChunkBounds:
    """Return the bounds of chunks of about `chunk_rows` rows; none if the table has no usable key."""
    whole = ChunkBounds((), (), (max(rows, 1),))
    if rows <= chunk_rows:
        return whole
    index = find_index(connection, address, schema)
    if index is None:
        return whole
    parts = _Splitter(connection, address, schema, index).parts(rows, chunk_rows)
    if find_index(connection, address, schema) != index:
        # A statement changed the order of the keys meanwhile: the bounds may not be in one order.
        return whole
    return _join(index.columns, parts, chunk_rows) if parts else whole


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The usable part of the row key's index: whole columns in one direction whose values have exact literals."""

    name: str
    columns: tuple[KeyColumn, ...]


def find_index(connection: Connection[Any], address: MySQLAddress, schema: TableSchema) -> KeyIndex | None:
    key = schema.row_key
    where = (schema.name.database, schema.name.table)
    indexes: dict[str, list[tuple[Any, ...]]] = {}
    for name, *about in query(connection, address, _STATISTICS, where):
        indexes.setdefault(str(name), []).append(tuple(about))
    texts = {
        str(name): (str(charset or ""), str(collation or "")) for name, charset, collation in query(connection, address, _TEXTS, where)
    }
    for name, parts in indexes.items():
        same = key and tuple(str(part[0]) for part in parts) == key and not int(parts[0][4])
        if same and (name == "PRIMARY") == bool(schema.primary_key):
            columns: list[KeyColumn] = []
            for column, prefix, direction, kind, _ in parts:
                found = key_column(column, schema.column(column).kind, *texts[column])
                if found is None or prefix is not None or direction != parts[0][2] or kind != "BTREE":
                    break
                columns.append(found)
            return KeyIndex(name, tuple(columns)) if columns else None
    return None


@dataclass(frozen=True, slots=True)
class _KeyRange:
    """Keys from `low` to `high`, both of which exist."""

    low: Key
    high: Key
    estimate: int
    path: tuple[int, ...] = ()
    """The position among the parts: left is 0, right is 1, at every split."""
    fruitless: int = 0


class _Splitter:
    def __init__(self, connection: Connection[Any], address: MySQLAddress, schema: TableSchema, index: KeyIndex) -> None:
        self._connection, self._address, self._columns = connection, address, index.columns
        table = f"{quote_name(schema.name.database)}.{quote_name(schema.name.table)}"
        self._from = f"FROM {table} FORCE INDEX ({quote_name(index.name)})"
        # MySQL's optimiser does not dive into a forced index: it would estimate 1 row for every range.
        self._estimated = f"FROM {table} USE INDEX ({quote_name(index.name)})"
        self._expressions = ", ".join(expression for column in self._columns for expression in column.expressions)
        self._explain = "EXPLAIN" if is_mariadb(connection) else "EXPLAIN FORMAT=TRADITIONAL"

    def parts(self, rows: int, chunk_rows: int) -> list[_KeyRange]:
        """Return parts of at most a fraction of a chunk each, in key order; larger ones where splitting does not help."""
        low, high = self._seek("", descending=False), self._seek("", descending=True)
        if low is None or high is None:
            return []
        limit = max(chunk_rows // _PARTS_PER_CHUNK, 1)
        splits_left = _SPARE_SPLITS + 4 * _PARTS_PER_CHUNK * rows // chunk_rows
        done: list[_KeyRange] = []
        heap = [(-rows, (), _KeyRange(low, high, rows))]
        while heap:
            _, _, part = heapq.heappop(heap)
            halves = self._split(part) if part.estimate > limit and splits_left > 0 and part.fruitless < _FRUITLESS_SPLITS else ()
            splits_left -= 1
            if not halves:
                done.append(part)
            for half in halves:
                heapq.heappush(heap, (-half.estimate, half.path, half))  # type: ignore[misc]
        return sorted(done, key=lambda part: part.path)

    def _split(self, part: _KeyRange) -> tuple[_KeyRange, ...]:
        """Return two parts, or none if no second key is found."""
        at = next((i for i, pair in enumerate(zip(part.low, part.high, strict=True)) if pair[0] != pair[1]), None)
        if at is None:
            return ()
        column, low, high = self._columns[at], part.low[at], part.high[at]
        same = [f"{self._columns[i].name} = {self._columns[i].literal(part.high[i])}" for i in range(at)]
        best: tuple[_KeyRange, ...] = ()
        for guess in (*column.guesses(low, high), column.literal(high)):
            inside = [f"{column.name} >= {guess}", f"{column.name} > {column.literal(low)}", f"{column.name} <= {column.literal(high)}"]
            right = self._seek(" AND ".join([*same, *inside]), descending=False)
            if right is None:
                continue
            left = self._seek(" AND ".join([*same, f"{column.name} < {column.literal(right[at])}"]), descending=True)
            if left is None:
                continue
            halves = self._halves(part, left, right)
            if not best or min(half.estimate for half in halves) > min(half.estimate for half in best):
                best = halves
            if min(half.estimate for half in best) * 16 >= part.estimate:
                break
        return best

    def _halves(self, part: _KeyRange, left: Key, right: Key) -> tuple[_KeyRange, ...]:
        estimates = self._estimate(part.low, left), self._estimate(right, part.high)
        fruitless = part.fruitless + 1 if min(estimates) * 64 < part.estimate else 0
        return (
            _KeyRange(part.low, left, estimates[0], (*part.path, 0), fruitless),
            _KeyRange(right, part.high, estimates[1], (*part.path, 1), fruitless),
        )

    def _seek(self, where: str, *, descending: bool) -> Key | None:
        """Return the first or last key that satisfies a condition: one index look-up."""
        direction = " DESC" if descending else ""
        order = ", ".join(f"{column.name}{direction}" for column in self._columns)
        condition = f" WHERE {where}" if where else ""
        rows = query(self._connection, self._address, f"SELECT {self._expressions} {self._from}{condition} ORDER BY {order} LIMIT 1")
        if not rows:
            return None
        found, at = [], 0
        for column in self._columns:
            end = at + len(column.expressions)
            found.append(column.take(rows[0][at:end]))
            at = end
        return tuple(found)

    def _estimate(self, low: Key, high: Key) -> int:
        """Return the optimiser's estimate of the rows between two keys."""
        where = f"{compare_key(self._columns, low, '>', '>=')} AND {compare_key(self._columns, high, '<', '<=')}"
        with server_errors(self._address), self._connection.cursor(DictCursor) as cursor:
            cursor.execute(f"{self._explain} SELECT 1 {self._estimated} WHERE {where}")
            found = cursor.fetchone()
        return max(int(found["rows"] or 1), 1) if found else 1


def compare_key(columns: Sequence[KeyColumn], key: Key, strict: str, last: str) -> str:
    """Return `columns < key` and the like, written out so that the range optimiser understands composite keys."""
    spelled = [(column.name, column.literal(value)) for column, value in zip(columns, key, strict=True)]
    terms = []
    for i, (name, literal) in enumerate(spelled):
        equal = [f"{n} = {x}" for n, x in spelled[:i]]
        operator = last if i == len(spelled) - 1 else strict
        terms.append(" AND ".join([*equal, f"{name} {operator} {literal}"]))
    return terms[0] if len(terms) == 1 else "(" + " OR ".join(f"({term})" for term in terms) + ")"


def _join(columns: tuple[KeyColumn, ...], parts: list[_KeyRange], chunk_rows: int) -> ChunkBounds:
    """Join neighbouring parts into chunks, cut at the last key of each."""
    groups: list[tuple[Key, int]] = []
    held = 0
    for i, part in enumerate(parts):
        held += part.estimate
        following = parts[i + 1].estimate if i + 1 < len(parts) else 0
        # Cut here if the chunk is closer to the wanted size without the next part.
        if following and abs(chunk_rows - held) <= abs(held + following - chunk_rows):
            groups.append((part.high, held))
            held = 0
    return ChunkBounds(columns, tuple(high for high, _ in groups), (*(size for _, size in groups), held))
