"""The closed union of schema changes, and their effect on a catalog.

Sources parse their statements into these changes, the schema history stores them, and sinks render them. A change is self-contained (a
modified column carries its old and its new definition), so rendering needs no catalog. `apply` is pure: the same changes on the same
catalog give the same catalog, however often they are replayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias, get_args

from headrace.errors import DefiniteError
from headrace.model.schema import Column, ForeignKey, Index, TableName, TableSchema

FIRST: Final = ""
"""The position before all columns. Other positions are the name of the preceding column, or None: at the end, or unchanged."""


@dataclass(frozen=True, slots=True)
class SchemaCatalog:
    """The known tables, and the default character set of each database."""

    tables: Mapping[TableName, TableSchema] = field(default_factory=dict)
    charsets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    database: str
    charset: str


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """Changes the default character set of new tables. Existing tables keep theirs."""

    database: str
    charset: str


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """Follows the `DropTable` of every known table in it."""

    database: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Creates a table, and replaces an existing one of the same name."""

    schema: TableSchema


@dataclass(frozen=True, slots=True)
class DropTable:
    table: TableName


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Renames a table with its rows. Several renames in one statement apply in order; a swap uses a third name."""

    table: TableName
    new_table: TableName


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """Deletes all rows."""

    table: TableName


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Adds a column. Existing rows hold its default."""

    table: TableName
    column: Column
    place: str | None = None


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drops a column with its values, and removes it from the keys."""

    table: TableName
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Renames a column, in the keys too. A swap is three renames."""

    table: TableName
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ModifyColumn:
    """Changes a column's definition, position, or both. The name stays."""

    table: TableName
    column: Column
    new_column: Column
    place: str | None = None


@dataclass(frozen=True, slots=True)
class ChangePrimaryKey:
    table: TableName
    key: tuple[str, ...]
    new_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeIndexes:
    """Replaces all secondary indexes, in the source's order."""

    table: TableName
    indexes: tuple[Index, ...]
    new_indexes: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class ChangeForeignKeys:
    """Replaces all foreign keys of a child table."""

    table: TableName
    foreign_keys: tuple[ForeignKey, ...]
    new_foreign_keys: tuple[ForeignKey, ...]


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Changes the table's default character set and comment."""

    table: TableName
    charset: str
    comment: str


SchemaChange: TypeAlias = (
    CreateDatabase
    | AlterDatabase
    | DropDatabase
    | CreateTable
    | DropTable
    | RenameTable
    | TruncateTable
    | AddColumn
    | DropColumn
    | RenameColumn
    | ModifyColumn
    | ChangePrimaryKey
    | ChangeIndexes
    | ChangeForeignKeys
    | ChangeOptions
)


def apply(change: SchemaChange, catalog: SchemaCatalog) -> SchemaCatalog:
    """Return the catalog after a change. A change that does not fit the catalog is a definite error."""
    match change:
        case CreateDatabase(database, charset) | AlterDatabase(database, charset):
            return replace(catalog, charsets={**catalog.charsets, database: charset})
        case DropDatabase(database):
            tables = {name: schema for name, schema in catalog.tables.items() if name.database != database}
            return SchemaCatalog(tables, {name: charset for name, charset in catalog.charsets.items() if name != database})
        case CreateTable(schema):
            return _with(catalog, schema)
        case DropTable(table):
            return _without(catalog, table)
        case TruncateTable():
            return catalog
        case RenameTable(table, new_table):
            schema = _rename_generated_keys(replace(_known(catalog, table), name=new_table), table)
            renamed = _with(_without(catalog, table), schema)
            return _in_children(renamed, table, lambda key: replace(key, parent=new_table))
        case RenameColumn(table, name, new_name):
            renamed = _with(catalog, alter(change, _known(catalog, table)))
            return _in_children(renamed, table, lambda key: replace(key, parent_columns=_renamed(key.parent_columns, name, new_name)))
        case _:
            return _with(catalog, alter(change, _known(catalog, change.table)))


def apply_all(changes: Iterable[SchemaChange], catalog: SchemaCatalog) -> SchemaCatalog:
    """Return the catalog after several changes in order."""
    for change in changes:
        catalog = apply(change, catalog)
    return catalog


TableChange: TypeAlias = (
    AddColumn | DropColumn | RenameColumn | ModifyColumn | ChangePrimaryKey | ChangeIndexes | ChangeForeignKeys | ChangeOptions
)


def alter(change: TableChange, schema: TableSchema) -> TableSchema:
    """Return one table after a change of its definition."""
    match change:
        case AddColumn(_, column, place):
            if any(other.name == column.name for other in schema.columns):
                raise _misfit(schema.name, f"it has a column {column.name} already")
            return replace(schema, columns=_placed(schema.name, list(schema.columns), column, place))
        case DropColumn(_, name):
            return _drop_column(schema, name)
        case RenameColumn(_, name, new_name):
            return _rename_column(schema, name, new_name)
        case ModifyColumn(_, column, new_column, place):
            at = _index_of(schema, column.name)
            columns = list(schema.columns)
            if place is None:
                columns[at] = new_column
                return replace(schema, columns=tuple(columns))
            del columns[at]
            return replace(schema, columns=_placed(schema.name, columns, new_column, place))
        case ChangePrimaryKey(_, _, new_key):
            return replace(schema, primary_key=new_key)
        case ChangeIndexes(_, _, new_indexes):
            return replace(schema, indexes=new_indexes)
        case ChangeForeignKeys(_, _, new_foreign_keys):
            return replace(schema, foreign_keys=new_foreign_keys)
        case ChangeOptions(_, charset, comment):
            return replace(schema, charset=charset, comment=comment)


def tables_of(change: SchemaChange) -> tuple[TableName, ...]:
    match change:
        case CreateDatabase() | AlterDatabase() | DropDatabase():
            return ()
        case CreateTable(schema):
            return (schema.name,)
        case RenameTable(table, new_table):
            return table, new_table
        case _:
            return (change.table,)


def _drop_column(schema: TableSchema, name: str) -> TableSchema:
    at = _index_of(schema, name)
    indexes = [replace(index, columns=tuple(column for column in index.columns if column != name)) for index in schema.indexes]
    return replace(
        schema,
        columns=schema.columns[:at] + schema.columns[at + 1 :],
        primary_key=tuple(column for column in schema.primary_key if column != name),
        indexes=tuple(index for index in indexes if index.columns or not index.whole),
        foreign_keys=tuple(key for key in schema.foreign_keys if name not in key.columns),
    )


def _rename_column(schema: TableSchema, name: str, new_name: str) -> TableSchema:
    at = _index_of(schema, name)
    if any(column.name == new_name for column in schema.columns):
        raise _misfit(schema.name, f"it has a column {new_name} already")

    column = replace(schema.columns[at], name=new_name)
    return replace(
        schema,
        columns=(*schema.columns[:at], column, *schema.columns[at + 1 :]),
        primary_key=_renamed(schema.primary_key, name, new_name),
        indexes=tuple(replace(index, columns=_renamed(index.columns, name, new_name)) for index in schema.indexes),
        foreign_keys=tuple(replace(key, columns=_renamed(key.columns, name, new_name)) for key in schema.foreign_keys),
    )


def _renamed(columns: tuple[str, ...], name: str, new_name: str) -> tuple[str, ...]:
    return tuple(new_name if column == name else column for column in columns)


def _in_children(catalog: SchemaCatalog, parent: TableName, change: Callable[[ForeignKey], ForeignKey]) -> SchemaCatalog:
    """Return the catalog with changed foreign keys of all tables that reference a parent."""
    changed = {
        name: replace(schema, foreign_keys=tuple(change(key) if key.parent == parent else key for key in schema.foreign_keys))
        for name, schema in catalog.tables.items()
        if any(key.parent == parent for key in schema.foreign_keys)
    }
    return replace(catalog, tables={**catalog.tables, **changed}) if changed else catalog


def _rename_generated_keys(schema: TableSchema, old: TableName) -> TableSchema:
    """Return a renamed table with new names of the foreign keys that the server has named after the table."""
    prefix = f"{old.table}_ibfk_"
    keys = [
        replace(key, name=f"{schema.name.table}_ibfk_{key.name.removeprefix(prefix)}") if key.name.startswith(prefix) else key
        for key in schema.foreign_keys
    ]
    return replace(schema, foreign_keys=tuple(sorted(keys, key=lambda key: key.name)))


def _placed(table: TableName, columns: list[Column], column: Column, place: str | None) -> tuple[Column, ...]:
    if place is None:
        return (*columns, column)
    if place == FIRST:
        return (column, *columns)
    at = next((i for i, other in enumerate(columns) if other.name == place), None)
    if at is None:
        raise _misfit(table, f"it has no column {place}")
    return (*columns[: at + 1], column, *columns[at + 1 :])


def _index_of(schema: TableSchema, name: str) -> int:
    at = next((i for i, column in enumerate(schema.columns) if column.name == name), None)
    if at is None:
        raise _misfit(schema.name, f"it has no column {name}")
    return at


def _known(catalog: SchemaCatalog, name: TableName) -> TableSchema:
    schema = catalog.tables.get(name)
    if schema is None:
        raise _misfit(name, "it is not known")
    return schema


def _with(catalog: SchemaCatalog, schema: TableSchema) -> SchemaCatalog:
    return replace(catalog, tables={**catalog.tables, schema.name: schema})


def _without(catalog: SchemaCatalog, name: TableName) -> SchemaCatalog:
    return replace(catalog, tables={other: schema for other, schema in catalog.tables.items() if other != name})


def _misfit(table: TableName, why: str) -> DefiniteError:
    return DefiniteError(
        f"a schema change does not fit what is known of {table}: {why}",
        place=str(table),
        hint="the schema history and the source have come apart: resynchronise the table",
    )


# -- JSON

_KINDS: Final[dict[str, type[Any]]] = {re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(SchemaChange)}
"""By names such as `create_table`; state files hold them, so the classes keep their names."""
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}


def change_to_json(change: SchemaChange) -> dict[str, Any]:
    return {"change": _WORDS[type(change)], **{one.name: _encoded(getattr(change, one.name)) for one in fields(change)}}


def change_from_json(raw: dict[str, Any]) -> SchemaChange:
    kind = _KINDS[raw["change"]]
    change: SchemaChange = kind(**{name: _decoded(name, value) for name, value in raw.items() if name != "change"})
    return change


def _encoded(value: Any) -> Any:
    if isinstance(value, TableName):
        return [value.database, value.table]
    if isinstance(value, TableSchema | Column | Index | ForeignKey):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encoded(part) for part in value]
    return value


def _decoded(name: str, value: Any) -> Any:
    match name:
        case "table" | "new_table":
            return TableName(*value)
        case "schema":
            return TableSchema.from_json(value)
        case "column" | "new_column":
            return Column.from_json(value)
        case "indexes" | "new_indexes":
            return tuple(Index.from_json(index) for index in value)
        case "foreign_keys" | "new_foreign_keys":
            return tuple(ForeignKey.from_json(key) for key in value)
        case "key" | "new_key":
            return tuple(value)
        case _:
            return value
