"""The view of a base table: its rows as SELECT shows them on its own server, made of merged cells.

Three steps, one subquery each: *merged* (the two tables, and for each row the greatest tombstone that covers all of it), *settled* (which
cells are alive, what they hold), *shown* (values in their types, rows that exist). Columns of the key pass through all three as they are,
so that conditions on them reach the primary key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.cql.tables import CqlColumn, Role
from headrace.cql.types import CqlType
from headrace.sinks.clickhouse.cells.storage import MARKER, ORDER, PART_DELETED, RANGES, ROW_DELETED, Form, Kept, Storage, sort_name
from headrace.sinks.clickhouse.cells.types import (
    Naming,
    cell_value_sql,
    is_plain,
    key_sql,
    nullable_type,
    order_sql,
    renamed_sql,
    shown_type,
    takes_null,
    value_sql,
)
from headrace.sinks.clickhouse.names import quote_name as q

_NOW: Final = "reverse(reinterpretAsFixedString(toUInt64(now())))"
_DELETED: Final = "row:covered"
_PART_COVERED: Final = "part:covered"
FIRST_TIMES: Final = 1262304000000000
"""2010 in microseconds: the keys of elements that were put before a list's others have times before it, those of all others later ones."""
SETTINGS: Final = "SETTINGS join_use_nulls = 0, enable_time_time64_type = 1"


def view_sql(storage: Storage, cells: str, partitions: str) -> str:
    """The view's SELECT; `cells` and `partitions` are the tables, quoted."""
    rows = _shown_rows(storage, _settled_rows(storage, cells, partitions))
    if storage.static:
        rows += " UNION ALL " + _shown_partitions(storage, cells, partitions)
    return f"{rows} {SETTINGS}"


def alive_sql(cell: str, covered: str) -> str:
    """Whether a cell is alive under the greatest tombstone that covers it."""
    rank = f"substring({cell}, 9, 1)"
    return f"({cell} > {covered} AND ({rank} = '\\0' OR ({rank} = '\\x01' AND substring({cell}, 10, 8) > {_NOW})))"


def held_sql(cell: str) -> str:
    """The serialised value of a cell that is alive."""
    return f"substring({cell}, if(substring({cell}, 9, 1) = '\\0', 10, 22))"


def _settled_rows(storage: Storage, cells: str, partitions: str) -> str:
    """Rows of the table of rows with what of them is alive."""
    chosen = [q(name) for name in _key_names(storage, Role.PARTITION, Role.CLUSTERING)]
    chosen.append(f"{alive_sql(q(MARKER), q(_DELETED))} AS {q('alive:')}")
    chosen += [part for kept in storage.regular for part in _settled(kept, q(_DELETED))]
    chosen += [part for kept in storage.static for part in _settled(kept, q(_PART_COVERED))]
    return f"SELECT {', '.join(chosen)} FROM ({_merged(storage, cells, partitions)})"


def _merged(storage: Storage, cells: str, partitions: str) -> str:
    keys = _key_names(storage, Role.PARTITION, Role.CLUSTERING)
    own = [name for name, _ in storage.row_columns() if not name.startswith(("key:", "sort:")) and name not in (ORDER, ROW_DELETED)]
    if not storage.is_clustered:
        chosen = [*map(q, [*keys, *own]), f"{q(ROW_DELETED)} AS {q(_DELETED)}"]
        return f"SELECT {', '.join(chosen)} FROM {cells} FINAL"
    there = [name for name, _ in storage.partition_columns() if not name.startswith(("key:", "sort:", "part:"))]
    chosen = [f"r.{q(name)} AS {q(name)}" for name in [*keys, *own]]
    chosen += [f"p.{q(name)} AS {q(name)}" for name in there]
    chosen.append(f"greatest(r.{q(ROW_DELETED)}, p.{q(PART_DELETED)}, {_ranges_sql(f'r.{q(ORDER)}', f'p.{q(RANGES)}')}) AS {q(_DELETED)}")
    chosen.append(f"p.{q(PART_DELETED)} AS {q(_PART_COVERED)}")
    using = " AND ".join(f"r.{q(name)} = p.{q(name)}" for name in storage.sort_key(Role.PARTITION))
    joined = f"(SELECT * FROM {cells} FINAL) AS r LEFT ANY JOIN (SELECT * FROM {partitions} FINAL) AS p ON {using}"
    return f"SELECT {', '.join(chosen)} FROM {joined}"


def _ranges_sql(order: str, ranges: str) -> str:
    """The greatest tombstone of those ranges that a clustering key is in: from the first bound on, before the second."""
    size = "reinterpretAsUInt32(reverse(substring(k, 1, 4)))"
    inside = f"{order} >= substring(k, 5, {size}) AND {order} < substring(k, 5 + {size})"
    return f"arrayMax(arrayMap((k, t) -> if({inside}, t, ''), mapKeys({ranges}), mapValues({ranges})))"


def _settled(kept: Kept, covered: str) -> list[str]:
    """A column's live part: `alive:X` and `held:X`."""
    alive, held = q(f"alive:{kept.column.name}"), q(f"held:{kept.column.name}")
    if kept.form is Form.ATOMIC:
        return _settled_cell(q(kept.cell), kept.kind, covered, alive, held)
    covering = f"greatest({covered}, {q(kept.all)})"
    if kept.form is Form.FIELDS:
        parts = [
            part
            for index, kind in enumerate(kept.kind.args)
            for part in _settled_cell(q(kept.field(index)), kind, covering, *_field_names(kept, index))
        ]
        return [*parts, f"({' OR '.join(_field_names(kept, index)[0] for index in range(len(kept.kind.args)))}) AS {alive}"]
    cell = "c.1" if kept.typed_parts else "c"
    living = f"mapFilter((k, c) -> {alive_sql(cell, covering)}, {q(kept.cell)})"
    if kept.form is not Form.LIST:
        return [f"mapSort((k, c) -> {order_sql(kept.key_kind, 'k')}, {living}) AS {held}", f"notEmpty({held}) AS {alive}"]
    return [f"{_list_sql(kept, living, covering)} AS {held}", f"notEmpty({held}) AS {alive}"]


def _list_sql(kept: Kept, living: str, covering: str) -> str:
    """A list's live cells in their order: what was put before it since the snapshot, what the snapshot saw, what came after.

    Elements of the log that the snapshot saw already are not shown twice.
    """
    cell = "c.1" if kept.typed_parts else "c"
    base = q(kept.base)
    since = f"substring({cell}, 1, 8) > {base}.1"
    first = f"k < unhex('{_order_time(FIRST_TIMES):016x}')"
    newer = f"mapFilter((k, c) -> {since}, {living})"
    seen = f"arrayFilter(c -> {alive_sql(cell, covering)}, {base}.2)"
    before, after = (f"mapValues(mapSort((k, c) -> k, mapFilter((k, c) -> {word}({first}), {newer})))" for word in ("", "NOT "))
    return f"arrayConcat({before}, {seen}, {after})"


def _order_time(micros: int) -> int:
    return micros * 10 + 0x01B21DD213814000


def _settled_cell(cell: str, kind: CqlType, covered: str, alive: str, held: str) -> list[str]:
    if is_plain(kind):
        return [f"{alive_sql(cell, covered)} AS {alive}", f"if({alive}, {held_sql(cell)}, '') AS {held}"]
    missing = "NULL" if takes_null(kind) else f"defaultValueOfTypeName('{_literal(nullable_type(kind, Naming.KEPT))}')"
    return [f"{alive_sql(f'{cell}.1', covered)} AS {alive}", f"if({alive}, {cell}.2, {missing}) AS {held}"]


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _field_names(kept: Kept, index: int) -> tuple[str, str]:
    return q(f"alive:{index}:{kept.column.name}"), q(f"held:{index}:{kept.column.name}")


def _shown_rows(storage: Storage, settled: str) -> str:
    keys = [_shown_key(storage, column, f"{q(f'key:{column.name}')}") for column in _key_columns(storage)]
    cells = [f"{_value(kept)} AS {q(kept.column.name)}" for kept in _in_order(storage)]
    exists = " OR ".join([q("alive:"), *(q(f"alive:{kept.column.name}") for kept in storage.regular)])
    return f"SELECT {', '.join([*keys, *cells])} FROM ({settled}) WHERE {exists}"


def _shown_partitions(storage: Storage, cells: str, partitions: str) -> str:
    """Partitions of which only static cells are alive: one row each, without clustering columns."""
    there = [name for name, _ in storage.partition_columns() if not name.startswith("part:")]
    chosen = [q(name) for name in there if name.startswith(("key:", "sort:"))]
    chosen += [part for kept in storage.static for part in _settled(kept, q(PART_DELETED))]
    settled = f"SELECT {', '.join(chosen)} FROM {partitions} FINAL"
    keys = [
        _shown_key(storage, column, f"{q(f'key:{column.name}')}" if column.role is Role.PARTITION else _no_key(column))
        for column in _key_columns(storage)
    ]
    values = [
        f"{_value(kept) if kept.column.role is Role.STATIC else _no_value(kept)} AS {q(kept.column.name)}" for kept in _in_order(storage)
    ]
    key = ", ".join(q(name) for name in storage.sort_key(Role.PARTITION))
    exists = " OR ".join([q("alive:"), *(q(f"alive:{kept.column.name}") for kept in storage.regular)])
    others = f"SELECT DISTINCT {key} FROM ({_settled_rows(storage, cells, partitions)}) WHERE {exists}"
    lives = " OR ".join(q(f"alive:{kept.column.name}") for kept in storage.static)
    anti = " AND ".join(f"s.{q(name)} = o.{q(name)}" for name in storage.sort_key(Role.PARTITION))
    joined = f"(SELECT * FROM ({settled}) WHERE {lives}) AS s LEFT ANTI JOIN ({others}) AS o ON {anti}"
    inner = f"SELECT s.* FROM {joined}"
    return f"SELECT {', '.join([*keys, *values])} FROM ({inner})"


def _shown_key(storage: Storage, column: CqlColumn, value: str) -> str:
    if value.startswith("`"):
        value = renamed_sql(column.type, value)
        if storage.static and column.role is Role.CLUSTERING and takes_null(column.type):
            value = f"toNullable({value})"
    return f"{value} AS {q(column.name)}"


def _no_key(column: CqlColumn) -> str:
    return f"CAST(NULL AS {nullable_type(column.type)})" if takes_null(column.type) else _default(shown_type(column.type))


def _no_value(kept: Kept) -> str:
    kind = kept.kind
    if kept.form is Form.ATOMIC:
        return f"CAST(NULL AS {nullable_type(kind)})" if takes_null(kind) else _default(nullable_type(kind))
    return _default(column_type(kept))


def _default(name: str) -> str:
    return f"defaultValueOfTypeName('{_literal(name)}')"


def column_type(kept: Kept) -> str:
    """The view's type of a column that is not of the key."""
    match kept.form:
        case Form.ATOMIC | Form.FIELDS:
            return nullable_type(kept.kind)
        case _:
            return shown_type(kept.kind)


def _value(kept: Kept) -> str:
    held, alive = q(f"held:{kept.column.name}"), q(f"alive:{kept.column.name}")
    match kept.form:
        case Form.ATOMIC:
            return cell_value_sql(kept.kind, held, alive) if is_plain(kept.kind) else renamed_sql(kept.kind, held)
        case Form.FIELDS:
            values = [_field_value(kept, index, kind) for index, kind in enumerate(kept.kind.args)]
            return f"CAST(tuple({', '.join(values)}) AS {shown_type(kept.kind)})"
        case Form.MAP:
            names, contents = (f"arrayMap((k, c) -> {part}, {_arrays(held)})" for part in (_key(kept), _element(kept)))
            return f"CAST(({names}, {contents}) AS {shown_type(kept.kind)})"
        case Form.SET:
            return f"CAST(arrayMap((k, c) -> {_key(kept)}, {_arrays(held)}) AS {shown_type(kept.kind)})"
        case Form.LIST:
            return f"CAST(arrayMap(c -> {_element(kept)}, {held}) AS {shown_type(kept.kind)})"


def _arrays(held: str) -> str:
    return f"mapKeys({held}), mapValues({held})"


def _key(kept: Kept) -> str:
    return key_sql(kept.key_kind, "k") if is_plain(kept.key_kind) else renamed_sql(kept.key_kind, "c.2")


def _element(kept: Kept) -> str:
    kind = kept.element_kind
    assert kind is not None
    if not is_plain(kind):
        return renamed_sql(kind, f"c.{1 + len(kept.typed_parts)}")
    return value_sql(kind, held_sql("c.1" if kept.typed_parts else "c"))


def _field_value(kept: Kept, index: int, kind: CqlType) -> str:
    alive, held = _field_names(kept, index)
    return cell_value_sql(kind, held, alive) if is_plain(kind) else renamed_sql(kind, held)


def _key_columns(storage: Storage) -> Sequence[CqlColumn]:
    return (*storage.table.partition_key, *storage.table.clustering)


def _key_names(storage: Storage, *roles: Role) -> list[str]:
    wanted = [column for column in _key_columns(storage) if column.role in roles]
    return list(dict.fromkeys(name for column in wanted for name in (f"key:{column.name}", sort_name(column))))


def _in_order(storage: Storage) -> Iterable[Kept]:
    return (*storage.static, *storage.regular)
