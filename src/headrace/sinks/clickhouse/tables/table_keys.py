"""Sort, partition and shard keys of created tables, and the source columns on which a key depends.

Invariant: a key expression depends on the row alone, so all images of a row with equal values have equal keys. If an update changes a key,
the row is deleted under the old key and inserted under the new one: `TargetTable.key_dependencies` lists the columns that can cause it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.engine_parser import EngineParseError, nondeterministic_function, referenced_names, single_column
from headrace.sinks.clickhouse.tables.target_table import StoredColumn

# MaterializeMySQL divides the range of the key's type into a thousand partitions.
_CUTS: Final = 1000
_BITS: Final = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64)}


def materialize_key(schema: TableSchema) -> tuple[str, ...]:
    """Return MaterializeMySQL's sort key: indexed columns first, auto-increment columns last, each column once."""
    primary = schema.row_key
    keys = [name for index in schema.indexes if not index.unique for name in index.columns]
    unique = [name for index in schema.indexes if index.unique for name in index.columns]
    carried = {column.name for column in schema.columns}
    counting = {column.name for column in schema.columns if column.auto_increment}
    ranked = (
        *(name for name in (*primary, *keys, *unique) if name not in counting),
        *(name for name in (*keys, *unique, *primary) if name in counting),
    )
    return tuple(dict.fromkeys(name for name in ranked if name in carried))


def materialize_partition(key: Iterable[StoredColumn]) -> str:
    """Return MaterializeMySQL's partition key: the month of a date in the key, else a thousandth of the range of its narrowest integer."""
    narrowest: tuple[int, StoredColumn] | None = None
    for column in key:
        if column.type.startswith(("Date", "DateTime")):
            return f"toYYYYMM({quote_name(column.name)})"
        bits = _BITS.get(column.type)
        if bits is not None and (narrowest is None or bits < narrowest[0]):
            narrowest = (bits, column)
    if narrowest is None:
        return ""
    bits, column = narrowest
    step = ((1 << bits) - 1) // _CUTS
    return f"intDiv({quote_name(column.name)}, {step})" if step else quote_name(column.name)


def resolve_expressions(given: Sequence[str], columns: Iterable[StoredColumn]) -> tuple[str, ...]:
    """Return the user's key expressions as SQL; a source or target column name is quoted."""
    names = {column.source.name: column.name for column in columns}
    names.update({column.name: column.name for column in columns})
    return tuple(quote_name(names[one]) if one in names else one for one in given)


def check_expression(name: TableName, what: str, expression: str) -> None:
    """Raise `DefiniteError` if an expression does not depend on the row alone."""
    try:
        nondeterministic = nondeterministic_function(expression)
    except EngineParseError as error:
        raise DefiniteError(
            f"the {what} {expression} is not SQL: a quote is not closed", place=f"table {name}", hint="correct it in the settings"
        ) from error
    if nondeterministic:
        raise DefiniteError(
            f"the {what} {expression} is not decided by the row: {nondeterministic}() gives another value each time, and a deletion"
            " would not find its row",
            place=f"table {name}",
            hint=f"make the {what} of columns of the row, such as cityHash64 of its key",
        )


def source_columns(needed: Iterable[str], columns: Iterable[StoredColumn], computed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the source columns on which expressions depend, also through computed columns."""
    stored = {column.name: column.source.name for column in columns}
    found: dict[str, None] = {}
    waiting, seen = [name for expression in needed for name in referenced_names(expression)], set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in stored:
            found[stored[name]] = None
        elif name in computed:
            waiting += referenced_names(computed[name])
    return tuple(found)


def plain_columns(key: Iterable[str]) -> frozenset[str]:
    """Return the columns that stand in a key unchanged."""
    return frozenset(name for name in map(single_column, key) if name is not None)
