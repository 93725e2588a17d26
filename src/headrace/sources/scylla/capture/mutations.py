"""Converts statements into cells.

INSERT writes a row marker, UPDATE does not. Assigning a whole collection clears it just before the statement's timestamp; deleting the
column clears it at that timestamp. List elements have timeuuid keys; if a statement names them by index or value, the list is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.cql import timeuuid
from headrace.cql.decode.value_order import elements, parts
from headrace.cql.language.lexer import shortened
from headrace.cql.language.terms import Braces, Constant, Parameters, Term
from headrace.cql.language.value_encoder import serialize, user_fields
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.statements import Assignment, AssignmentKind, ChangeStatement
from headrace.sources.scylla.capture.storage_model import Cell, ClusteringBound, ClusteringOrder, Key, Partition, RangeTombstone, StoredRow
from headrace.sources.scylla.capture.where_clause import select_rows

_MOST_TTL = 20 * 365 * 86400
ReadList = Callable[[CqlTable, Key, Key | None, str], list[tuple[bytes, bytes]]]
"""Returns the keys and values of a list before the statement; the clustering key is None for static columns."""


class ListKeys:
    """Timeuuid keys of list elements: ascending for appended, descending for prepended ones, independent of clock steps."""

    _TURN = 1262304000_0000000
    """2010-01-01, in units of 100 ns. The key of a prepended element has a time as long before this as now is after it."""

    def __init__(self, clock: Callable[[], int], rest: int) -> None:
        self._clock = clock
        self._rest = rest
        self._last = 0
        self._first = 2 * self._TURN

    def appended(self, count: int) -> list[bytes]:
        start = max(self._clock() * 10, self._last + 1)
        self._last = start + count - 1
        return [self._key(start + i) for i in range(count)]

    def prepended(self, count: int) -> list[bytes]:
        """Return keys of prepended elements, in the order of the elements."""
        start = min(2 * self._TURN - self._clock() * 10, self._first) - count
        self._first = start
        return [self._key(start + i) for i in range(count)]

    def _key(self, ticks: int) -> bytes:
        return timeuuid.make(ticks // 10, self._rest, ticks % 10).bytes


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Properties that all cells of a statement share."""

    timestamp: int
    ttl: int
    now: int
    """Seconds since 1970."""

    def live(self, value: bytes) -> Cell:
        return Cell(self.timestamp, value, self.ttl, self.now + self.ttl if self.ttl else 0)

    def dead(self) -> Cell:
        return Cell(self.timestamp, None)

    def cell(self, value: bytes | None) -> Cell:
        return self.dead() if value is None else self.live(value)


def whole_number(term: Term | None, parameters: Parameters) -> int | None:
    """Return a timestamp or a TTL; None if it is missing or null."""
    if parameters.is_unset(term):
        raise DefiniteError("a timestamp is unset: only the server knows which one it uses", hint="leave USING TIMESTAMP out")
    raw = None if term is None else serialize(CqlType("bigint"), term, parameters)
    return None if raw is None else int.from_bytes(raw, "big", signed=True)


def ttl_of(change: ChangeStatement, parameters: Parameters, default: int) -> int:
    """Return the TTL of a statement's cells; 0: none."""
    found = None if parameters.is_unset(change.using.ttl) else whole_number(change.using.ttl, parameters)
    if found is None:
        return default
    if not 0 <= found <= _MOST_TTL:
        raise DefiniteError(f"a TTL of {found} s is not allowed", place=f"statement {shortened(change.text)}", hint="0 to 20 years")
    return found


@dataclass(frozen=True, slots=True)
class MutationWriter:
    """Converts statements on one table into the cells that they write."""

    table: CqlTable
    keys: ListKeys
    read_list: ReadList

    def write(self, change: ChangeStatement, parameters: Parameters, moment: WriteContext) -> dict[Key, Partition]:
        """Return the cells that a statement writes, by partition."""
        if change.verb == "INSERT":
            return self._insert(change, parameters, moment)
        if change.verb == "UPDATE" or change.assignments:
            return self._update(change, parameters, moment)
        return self._delete(change, parameters, moment)

    def _column(self, name: str) -> CqlColumn:
        for column in self.table.columns:
            if column.name == name:
                return column
        raise self._wrong(f"there is no column {name}")

    def _wrong(self, why: str) -> DefiniteError:
        return DefiniteError(why, place=f"table {self.table.name}", hint="check the statement against the table's definition")

    def _insert(self, change: ChangeStatement, parameters: Parameters, moment: WriteContext) -> dict[Key, Partition]:
        given = {assignment.column: assignment for assignment in change.assignments}
        for name in given:
            self._column(name)
        partition_key = self._key(self.table.partition_key, given, parameters)
        with_row = any(column.name in given for column in self.table.clustering) or not self.table.clustering
        clustering = self._key(self.table.clustering, given, parameters) if with_row else ()
        written = Partition()
        if with_row:
            written.row(clustering).marker = moment.live(b"")
        for assignment in change.assignments:
            column = self._column(assignment.column)
            if column.role in (ColumnRole.STATIC, ColumnRole.REGULAR):
                if column.role is ColumnRole.REGULAR and not with_row:
                    raise self._wrong(f"the clustering columns are missing, and {column.name} is not static")
                place = _RowKey(partition_key, None if column.role is ColumnRole.STATIC else clustering)
                self._assign(_row(written, place), column, assignment, parameters, moment, place, is_delete=False)
        return {partition_key: written}

    def _key(self, columns: tuple[CqlColumn, ...], given: Mapping[str, Assignment], parameters: Parameters) -> Key:
        found = []
        for column in columns:
            value = serialize(column.type, given[column.name].value, parameters) if column.name in given else None
            if value is None:
                raise self._wrong(f"column {column.name} of the key needs a value")
            found.append(value)
        return tuple(found)

    def _update(self, change: ChangeStatement, parameters: Parameters, moment: WriteContext) -> dict[Key, Partition]:
        """Convert an INSERT, an UPDATE, or a DELETE of columns."""
        selected = select_rows(self.table, change.where, parameters)
        columns = [self._column(assignment.column) for assignment in change.assignments]
        if any(column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING) for column in columns):
            raise self._wrong("a column of the key cannot be changed")
        with_rows = any(column.role is ColumnRole.REGULAR for column in columns)
        complete = all(len(prefix) == len(self.table.clustering) for prefix in selected.prefixes) and not selected.is_slice
        if with_rows and not complete:
            raise self._wrong("all columns of the primary key need a value")
        if not with_rows and (selected.is_slice or (self.table.clustering and selected.prefixes != ((),))):
            raise self._wrong("static columns are changed by the partition key alone")
        found = {}
        for partition_key in selected.partitions:
            written = found[partition_key] = Partition()
            for column, assignment in zip(columns, change.assignments, strict=True):
                is_static = column.role is ColumnRole.STATIC
                # Static columns once per row, as servers do: an element is appended for each row.
                for place in [_RowKey(partition_key, None if is_static else prefix) for prefix in selected.prefixes]:
                    self._assign(_row(written, place), column, assignment, parameters, moment, place, is_delete=change.verb == "DELETE")
        return found

    def _delete(self, change: ChangeStatement, parameters: Parameters, moment: WriteContext) -> dict[Key, Partition]:
        """Convert a DELETE of rows, ranges of rows or partitions."""
        selected = select_rows(self.table, change.where, parameters)
        found = {}
        for partition_key in selected.partitions:
            written = found[partition_key] = Partition()
            for prefix in selected.prefixes:
                if not prefix and not selected.is_slice:
                    written.deleted = moment.timestamp
                elif len(prefix) == len(self.table.clustering):
                    written.row(prefix).deleted = moment.timestamp
                elif not _is_nothing(self.table, *selected.bounds(prefix)):
                    written.ranges.add(RangeTombstone(*selected.bounds(prefix), moment.timestamp))
        return found

    def _assign(
        self,
        row: StoredRow,
        column: CqlColumn,
        assignment: Assignment,
        parameters: Parameters,
        moment: WriteContext,
        place: _RowKey,
        *,
        is_delete: bool,
    ) -> None:
        if column.type.name == "counter":
            raise DefiniteError(
                f"Cannot create CDC log for table {self.table.name}. Counter support not implemented.",
                place=f"table {self.table.name}",
                hint="leave the table out",
            )
        if column.type.is_atomic:
            if assignment.does is not AssignmentKind.SET:
                raise self._wrong(f"{column.name} has the type {column.type}, which can only be set as a whole")
            row.put(column.name, moment.cell(serialize(column.type, assignment.value, parameters)))
            return
        found = self._elements(column, assignment, parameters, place)
        if assignment.does is AssignmentKind.SET:
            row.collection(column.name).clear(moment.timestamp if is_delete else moment.timestamp - 1)
        for key, value in found:
            row.collection(column.name).put(key, moment.cell(value))

    def _elements(
        self, column: CqlColumn, assignment: Assignment, parameters: Parameters, place: _RowKey
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the elements that an assignment writes, by key; None for deleted elements."""
        if assignment.does is AssignmentKind.FIELD and column.type.name == "udt":
            return [self._field(column, assignment, parameters)]
        if column.type.name == "list":
            return self._list_elements(column, assignment, parameters, place)
        if assignment.does is AssignmentKind.ELEMENT and column.type.name == "map":
            key = self._needed(column, serialize(column.type.args[0], assignment.key or assignment.value, parameters))
            return [(key, serialize(column.type.args[1], assignment.value, parameters))]
        if assignment.does is AssignmentKind.SUBTRACT and column.type.name in {"map", "set"}:
            keys = serialize(CqlType("set", column.type.args[:1], frozen=True), assignment.value, parameters)
            return [(key, None) for key in elements(keys or b"")]
        if assignment.does is AssignmentKind.ELEMENT and column.type.name == "set" and _is_null(assignment.value):
            return [(self._needed(column, serialize(column.type.args[0], assignment.key or assignment.value, parameters)), None)]
        if assignment.does is AssignmentKind.SET or (assignment.does is AssignmentKind.ADD and column.type.name != "udt"):
            return whole_elements(column.type, assignment.value, parameters)
        raise self._wrong(f"{column.name} of type {column.type} does not support this operation")

    def _needed(self, column: CqlColumn, value: bytes | None) -> bytes:
        if value is None:
            raise self._wrong(f"an element of {column.name} cannot be named by null")
        return value

    def _field(self, column: CqlColumn, assignment: Assignment, parameters: Parameters) -> tuple[bytes, bytes | None]:
        if assignment.field not in column.type.fields:
            raise self._wrong(f"{column.type} has no field {assignment.field}")
        index = column.type.fields.index(assignment.field)
        return index.to_bytes(2, "big"), serialize(column.type.args[index], assignment.value, parameters)

    def _list_elements(
        self, column: CqlColumn, assignment: Assignment, parameters: Parameters, place: _RowKey
    ) -> list[tuple[bytes, bytes | None]]:
        inner = column.type.args[0]
        if assignment.does is AssignmentKind.LIST_KEY and assignment.key is not None:
            key = self._needed(column, serialize(CqlType("timeuuid"), assignment.key, parameters))
            return [(key, serialize(inner, assignment.value, parameters))]
        if assignment.does is AssignmentKind.ELEMENT and assignment.key is not None:
            key = self._at(column, assignment.key, parameters, place)
            return [(key, serialize(inner, assignment.value, parameters))]
        if assignment.does is AssignmentKind.FIELD:
            raise self._wrong(f"{column.name} of type {column.type} has no fields")
        values = elements(serialize(column.type.as_frozen(), assignment.value, parameters) or b"")
        if assignment.does is AssignmentKind.SUBTRACT:
            gone = set(values)
            return [(key, None) for key, value in self._current(column, place) if value in gone] if gone else []
        keys = self.keys.prepended(len(values)) if assignment.does is AssignmentKind.PREPEND else self.keys.appended(len(values))
        return list(zip(keys, values, strict=True))

    def _at(self, column: CqlColumn, key: Term, parameters: Parameters, place: _RowKey) -> bytes:
        raw = self._needed(column, serialize(CqlType("int"), key, parameters))
        index = int.from_bytes(raw, "big", signed=True)
        current = self._current(column, place)
        if not 0 <= index < len(current):
            raise self._wrong(f"List index {index} out of bound, list has size {len(current)}")
        return current[index][0]

    def _current(self, column: CqlColumn, place: _RowKey) -> list[tuple[bytes, bytes]]:
        return self.read_list(self.table, place.partition, place.clustering, column.name)


@dataclass(frozen=True, slots=True)
class _RowKey:
    partition: Key
    clustering: Key | None
    """`clustering` is None for the static columns."""


def _row(written: Partition, place: _RowKey) -> StoredRow:
    return written.static if place.clustering is None else written.row(place.clustering)


def _is_nothing(table: CqlTable, start: ClusteringBound, end: ClusteringBound) -> bool:
    """Return whether no row can lie between two bounds; then servers write nothing."""
    order = ClusteringOrder(table).compare(start.prefix, end.prefix)
    is_point = order == 0 and len(start.prefix) == len(end.prefix)
    return order > 0 or (is_point and not (start.inclusive and end.inclusive))


def _is_null(term: Term) -> bool:
    return isinstance(term, Constant) and term.is_null


def whole_elements(kind: CqlType, value: Term, parameters: Parameters) -> list[tuple[bytes, bytes | None]]:
    """Return the elements of a whole map, set or user type; none for null and for null fields of a user type."""
    if kind.name == "udt":
        if isinstance(value, Braces):
            found = user_fields(kind, value, parameters)
        else:
            found = list(parts(serialize(kind.as_frozen(), value, parameters) or b""))
        return [(i.to_bytes(2, "big"), part) for i, part in enumerate(found) if part is not None]
    raw = serialize(kind.as_frozen(), value, parameters)
    items = elements(raw or b"")
    if kind.name == "set":
        return [(item, b"") for item in items]
    return list(zip(items[::2], items[1::2], strict=True))
