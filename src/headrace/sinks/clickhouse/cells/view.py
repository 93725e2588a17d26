"""The view of a base table: its rows as a SELECT on the source returns them, computed from merged cells.

Three nested queries: *merged* (the two tables, and for each row the greatest tombstone that covers it), *live* (which cells are live, and
their values), *visible* (values in their types, rows that exist). Key columns pass through unchanged, so conditions on them reach the
primary key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from headrace.cql.tables import ColumnRole, CqlColumn
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.storage import (
    MARKER,
    ORDER,
    PART_DELETED,
    RANGES,
    ROW_DELETED,
    CellColumn,
    CellForm,
    CellStorage,
    sort_name,
)
from headrace.sinks.clickhouse.cells.types import (
    WIDTHS,
    FieldNaming,
    cell_value_sql,
    is_nullable,
    is_plain,
    key_sql,
    nullable_type,
    order_sql,
    value_sql,
    value_type,
    with_user_field_names,
)
from headrace.sinks.clickhouse.server.identifiers import quote_name as q

_NOW: Final = "now:"
EXPIRES: Final = "expires:"
_COVERED, _PART_COVERED = "row:covered", "part:covered"
_FIRSTS, _SECONDS, _TOMBSTONES = "range:firsts", "range:seconds", "range:tombstones"
FIRST_TIMES: Final = 1262304000000000
"""2010 in microseconds: keys of prepended list elements have times before it, those of all others later times."""
SETTINGS: Final = "SETTINGS join_use_nulls = 0, join_algorithm = 'parallel_hash,hash', enable_time_time64_type = 1"
_WITH_NOW: Final = f"WITH concat('\\x01', reverse(reinterpretAsFixedString(toUInt64(now())))) AS {q(_NOW)}"
"""What a cell that expires now has after its timestamp."""


def view_sql(storage: CellStorage, cells: str, partitions: str) -> str:
    """Return the view's SELECT; `cells` and `partitions` are the quoted tables."""
    merged = merged_sql(storage, cells, partitions)
    shown = [_visible_rows_sql(storage, live_rows_sql(storage, merged))]
    if storage.static:
        shown.append(_static_only_partitions_sql(storage, merged, partitions))
    # Settings apply to one SELECT, not to a whole UNION.
    return " UNION ALL ".join(f"{select} {SETTINGS}" for select in shown)


def alive_sql(cell: str, covered: str, named: str = "") -> str:
    """Return whether a cell is live under the greatest tombstone that covers it: not deleted, and not expired.

    `named`: a unique name; the server analyses a named expression once. (A lambda cannot name expressions.)
    """
    rest = f"substring({cell}, 9, 9)"
    first, again = (f"({rest} AS {q(f'rest:{named}')})", q(f"rest:{named}")) if named else (rest, rest)
    return f"({cell} > {covered} AND ({first} < '\\x01' OR ({again} > {q(_NOW)} AND {again} < '\\x02')))"


def held_sql(cell: str) -> str:
    """Return the serialised value of a live cell."""
    return f"substring({cell}, if(substring({cell}, 9, 1) = '\\0', 10, 22))"


@dataclass(frozen=True, slots=True)
class KeyConditions:
    """Conditions on the sort keys of the two tables, as PREWHERE: FINAL then merges only the rows that satisfy them."""

    rows: str = ""
    partitions: str = ""


ALL_KEYS: Final = KeyConditions()


def merged_sql(storage: CellStorage, cells: str, partitions: str, conditions: KeyConditions = ALL_KEYS) -> str:
    """Return the rows table, joined with the tombstones that cover each row."""
    cells, partitions = f"{cells} FINAL{conditions.rows}", f"{partitions} FINAL{conditions.partitions}"
    keys = key_names(storage, ColumnRole.PARTITION, ColumnRole.CLUSTERING)
    own = [name for name, _ in storage.row_columns() if not name.startswith(("key:", "sort:", "all:")) and name not in (ORDER, ROW_DELETED)]
    if not storage.is_clustered:
        chosen = [*map(q, [*keys, *own]), f"{q(ROW_DELETED)} AS {q(_COVERED)}", *_collection_tombstones(storage.regular, _COVERED)]
        return f"SELECT {', '.join(chosen)} FROM {cells}"
    there = [name for name, _ in storage.partition_columns() if not name.startswith(("key:", "sort:", "part:", "all:"))]
    chosen = [f"r.{q(name)} AS {q(name)}" for name in [*keys, *own]]
    chosen += [f"p.{q(name)} AS {q(name)}" for name in there]
    chosen.append(f"greatest(r.{q(ROW_DELETED)}, p.{q(PART_DELETED)}, {_range_tombstone(f'r.{q(ORDER)}')}) AS {q(_COVERED)}")
    chosen.append(f"p.{q(PART_DELETED)} AS {q(_PART_COVERED)}")
    chosen += [*_collection_tombstones(storage.regular, _COVERED, "r."), *_collection_tombstones(storage.static, _PART_COVERED, "p.")]
    using = " AND ".join(f"r.{q(name)} = p.{q(name)}" for name in storage.sort_key(ColumnRole.PARTITION))
    # Bounds are decoded once per partition, not for each of its rows.
    joined = f"(SELECT * FROM {cells}) AS r LEFT ANY JOIN (SELECT *, {_bounds_sql()} FROM {partitions}) AS p ON {using}"
    return f"SELECT {', '.join(chosen)} FROM {joined}"


def _collection_tombstones(columns: Iterable[CellColumn], covered: str, table: str = "") -> list[str]:
    """Return, for each collection, the greatest tombstone that covers its elements."""
    return [
        f"greatest({q(covered)}, {table}{q(cell_column.all)}) AS {q(_tombstone_name(cell_column))}"
        for cell_column in columns
        if cell_column.form is not CellForm.ATOMIC
    ]


def _tombstone_name(cell_column: CellColumn) -> str:
    return f"covered:{cell_column.column.name}"


def range_bounds_sql(key: str) -> tuple[str, str]:
    """Return the two bounds of a range (`key_order.range_keys`)."""
    size = f"reinterpretAsUInt32(reverse(substring({key}, 1, 4)))"
    return f"substring({key}, 5, {size})", f"substring({key}, 5 + {size})"


def _bounds_sql() -> str:
    """Return the bounds and the tombstones of a partition's deleted ranges."""
    bounds = (f"arrayMap(k -> {bound}, mapKeys({q(RANGES)}))" for bound in range_bounds_sql("k"))
    return ", ".join(
        f"{value} AS {q(name)}" for value, name in zip((*bounds, f"mapValues({q(RANGES)})"), (_FIRSTS, _SECONDS, _TOMBSTONES), strict=True)
    )


def _range_tombstone(order: str) -> str:
    """Return the greatest tombstone of the ranges that contain a clustering key: from the first bound, before the second."""
    firsts, seconds, tombstones = (f"p.{q(name)}" for name in (_FIRSTS, _SECONDS, _TOMBSTONES))
    inside = f"if({order} >= f AND {order} < s, t, '')"
    return f"if(empty({tombstones}), '', arrayMax(arrayMap((f, s, t) -> {inside}, {firsts}, {seconds}, {tombstones})))"


def live_rows_sql(storage: CellStorage, merged: str, *, expiries: bool = False) -> str:
    """Return the rows of the rows table with their live cells; `expiries`: and when the first of these expires."""
    chosen = [q(name) for name in key_names(storage, ColumnRole.PARTITION, ColumnRole.CLUSTERING)]
    chosen.append(f"{alive_sql(q(MARKER), q(_COVERED), MARKER)} AS {q('alive:')}")
    chosen += [part for cell_column in storage.regular for part in _live_column(cell_column, q(_COVERED))]
    chosen += [part for cell_column in storage.static for part in _live_column(cell_column, q(_PART_COVERED))]
    if expiries:
        chosen.append(_first_expiry([(q(MARKER), q("alive:"))], (*storage.regular, *storage.static)))
    return f"{_WITH_NOW} SELECT {', '.join(chosen)} FROM ({merged})"


def live_partitions_sql(storage: CellStorage, partitions: str, condition: str = "", *, expiries: bool = False) -> str:
    """Return the partitions table with its live static cells; `expiries`: only partitions that ever had one, and when the first expires."""
    chosen = [q(name) for name in key_names(storage, ColumnRole.PARTITION)]
    chosen += [part for cell_column in storage.static for part in _live_column(cell_column, q(PART_DELETED))]
    if expiries:
        chosen.append(_first_expiry([], storage.static))
    covered = ", ".join(["*", *_collection_tombstones(storage.static, PART_DELETED)])
    ever = f" WHERE {' OR '.join(map(_was_written, storage.static))}" if expiries else ""
    return f"{_WITH_NOW} SELECT {', '.join(chosen)} FROM (SELECT {covered} FROM {partitions} FINAL{condition}){ever}"


def _was_written(cell_column: CellColumn) -> str:
    """Return whether a column has a cell, live or not."""
    match cell_column.form:
        case CellForm.ATOMIC:
            return f"notEmpty({_string_of(cell_column.cell, cell_column.kind)})"
        case CellForm.FIELDS:
            fields = [_string_of(cell_column.field(index), kind) for index, kind in enumerate(cell_column.kind.args)]
            return " OR ".join(f"notEmpty({one})" for one in fields)
        case CellForm.LIST:
            return f"notEmpty({q(cell_column.cell)}) OR notEmpty({q(cell_column.base)}.1)"
        case CellForm.MAP | CellForm.SET:
            return f"notEmpty({q(cell_column.cell)})"
        case unknown:
            assert_never(unknown)


def _first_expiry(cells: Sequence[tuple[str, str]], columns: Iterable[CellColumn]) -> str:
    """Return the rank and expiry of the live cell that expires first; 255 if none expires.

    Most rows have no such cell: for these the server evaluates the condition only.
    """
    parts = [_expiring(*cell) for cell in cells] + [part for cell_column in columns for part in _column_expiries(cell_column)]
    conditions, expiries = " OR ".join(condition for condition, _ in parts), ", ".join(expiry for _, expiry in parts)
    return f"if({conditions}, least('\\xff', {expiries}), '\\xff') AS {q(EXPIRES)}"


def _column_expiries(cell_column: CellColumn) -> list[tuple[str, str]]:
    """Return whether a column has live cells that expire, and the first expiry; of a user type, of each field."""
    name = cell_column.column.name
    match cell_column.form:
        case CellForm.ATOMIC:
            return [_expiring(_string_of(cell_column.cell, cell_column.kind), q(f"alive:{name}"))]
        case CellForm.FIELDS:
            return [
                _expiring(_string_of(cell_column.field(index), kind), _field_names(cell_column, index)[0])
                for index, kind in enumerate(cell_column.kind.args)
            ]
        case CellForm.MAP | CellForm.SET | CellForm.LIST:
            held, cell = q(f"held:{name}"), _cell_of(cell_column)
            cells = held if cell_column.form is CellForm.LIST else f"mapValues({held})"
            first = f"if(empty({held}), '\\xff', arrayMin(arrayMap(c -> {_expiring(cell)[1]}, {cells})))"
            return [(f"arrayExists(c -> substring({cell}, 9, 1) = '\\x01', {cells})", first)]
        case unknown:
            assert_never(unknown)


def _expiring(cell: str, alive: str = "1") -> tuple[str, str]:
    """Return whether a live cell expires, and its rank and expiry, or 255."""
    rest = f"substring({cell}, 9, 9)"
    condition = f"({alive} AND {rest} >= '\\x01')"
    return condition, f"if({condition}, {rest}, '\\xff')"


def _string_of(stored: str, kind: CqlType) -> str:
    return q(stored) if is_plain(kind) else f"{q(stored)}.1"


def _live_column(cell_column: CellColumn, covered: str) -> list[str]:
    """Return a column's live part: `alive:X` and `held:X`."""
    alive, held = q(f"alive:{cell_column.column.name}"), q(f"held:{cell_column.column.name}")
    if cell_column.form is CellForm.ATOMIC:
        return _live_cell(q(cell_column.cell), cell_column.kind, covered, alive, held)
    covering = q(_tombstone_name(cell_column))
    if cell_column.form is CellForm.FIELDS:
        parts = [
            part
            for index, kind in enumerate(cell_column.kind.args)
            for part in _live_cell(q(cell_column.field(index)), kind, covering, *_field_names(cell_column, index))
        ]
        return [*parts, f"({' OR '.join(_field_names(cell_column, index)[0] for index in range(len(cell_column.kind.args)))}) AS {alive}"]
    if cell_column.form is CellForm.LIST:
        return [f"{_list_sql(cell_column, covering)} AS {held}", f"notEmpty({held}) AS {alive}"]
    living = f"mapFilter((k, c) -> {alive_sql(_cell_of(cell_column), covering)}, {q(cell_column.cell)})"
    order = order_sql(cell_column.key_kind, "k")
    # A function for each element costs more than the sort.
    by_order = "" if order == "k" else f"(k, c) -> {order}, "
    return [f"mapSort({by_order}{living}) AS {held}", f"notEmpty({held}) AS {alive}"]


def _cell_of(cell_column: CellColumn) -> str:
    """Return the cell of an element `c`."""
    return "c.1" if cell_column.typed_parts else "c"


def _list_sql(cell_column: CellColumn, covering: str) -> str:
    """Return a list's live cells in order: elements prepended since the snapshot, the snapshot's elements, later elements.

    Log elements that the snapshot contains are not shown twice.
    """
    cell, base, since = _cell_of(cell_column), q(cell_column.base), q(f"since:{cell_column.column.name}")
    alive = alive_sql(cell, covering)
    newer = f"(mapSort(mapFilter((k, c) -> {alive} AND substring({cell}, 1, 8) > {base}.1, {q(cell_column.cell)})) AS {since})"
    # Without a snapshot, elements are in key order.
    first = f"arrayCount(k -> k < unhex('{_order_time(FIRST_TIMES):016x}'), mapKeys({since}))"
    seen, again = f"(arrayFilter(c -> {alive}, {base}.2) AS {q(f'seen:{cell_column.column.name}')})", q(f"seen:{cell_column.column.name}")
    spliced = f"arrayConcat(arraySlice(mapValues({since}), 1, {first}), {again}, arraySlice(mapValues({since}), 1 + {first}))"
    return f"if(empty({seen}), mapValues({newer}), {spliced})"


def _order_time(micros: int) -> int:
    return micros * 10 + 0x01B21DD213814000


def _live_cell(cell: str, kind: CqlType, covered: str, alive: str, held: str) -> list[str]:
    living = f"{alive_sql(cell if is_plain(kind) else f'{cell}.1', covered, alive)} AS {alive}"
    if kind.name in WIDTHS:
        return [living, f"{cell} AS {held}"]
    if is_plain(kind):
        return [living, f"if({alive}, {held_sql(cell)}, '') AS {held}"]
    missing = "NULL" if is_nullable(kind) else f"defaultValueOfTypeName('{_literal(nullable_type(kind, FieldNaming.INDEXED))}')"
    return [living, f"if({alive}, {cell}.2, {missing}) AS {held}"]


def _alive(cell_column: CellColumn, covered: str) -> str:
    """Return whether any cell of a column is live."""
    if cell_column.form is CellForm.ATOMIC:
        return alive_sql(q(cell_column.cell) if is_plain(cell_column.kind) else f"{q(cell_column.cell)}.1", covered)
    covering = q(_tombstone_name(cell_column))
    if cell_column.form is CellForm.FIELDS:
        cells = [
            q(cell_column.field(index)) if is_plain(kind) else f"{q(cell_column.field(index))}.1"
            for index, kind in enumerate(cell_column.kind.args)
        ]
        return f"arrayExists(c -> {alive_sql('c', covering)}, [{', '.join(cells)}])"
    cell = _cell_of(cell_column)
    alive = alive_sql(cell, covering)
    if cell_column.form is not CellForm.LIST:
        return f"mapExists((k, c) -> {alive}, {q(cell_column.cell)})"
    since = f"substring({cell}, 1, 8) > {q(cell_column.base)}.1"
    return f"(arrayExists(c -> {alive}, {q(cell_column.base)}.2) OR mapExists((k, c) -> {alive} AND {since}, {q(cell_column.cell)}))"


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _field_names(cell_column: CellColumn, index: int) -> tuple[str, str]:
    return q(f"alive:{index}:{cell_column.column.name}"), q(f"held:{index}:{cell_column.column.name}")


def _visible_rows_sql(storage: CellStorage, settled: str) -> str:
    return f"SELECT {_named(shown_columns(storage))} FROM ({settled}) WHERE {row_exists_sql(storage)}"


def _static_only_partitions_sql(storage: CellStorage, merged: str, partitions: str) -> str:
    """Return partitions that only have live static cells: one row each, without clustering columns."""
    key = storage.sort_key(ColumnRole.PARTITION)
    settled = f"{live_partitions_sql(storage, partitions)} WHERE {static_exists_sql(storage)}"
    exists = " OR ".join([alive_sql(q(MARKER), q(_COVERED)), *(_alive(cell_column, q(_COVERED)) for cell_column in storage.regular)])
    others = f"{_WITH_NOW} SELECT {', '.join(map(q, key))} FROM ({merged}) WHERE {exists}"
    same = " AND ".join(f"s.{q(name)} = o.{q(name)}" for name in key)
    inner = f"SELECT s.* FROM ({settled}) AS s LEFT ANTI JOIN ({others}) AS o ON {same}"
    return f"SELECT {_named(shown_columns(storage, static_only=True))} FROM ({inner})"


def shown_columns(storage: CellStorage, *, static_only: bool = False) -> dict[CqlColumn, str]:
    """Return the values that the source shows, by column, for rows with their live cells.

    `static_only`: for partitions that have only static cells, which are shown as a row without clustering columns.
    """
    shown: dict[CqlColumn, str] = {}
    for column in key_columns(storage):
        without = static_only and column.role is ColumnRole.CLUSTERING
        shown[column] = _no_key(column) if without else _key_value(storage, column)
    for cell_column in _in_order(storage):
        without = static_only and cell_column.column.role is not ColumnRole.STATIC
        shown[cell_column.column] = _no_value(cell_column) if without else _value(cell_column)
    return shown


def _named(columns: dict[CqlColumn, str]) -> str:
    return ", ".join(f"{value} AS {q(column.name)}" for column, value in columns.items())


def row_exists_sql(storage: CellStorage) -> str:
    """Return whether a row with its live cells exists: a marker or a regular cell is live."""
    return " OR ".join([q("alive:"), *(q(f"alive:{cell_column.column.name}") for cell_column in storage.regular)])


def static_exists_sql(storage: CellStorage) -> str:
    """Return whether a partition has a live static cell."""
    return " OR ".join(q(f"alive:{cell_column.column.name}") for cell_column in storage.static)


def _key_value(storage: CellStorage, column: CqlColumn) -> str:
    value = with_user_field_names(column.type, q(f"key:{column.name}"))
    is_missing = storage.static and column.role is ColumnRole.CLUSTERING and is_nullable(column.type)
    return f"toNullable({value})" if is_missing else value


def _no_key(column: CqlColumn) -> str:
    return f"CAST(NULL AS {nullable_type(column.type)})" if is_nullable(column.type) else _default(value_type(column.type))


def _no_value(cell_column: CellColumn) -> str:
    kind = cell_column.kind
    if cell_column.form is CellForm.ATOMIC:
        return f"CAST(NULL AS {nullable_type(kind)})" if is_nullable(kind) else _default(nullable_type(kind))
    return _default(column_type(cell_column))


def _default(name: str) -> str:
    return f"defaultValueOfTypeName('{_literal(name)}')"


def column_type(cell_column: CellColumn) -> str:
    """Return the view's type of a non-key column."""
    match cell_column.form:
        case CellForm.ATOMIC | CellForm.FIELDS:
            return nullable_type(cell_column.kind)
        case CellForm.MAP | CellForm.SET | CellForm.LIST:
            return value_type(cell_column.kind)
        case unknown:
            assert_never(unknown)


def _value(cell_column: CellColumn) -> str:
    held, alive = q(f"held:{cell_column.column.name}"), q(f"alive:{cell_column.column.name}")
    match cell_column.form:
        case CellForm.ATOMIC:
            return (
                cell_value_sql(cell_column.kind, held, alive)
                if is_plain(cell_column.kind)
                else with_user_field_names(cell_column.kind, held)
            )
        case CellForm.FIELDS:
            values = [_field_value(cell_column, index, kind) for index, kind in enumerate(cell_column.kind.args)]
            return f"CAST(tuple({', '.join(values)}) AS {value_type(cell_column.kind)})"
        case CellForm.MAP:
            contents = f"arrayMap((k, c) -> {_element(cell_column)}, {_arrays(held)})"
            return f"CAST(({_keys(cell_column, held)}, {contents}) AS {value_type(cell_column.kind)})"
        case CellForm.SET:
            return f"CAST({_keys(cell_column, held)} AS {value_type(cell_column.kind)})"
        case CellForm.LIST:
            return f"CAST(arrayMap(c -> {_element(cell_column)}, {held}) AS {value_type(cell_column.kind)})"


def _arrays(held: str) -> str:
    return f"mapKeys({held}), mapValues({held})"


def _keys(cell_column: CellColumn, held: str) -> str:
    """Return the keys of the live elements, in their type."""
    key = _key(cell_column)
    return f"mapKeys({held})" if key == "k" else f"arrayMap((k, c) -> {key}, {_arrays(held)})"


def _key(cell_column: CellColumn) -> str:
    return key_sql(cell_column.key_kind, "k") if is_plain(cell_column.key_kind) else with_user_field_names(cell_column.key_kind, "c.2")


def _element(cell_column: CellColumn) -> str:
    kind = cell_column.element_kind
    assert kind is not None
    if not is_plain(kind):
        return with_user_field_names(kind, f"c.{1 + len(cell_column.typed_parts)}")
    return value_sql(kind, held_sql("c.1" if cell_column.typed_parts else "c"))


def _field_value(cell_column: CellColumn, index: int, kind: CqlType) -> str:
    alive, held = _field_names(cell_column, index)
    return cell_value_sql(kind, held, alive) if is_plain(kind) else with_user_field_names(kind, held)


def key_columns(storage: CellStorage) -> Sequence[CqlColumn]:
    return (*storage.table.partition_key, *storage.table.clustering)


def key_names(storage: CellStorage, *roles: ColumnRole) -> list[str]:
    wanted = [column for column in key_columns(storage) if column.role in roles]
    return list(dict.fromkeys(name for column in wanted for name in (f"key:{column.name}", sort_name(column))))


def _in_order(storage: CellStorage) -> Iterable[CellColumn]:
    return (*storage.static, *storage.regular)
