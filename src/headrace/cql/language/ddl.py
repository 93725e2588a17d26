"""Parses CQL definitions: applies CREATE, ALTER, DROP and USE statements to a catalog of tables and user types.

`CqlCatalog` is immutable; `apply` returns a new one. A statement that would change a table in a way that is not understood is an error, one
that has nothing to do with tables' columns (indexes, views, roles, functions) changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.cql.language.lexer import CqlCursor, CqlTokenKind, shortened, statements
from headrace.cql.options import CdcOptions
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType, parse_type
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

_IGNORED_TABLE_ITEMS: Final = frozenset(
    {"index", "materialized", "custom", "function", "aggregate", "trigger", "role", "user", "or", "service"}
)
"""Other objects of CREATE and DROP; they do not change a table's columns."""


@dataclass(frozen=True, slots=True)
class CqlCatalog:
    keyspace: str = ""
    """The keyspace of the last USE."""
    tables: Mapping[TableName, CqlTable] = field(default_factory=dict)
    types: Mapping[tuple[str, str], CqlType] = field(default_factory=dict)
    """User types by keyspace and name, not frozen."""
    cdc: Mapping[TableName, CdcOptions] = field(default_factory=dict)
    """CDC options per table; tables without them have the defaults."""

    def apply_all(self, script: str) -> CqlCatalog:
        found = self
        for statement in statements(script):
            found = found.apply(statement)
        return found

    def apply(self, statement: str) -> CqlCatalog:
        cursor = CqlCursor(statement)
        if cursor.skip_word("use"):
            return replace(self, keyspace=cursor.name())
        verb = cursor.peek.text if cursor.peek.kind is CqlTokenKind.NAME else ""
        if verb not in {"create", "alter", "drop"}:
            raise _unknown(statement)
        cursor.take()
        what = cursor.name()
        if what == "columnfamily":
            what = "table"
        done = _HANDLERS.get((verb, what))
        if done is not None:
            return done(self, cursor)
        if what in _IGNORED_TABLE_ITEMS or (verb in {"create", "alter"} and what == "keyspace"):
            return self
        raise _unknown(statement)

    def table(self, name: TableName) -> CqlTable:
        if name not in self.tables:
            raise DefiniteError(f"there is no table {name}", place=f"table {name}", hint="check its name, or what defines it")
        return self.tables[name]

    def named(self, text: str) -> CqlTable:
        """Return a table by `keyspace.table`, or by its name alone after USE."""
        cursor = CqlCursor(text)
        name = _qualified(self, cursor)
        cursor.end()
        return self.table(name)

    def with_table(self, table: CqlTable, options: CdcOptions | None = None) -> CqlCatalog:
        cdc = self.cdc if options is None else {**self.cdc, table.name: options}
        return replace(self, tables={**self.tables, table.name: table}, cdc=cdc)


def _unknown(statement: str) -> DefiniteError:
    return DefiniteError(
        f"this is no definition: {shortened(statement)}", hint="give CREATE, ALTER, DROP and USE statements alone, as DESCRIBE prints them"
    )


def _qualified(known: CqlCatalog, cursor: CqlCursor) -> TableName:
    """Read the name of a table or a user type."""
    found = cursor.table_name(known.keyspace)
    if not found.database:
        place, hint = f"statement {shortened(cursor.text)}", f"write keyspace.{found.table}, or USE one before"
        raise DefiniteError(f"{found.table} is in no keyspace", place=place, hint=hint)
    return found


def _type_key(known: CqlCatalog, cursor: CqlCursor) -> tuple[str, str]:
    name = _qualified(known, cursor)
    return name.database, name.table


def _drop_keyspace(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    cursor.skip_word("if", "exists")
    gone = cursor.name()
    return replace(
        known,
        tables={name: table for name, table in known.tables.items() if name.database != gone},
        cdc={name: options for name, options in known.cdc.items() if name.database != gone},
        types={key: found for key, found in known.types.items() if key[0] != gone},
    )


def _type_text(cursor: CqlCursor) -> str:
    """Return the text of a type, up to its closing bracket."""
    words, depth = [], 0
    while True:
        token = cursor.take()
        if token.kind is CqlTokenKind.QUOTED:
            words.append('"' + token.text.replace('"', '""') + '"')
        elif token.kind in (CqlTokenKind.NAME, CqlTokenKind.INTEGER) or (token.kind is CqlTokenKind.SIGN and token.text in "<>,."):
            words.append(token.text)
        else:
            raise cursor.unexpected("a type")
        depth += (token.text == "<") - (token.text == ">")
        goes_on = cursor.is_sign("<") or cursor.is_sign(".") or token.text == "."
        if depth == 0 and not goes_on:
            return "".join(words)


def _read_type(known: CqlCatalog, keyspace: str, cursor: CqlCursor) -> CqlType:
    return parse_type(_type_text(cursor), {name: found for (of, name), found in known.types.items() if of == keyspace})


def _field(known: CqlCatalog, keyspace: str, cursor: CqlCursor) -> tuple[str, CqlType]:
    return cursor.name(), _read_type(known, keyspace, cursor).as_frozen()


# --- types


def _create_type(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    if_not_exists = cursor.skip_word("if", "not", "exists")
    keyspace, name = _type_key(known, cursor)
    cursor.sign("(")
    fields = cursor.items(lambda: _field(known, keyspace, cursor))
    cursor.sign(")")
    cursor.end()
    if (keyspace, name) in known.types:
        if if_not_exists:
            return known
        raise DefiniteError(f"a user type of name {keyspace}.{name} exists already", hint="add IF NOT EXISTS, or leave it out")
    names, types = zip(*fields, strict=True)
    made = CqlType("udt", types, keyspace=keyspace, udt=name, fields=names)
    return replace(known, types={**known.types, (keyspace, name): made})


def _alter_type(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    may_lack = cursor.skip_word("if", "exists")
    keyspace, name = _type_key(known, cursor)
    if (keyspace, name) not in known.types:
        if may_lack:
            return known
        raise DefiniteError(f"there is no user type {keyspace}.{name}", hint="check its name")
    old = known.types[keyspace, name]
    if cursor.skip_word("add"):
        keeps_existing = cursor.skip_word("if", "not", "exists")
        added = [_field(known, keyspace, cursor)]
        while cursor.skip_sign(",") or cursor.skip_word("and"):
            added.append(_field(known, keyspace, cursor))
        if repeated := [name for name, _ in added if name in old.fields]:
            if not keeps_existing:
                message = f"user type {keyspace}.{name} has the field {repeated[0]} already"
                raise DefiniteError(message, hint="add IF NOT EXISTS, or leave it out")
            added = [(name, kind) for name, kind in added if name not in old.fields]
        new = replace(old, fields=(*old.fields, *(name for name, _ in added)), args=(*old.args, *(kind for _, kind in added)))
    elif cursor.skip_word("rename"):
        renamed = _renames(cursor)
        new = replace(old, fields=tuple(renamed.get(name, name) for name in old.fields))
    else:
        raise cursor.unexpected("ADD or RENAME")
    cursor.end()
    return _retyped(known, new)


def _renames(cursor: CqlCursor) -> dict[str, str]:
    cursor.skip_word("if", "exists")
    found = {}
    while True:
        old = cursor.name()
        cursor.word("to")
        found[old] = cursor.name()
        if not cursor.skip_word("and"):
            return found


def _retyped(known: CqlCatalog, new: CqlType) -> CqlCatalog:
    """Replace a user type wherever it is used."""
    types = {key: _with_type(found, new) for key, found in known.types.items()}
    tables = {
        name: replace(table, columns=tuple(replace(column, type=_with_type(column.type, new)) for column in table.columns))
        for name, table in known.tables.items()
    }
    return replace(known, types=types, tables=tables)


def _with_type(old: CqlType, new: CqlType) -> CqlType:
    if old.name == "udt" and (old.keyspace, old.udt) == (new.keyspace, new.udt):
        return replace(new, frozen=old.frozen)
    return replace(old, args=tuple(_with_type(arg, new) for arg in old.args)) if old.args else old


def _drop_type(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    cursor.skip_word("if", "exists")
    gone = _type_key(known, cursor)
    return replace(known, types={key: found for key, found in known.types.items() if key != gone})


# --- tables


def _create_table(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    if_not_exists = cursor.skip_word("if", "not", "exists")
    name = _qualified(known, cursor)
    columns: dict[str, CqlColumn] = {}
    partition: list[str] = []
    clustering: list[str] = []

    def read_item() -> None:
        nonlocal partition, clustering
        if cursor.is_word("primary", "key"):
            partition, clustering = _primary_key(cursor)
        else:
            column, is_key = _column(known, name.database, cursor)
            columns[column.name] = column
            partition = [column.name] if is_key else partition

    cursor.sign("(")
    cursor.items_until(")", read_item)
    orders, options = _table_options(cursor)
    cursor.end()
    if name in known.tables:
        if if_not_exists:
            return known
        raise DefiniteError(f"a table of name {name} exists already", place=f"table {name}", hint="add IF NOT EXISTS, or leave it out")
    table = _table(name, columns, partition, clustering, orders)
    return known.with_table(table, options or CdcOptions())


def _column(known: CqlCatalog, keyspace: str, cursor: CqlCursor) -> tuple[CqlColumn, bool]:
    name = cursor.name()
    kind = _read_type(known, keyspace, cursor)
    role = ColumnRole.STATIC if cursor.skip_word("static") else ColumnRole.REGULAR
    if cursor.skip_word("mask"):
        cursor.word("with")
        _skip_value(cursor)
    return CqlColumn(name, kind, role), cursor.skip_word("primary", "key")


def _primary_key(cursor: CqlCursor) -> tuple[list[str], list[str]]:
    cursor.word("primary", "key")
    cursor.sign("(")
    partition = cursor.names() if cursor.is_sign("(") else [cursor.name()]
    clustering = cursor.items(cursor.name) if cursor.skip_sign(",") else []
    cursor.sign(")")
    return partition, clustering


def _table(
    name: TableName, columns: Mapping[str, CqlColumn], partition: list[str], clustering: list[str], orders: Mapping[str, bool]
) -> CqlTable:
    if not partition:
        raise DefiniteError(f"table {name} has no primary key", place=f"table {name}", hint="add PRIMARY KEY")
    missing = [key for key in (*partition, *clustering, *orders) if key not in columns]
    if missing:
        raise DefiniteError(f"column {missing[0]} of the key is not defined", place=f"table {name}", hint="define it, or check its name")
    keys = [
        *(CqlColumn(key, columns[key].type, ColumnRole.PARTITION) for key in partition),
        *(CqlColumn(key, columns[key].type, ColumnRole.CLUSTERING, orders.get(key, False)) for key in clustering),
    ]
    return sorted_table(name, [*keys, *(column for key, column in columns.items() if key not in {*partition, *clustering})])


def sorted_table(name: TableName, columns: list[CqlColumn]) -> CqlTable:
    """Return a table with its columns in the server's order; key columns are already in order."""
    keys = [column for column in columns if column.role in (ColumnRole.PARTITION, ColumnRole.CLUSTERING)]
    keys.sort(key=lambda column: column.role is ColumnRole.CLUSTERING)
    cells = [column for column in columns if column.role in (ColumnRole.STATIC, ColumnRole.REGULAR)]
    cells.sort(key=lambda column: (column.role is ColumnRole.REGULAR, column.name))
    return CqlTable(name, (*keys, *cells))


def _table_options(cursor: CqlCursor) -> tuple[dict[str, bool], CdcOptions | None]:
    """Parse WITH ...: the clustering order (whether descending), and the CDC options."""
    orders: dict[str, bool] = {}
    cdc = None
    if not cursor.skip_word("with"):
        return orders, cdc
    while True:
        if cursor.skip_word("clustering", "order", "by"):
            orders = _orders(cursor)
        elif cursor.is_word("compact", "storage"):
            hint = "drop it: ALTER TABLE … DROP COMPACT STORAGE"
            raise DefiniteError("tables with COMPACT STORAGE have no log", place=f"statement {shortened(cursor.text)}", hint=hint)
        else:
            option = cursor.name()
            cursor.sign("=")
            if option == "cdc" and cursor.is_sign("{"):
                cdc = CdcOptions.from_words(_words(cursor))
            else:
                _skip_value(cursor)
        if not cursor.skip_word("and"):
            return orders, cdc


def _orders(cursor: CqlCursor) -> dict[str, bool]:
    def read_order() -> tuple[str, bool]:
        name, descending = cursor.name(), cursor.skip_word("desc")
        if not descending:
            cursor.skip_word("asc")
        return name, descending

    cursor.sign("(")
    found = cursor.items(read_order)
    cursor.sign(")")
    return dict(found)


def _words(cursor: CqlCursor) -> dict[str, str]:
    """Parse a map of options."""

    def read_pair() -> tuple[str, str]:
        name = cursor.take().text
        cursor.sign(":")
        return name, cursor.take().text

    cursor.sign("{")
    return dict(cursor.items_until("}", read_pair))


def _skip_value(cursor: CqlCursor) -> None:
    depth = 0
    while not cursor.at_end:
        token = cursor.peek
        sign = token.text if token.kind is CqlTokenKind.SIGN else " "
        if depth == 0 and (cursor.is_word("and") or sign in ";,)"):
            return
        depth += (sign in "({[") - (sign in ")}]")
        cursor.take()


def _alter_table(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    may_lack = cursor.skip_word("if", "exists")
    qualified = _qualified(known, cursor)
    if may_lack and qualified not in known.tables:
        return known
    table = known.table(qualified)
    if cursor.is_word("with"):
        _, options = _table_options(cursor)
        cursor.end()
        return known.with_table(table, options)
    if cursor.skip_word("add"):
        columns = _added(known, table, cursor)
    elif cursor.skip_word("drop"):
        columns = _dropped(table, cursor)
    elif cursor.skip_word("rename"):
        renamed = _renames(cursor)
        columns = [replace(column, name=renamed.get(column.name, column.name)) for column in table.columns]
    else:
        message = f"this change of a table is not known: {shortened(cursor.text)}"
        raise DefiniteError(message, place=f"table {table.name}", hint="ADD, DROP, RENAME and WITH are known")
    if not cursor.skip_word("using"):
        cursor.end()
    return known.with_table(sorted_table(table.name, columns))


def _added(known: CqlCatalog, table: CqlTable, cursor: CqlCursor) -> list[CqlColumn]:
    if_not_exists = cursor.skip_word("if", "not", "exists")
    columns = {column.name: column for column in table.columns}
    in_brackets = cursor.skip_sign("(")
    for column, _ in cursor.items(lambda: _column(known, table.name.database, cursor)):
        if column.name not in columns:
            columns[column.name] = column
        elif not if_not_exists:
            raise DefiniteError(f"column {column.name} exists already", place=f"table {table.name}", hint="choose another name")
    if in_brackets:
        cursor.sign(")")
    return list(columns.values())


def _dropped(table: CqlTable, cursor: CqlCursor) -> list[CqlColumn]:
    if cursor.is_word("compact", "storage"):
        raise cursor.unexpected("a column's name")
    if_exists = cursor.skip_word("if", "exists")
    names = cursor.names() if cursor.is_sign("(") else cursor.items(cursor.name)
    known = {column.name for column in table.cells}
    unknown = [name for name in names if name not in known]
    if unknown and not if_exists:
        raise DefiniteError(f"there is no column {unknown[0]} to drop", place=f"table {table.name}", hint="check its name; keys stay")
    return [column for column in table.columns if column.name not in names]


def _drop_table(known: CqlCatalog, cursor: CqlCursor) -> CqlCatalog:
    cursor.skip_word("if", "exists")
    gone = _qualified(known, cursor)
    return replace(
        known,
        tables={name: table for name, table in known.tables.items() if name != gone},
        cdc={name: options for name, options in known.cdc.items() if name != gone},
    )


_HANDLERS: Final = {
    ("create", "table"): _create_table,
    ("alter", "table"): _alter_table,
    ("drop", "table"): _drop_table,
    ("create", "type"): _create_type,
    ("alter", "type"): _alter_type,
    ("drop", "type"): _drop_type,
    ("drop", "keyspace"): _drop_keyspace,
}
