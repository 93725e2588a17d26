"""Converts statements into cells: evaluates WHERE clauses, and writes the cells of the selected rows.

INSERT writes a row marker, UPDATE does not. Assigning a whole collection clears it just before the statement's timestamp; deleting the
column clears it at that timestamp. List elements have timeuuid keys; if a statement names them by index or value, the list is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from headrace.cql import timeuuid
from headrace.cql.decode.value_order import elements, parts
from headrace.cql.language.lexer import shortened
from headrace.cql.language.terms import Constant, Parameters, Parentheses, Term
from headrace.cql.language.value_encoder import serialize
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.statements import Assignment, AssignmentKind, ChangeStatement, Relation
from headrace.sources.scylla.capture.storage_model import (
    Cell,
    ClusteringBound,
    ClusteringOrder,
    Key,
    Partition,
    RangeTombstone,
    StoredRow,
    split_value,
)


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Selects every partition with every prefix of the clustering key; with bounds, only the rows between them."""

    partitions: tuple[Key, ...]
    prefixes: tuple[Key, ...]
    lower: ClusteringBound | None = None
    """In the table's order; its prefix is appended to each of `prefixes`."""
    upper: ClusteringBound | None = None

    @property
    def is_slice(self) -> bool:
        return self.lower is not None or self.upper is not None

    def bounds(self, prefix: Key) -> tuple[ClusteringBound, ClusteringBound]:
        start = ClusteringBound(prefix + self.lower.prefix, self.lower.inclusive) if self.lower is not None else ClusteringBound(prefix)
        end = ClusteringBound(prefix + self.upper.prefix, self.upper.inclusive) if self.upper is not None else ClusteringBound(prefix)
        return start, end


def select_rows(table: CqlTable, where: Iterable[Relation], parameters: Parameters) -> RowSelection:
    rest = list(where)
    found: list[Key] = [()]
    for column in table.partition_key:
        relation = _take(rest, column.name)
        if relation is None or relation.operator not in {"=", "IN"} or len(relation.columns) > 1:
            raise _wrong(table, f"the partition key's column {column.name} needs = or IN")
        found = [(*key, *value) for key in found for value in _values(table, (column,), relation, parameters)]
    prefixes, slices = _prefixes(table, rest, parameters)
    lower, upper = _slice(table, len(prefixes[0]) if prefixes else 0, slices, parameters)
    if rest:
        raise _wrong(table, f"column {rest[0].columns[0]} cannot be restricted here")
    return RowSelection(tuple(dict.fromkeys(found)), tuple(dict.fromkeys(prefixes)), lower, upper)


def _prefixes(table: CqlTable, rest: list[Relation], parameters: Parameters) -> tuple[list[Key], list[Relation]]:
    """Return the fixed leading clustering columns, and the relations that restrict the next ones."""
    found: list[Key] = [()]
    at = 0
    while at < len(table.clustering):
        relation = _take(rest, table.clustering[at].name)
        if relation is None:
            return found, []
        columns = table.clustering[at : at + len(relation.columns)]
        if tuple(column.name for column in columns) != relation.columns:
            raise _wrong(table, f"({', '.join(relation.columns)}) are not columns of the key in their order")
        if relation.operator not in {"=", "IN"}:
            others = [one for one in rest if one.columns[0] == relation.columns[0]]
            rest[:] = [one for one in rest if one not in others]
            return found, [relation, *others]
        values = _values(table, columns, relation, parameters)
        found = [tuple(pair[0]) + pair[1] for pair in product(found, values)]
        at += len(columns)
    return found, []


def _take(rest: list[Relation], column: str) -> Relation | None:
    for relation in rest:
        if relation.columns[0] == column:
            rest.remove(relation)
            return relation
    return None


def _values(table: CqlTable, columns: tuple[CqlColumn, ...], relation: Relation, parameters: Parameters) -> list[Key]:
    if relation.operator != "IN":
        return [_one(table, columns, relation, relation.value, parameters)]
    if isinstance(relation.value, Parentheses):
        return [_one(table, columns, relation, item, parameters) for item in relation.value.items]
    inner = CqlType("tuple", tuple(column.type for column in columns)) if relation.is_tuple else columns[0].type
    raw = serialize(CqlType("list", (inner.as_frozen(),), frozen=True), relation.value, parameters)
    if raw is None:
        raise _wrong(table, "IN needs values")
    return [_whole(table, tuple(parts(item))) if relation.is_tuple else (item,) for item in elements(raw)]


def _one(table: CqlTable, columns: tuple[CqlColumn, ...], relation: Relation, term: Term, parameters: Parameters) -> Key:
    if not relation.is_tuple:
        return _whole(table, (serialize(columns[0].type, term, parameters),))
    if isinstance(term, Parentheses):
        if len(term.items) != len(columns):
            raise _wrong(table, "a tuple needs as many values as columns")
        return _whole(table, tuple(serialize(column.type, item, parameters) for column, item in zip(columns, term.items, strict=True)))
    raw = serialize(CqlType("tuple", tuple(column.type for column in columns)), term, parameters)
    return _whole(table, tuple(parts(raw or b"")))


def _whole(table: CqlTable, values: tuple[bytes | None, ...]) -> Key:
    found = tuple(value for value in values if value is not None)
    if len(found) != len(values):
        raise _wrong(table, "a column of the key cannot be null")
    return found


def _slice(
    table: CqlTable, at: int, slices: list[Relation], parameters: Parameters
) -> tuple[ClusteringBound | None, ClusteringBound | None]:
    lower = upper = None
    for relation in slices:
        columns = table.clustering[at : at + len(relation.columns)]
        if tuple(column.name for column in columns) != relation.columns or len({column.descending for column in columns}) > 1:
            raise _wrong(table, f"({', '.join(relation.columns)}) cannot be restricted: its columns differ in order or position")
        bound = ClusteringBound(_one(table, columns, relation, relation.value, parameters), relation.operator.endswith("="))
        if (relation.operator[0] == ">") != columns[0].descending:
            lower = _single(table, lower, bound)
        else:
            upper = _single(table, upper, bound)
    return lower, upper


def _single(table: CqlTable, old: ClusteringBound | None, new: ClusteringBound) -> ClusteringBound:
    if old is not None:
        raise _wrong(table, "a range has at most one bound on each side")
    return new


def _wrong(table: CqlTable, why: str) -> DefiniteError:
    return DefiniteError(why, place=f"table {table.name}", hint="check the statement's WHERE")


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
class StatementProperties:
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
    parameters: Parameters
    moment: StatementProperties

    def write(self, change: ChangeStatement) -> dict[Key, Partition]:
        if change.verb == "INSERT":
            return self._insert(change)
        if change.verb == "UPDATE" or change.assignments:
            return self._update(change)
        return self._delete(change)

    def _column(self, name: str) -> CqlColumn:
        for column in self.table.columns:
            if column.name == name:
                return column
        raise self._wrong(f"there is no column {name}")

    def _wrong(self, why: str) -> DefiniteError:
        return DefiniteError(why, place=f"table {self.table.name}", hint="check the statement against the table's definition")

    def _insert(self, change: ChangeStatement) -> dict[Key, Partition]:
        given = {assignment.column: assignment for assignment in change.assignments}
        for name in given:
            self._column(name)
        partition_key = self._key(self.table.partition_key, given)
        with_row = any(column.name in given for column in self.table.clustering) or not self.table.clustering
        clustering = self._key(self.table.clustering, given) if with_row else ()
        written = Partition()
        if with_row:
            written.row(clustering).marker = self.moment.live(b"")
        for assignment in change.assignments:
            column = self._column(assignment.column)
            if column.role in (ColumnRole.STATIC, ColumnRole.REGULAR):
                if column.role is ColumnRole.REGULAR and not with_row:
                    raise self._wrong(f"the clustering columns are missing, and {column.name} is not static")
                place = _RowKey(partition_key, None if column.role is ColumnRole.STATIC else clustering)
                self._assign(_row(written, place), column, assignment, place, is_delete=False)
        return {partition_key: written}

    def _key(self, columns: tuple[CqlColumn, ...], given: Mapping[str, Assignment]) -> Key:
        found = []
        for column in columns:
            value = serialize(column.type, given[column.name].value, self.parameters) if column.name in given else None
            if value is None:
                raise self._wrong(f"column {column.name} of the key needs a value")
            found.append(value)
        return tuple(found)

    def _update(self, change: ChangeStatement) -> dict[Key, Partition]:
        """Convert an INSERT, an UPDATE, or a DELETE of columns."""
        selected = select_rows(self.table, change.where, self.parameters)
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
                    self._assign(_row(written, place), column, assignment, place, is_delete=change.verb == "DELETE")
        return found

    def _delete(self, change: ChangeStatement) -> dict[Key, Partition]:
        """Convert a DELETE of rows, ranges of rows or partitions."""
        selected = select_rows(self.table, change.where, self.parameters)
        found = {}
        for partition_key in selected.partitions:
            written = found[partition_key] = Partition()
            for prefix in selected.prefixes:
                if not prefix and not selected.is_slice:
                    written.deleted = self.moment.timestamp
                elif len(prefix) == len(self.table.clustering):
                    written.row(prefix).deleted = self.moment.timestamp
                elif not _is_nothing(self.table, *selected.bounds(prefix)):
                    written.ranges.add(RangeTombstone(*selected.bounds(prefix), self.moment.timestamp))
        return found

    def _assign(self, row: StoredRow, column: CqlColumn, assignment: Assignment, place: _RowKey, *, is_delete: bool) -> None:
        if column.type.is_atomic:
            if assignment.does is not AssignmentKind.SET:
                raise self._wrong(f"{column.name} has the type {column.type}, which can only be set as a whole")
            row.put(column.name, self.moment.cell(serialize(column.type, assignment.value, self.parameters)))
            return
        found = self._elements(column, assignment, place)
        if assignment.does is AssignmentKind.SET:
            row.collection(column.name).clear(self.moment.timestamp if is_delete else self.moment.timestamp - 1)
        for key, value in found:
            row.collection(column.name).put(key, self.moment.cell(value))

    def _elements(self, column: CqlColumn, assignment: Assignment, place: _RowKey) -> list[tuple[bytes, bytes | None]]:
        """Return the elements that an assignment writes, by key; None for deleted elements."""
        if assignment.does is AssignmentKind.FIELD and column.type.name == "udt":
            return [self._field(column, assignment)]
        if column.type.name == "list":
            return self._list_elements(column, assignment, place)
        if assignment.does is AssignmentKind.ELEMENT and column.type.name == "map":
            key = self._needed(column, serialize(column.type.args[0], assignment.key or assignment.value, self.parameters))
            return [(key, serialize(column.type.args[1], assignment.value, self.parameters))]
        if assignment.does is AssignmentKind.SUBTRACT and column.type.name in {"map", "set"}:
            keys = serialize(CqlType("set", column.type.args[:1], frozen=True), assignment.value, self.parameters)
            return [(key, None) for key in elements(keys or b"")]
        if assignment.does is AssignmentKind.ELEMENT and column.type.name == "set" and _is_null(assignment.value):
            return [(self._needed(column, serialize(column.type.args[0], assignment.key or assignment.value, self.parameters)), None)]
        if assignment.does is AssignmentKind.SET or (assignment.does is AssignmentKind.ADD and column.type.name != "udt"):
            raw = serialize(column.type.as_frozen(), assignment.value, self.parameters) or b""
            # Null fields of a user type are not written.
            return [(key, part) for key, part in split_value(column.type, raw) if part is not None]
        raise self._wrong(f"{column.name} of type {column.type} does not support this operation")

    def _needed(self, column: CqlColumn, value: bytes | None) -> bytes:
        if value is None:
            raise self._wrong(f"an element of {column.name} cannot be named by null")
        return value

    def _field(self, column: CqlColumn, assignment: Assignment) -> tuple[bytes, bytes | None]:
        if assignment.field not in column.type.fields:
            raise self._wrong(f"{column.type} has no field {assignment.field}")
        index = column.type.fields.index(assignment.field)
        return index.to_bytes(2, "big"), serialize(column.type.args[index], assignment.value, self.parameters)

    def _list_elements(self, column: CqlColumn, assignment: Assignment, place: _RowKey) -> list[tuple[bytes, bytes | None]]:
        inner = column.type.args[0]
        if assignment.does is AssignmentKind.LIST_KEY and assignment.key is not None:
            key = self._needed(column, serialize(CqlType("timeuuid"), assignment.key, self.parameters))
            return [(key, serialize(inner, assignment.value, self.parameters))]
        if assignment.does is AssignmentKind.ELEMENT and assignment.key is not None:
            key = self._at(column, assignment.key, place)
            return [(key, serialize(inner, assignment.value, self.parameters))]
        if assignment.does is AssignmentKind.FIELD:
            raise self._wrong(f"{column.name} of type {column.type} has no fields")
        values = elements(serialize(column.type.as_frozen(), assignment.value, self.parameters) or b"")
        if assignment.does is AssignmentKind.SUBTRACT:
            gone = set(values)
            return [(key, None) for key, value in self._current(column, place) if value in gone] if gone else []
        keys = self.keys.prepended(len(values)) if assignment.does is AssignmentKind.PREPEND else self.keys.appended(len(values))
        return list(zip(keys, values, strict=True))

    def _at(self, column: CqlColumn, key: Term, place: _RowKey) -> bytes:
        raw = self._needed(column, serialize(CqlType("int"), key, self.parameters))
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
