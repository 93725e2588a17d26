"""Evaluates WHERE clauses: partitions, rows, ranges of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from headrace.cql.decode.value_order import elements, parts
from headrace.cql.language.terms import Parameters, Parentheses, Term
from headrace.cql.language.value_encoder import serialize
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.statements import Relation
from headrace.sources.scylla.capture.storage_model import ClusteringBound, Key


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
        """Return the range of rows of one prefix."""
        start = ClusteringBound(prefix + self.lower.prefix, self.lower.inclusive) if self.lower is not None else ClusteringBound(prefix)
        end = ClusteringBound(prefix + self.upper.prefix, self.upper.inclusive) if self.upper is not None else ClusteringBound(prefix)
        return start, end


def select_rows(table: CqlTable, where: Iterable[Relation], parameters: Parameters) -> RowSelection:
    """Return what the relations of a statement select."""
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
