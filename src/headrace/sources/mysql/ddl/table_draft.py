"""A table while a statement changes it, by the servers' own rules.

The servers apply the clauses of an ALTER TABLE together, not one after the other: columns that stay keep their order, redefined columns
replace them, and then new and moved columns get their positions, by the new names. A draft does the same and records the origin of each
column, so that a column that is dropped and added again in one statement is not taken for the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, ForeignKey, Index, TableName, TableSchema
from headrace.model.schema_change import FIRST
from headrace.sources.mysql.ddl import ast
from headrace.sources.mysql.ddl.column_definition import (
    LONGEST_VARCHAR,
    Setting,
    character_width,
    charset_of,
    convert_column,
    default_of,
    define_column,
    string_length,
)

_DIVISIBLE: Final = frozenset({ValueForm.TEXT, ValueForm.BYTES, ValueForm.GEOMETRY})


class ClauseMismatch(ValueError):
    """A clause does not fit the known table."""


@dataclass(frozen=True, slots=True)
class DraftColumn:
    """A column of the draft, and its name before the statement; None for a new one."""

    column: Column
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    columns: tuple[str, ...]
    unique: bool
    whole: bool = True
    generated: bool = False
    """Created for a foreign key, and dropped if another index covers it."""
    hidden: bool = False
    """Over an expression, which may be NULL."""


class Draft:
    def __init__(self, schema: TableSchema, setting: Setting) -> None:
        self.name = schema.name
        self.columns = [DraftColumn(column, column.name) for column in schema.columns]
        primary = [Key(ast.PRIMARY, schema.primary_key, unique=True)] if schema.primary_key else []
        # Whether an index part is a prefix depends on the geometry type, even if the type changes later.
        geometries = {column.name for column in schema.columns if column.form is ValueForm.GEOMETRY}
        self.keys = primary + [
            Key(index.name, index.columns, index.unique, index.whole or not geometries.isdisjoint(index.columns))
            for index in schema.indexes
        ]
        self.foreign_keys = list(schema.foreign_keys)
        self.charset, self.comment = schema.charset, schema.comment
        self._setting = setting
        self._plain: set[str] = set()
        self._converted = ""

    def finish(self) -> TableSchema:
        """Return the table as the server would describe it now."""
        required = {part.lower() for key in self.keys if key.name == ast.PRIMARY for part in key.columns}
        self.columns = [
            replace(one, column=replace(one.column, nullable=False)) if one.column.name.lower() in required else one for one in self.columns
        ]
        keys = sorted(self._without_spares(), key=lambda key: key.name)
        columns = tuple(one.column for one in self.columns)
        spelled = {column.name.lower(): column.name for column in columns}
        keys = [replace(key, columns=tuple(spelled[part.lower()] for part in key.columns)) for key in keys]
        primary = next((key.columns for key in keys if key.name == ast.PRIMARY), ())
        # An index covers only the first bytes of a geometry.
        partial = {one.column.name for one in self.columns if one.column.form is ValueForm.GEOMETRY}
        indexes = tuple(
            Index(key.name, key.columns, key.unique, key.whole and partial.isdisjoint(key.columns))
            for key in keys
            if key.name != ast.PRIMARY
        )
        foreign_keys = [replace(key, columns=tuple(spelled[part.lower()] for part in key.columns)) for key in self.foreign_keys]
        foreign_keys.sort(key=lambda key: key.name)
        return TableSchema(self.name, columns, primary, indexes, self.charset, self.comment, tuple(foreign_keys))

    @property
    def origins(self) -> dict[str, str | None]:
        return {one.column.name: one.origin for one in self.columns}

    # -- CREATE TABLE

    def create(self, columns: Iterable[ast.ColumnText], keys: Iterable[ast.KeyText]) -> None:
        for text in columns:
            self.columns.append(DraftColumn(self._define(text)))
        self._promote()
        for key in keys:
            self._add_key(key)

    def set_options(self, options: ast.OptionsText, database_charset: str) -> None:
        if options.charset.lower() == "default" and not options.collation:
            self.charset = database_charset
        elif options.charset or options.collation:
            self.charset = charset_of(options.charset, options.collation, self.charset)
        if options.comment is not None:
            self.comment = options.comment

    # -- ALTER TABLE

    def alter(self, clauses: tuple[ast.Clause, ...], database_charset: str) -> None:
        clauses = tuple(self._that_apply(clauses))
        for clause in clauses:
            if isinstance(clause, ast.SetOptions):
                self.set_options(clause.options, database_charset)
            elif isinstance(clause, ast.ConvertTo):
                self.charset = self._converted = charset_of(clause.charset, clause.collation, database_charset)
        if self._converted and not self._setting.dialect.mariadb and any(map(_makes_long_text, clauses)):
            raise ClauseMismatch("MySQL chooses a smaller type than specified for a TEXT or BLOB that it converts at the same time")
        self._drop_keys(clauses)
        self._drop_columns(clauses)
        renamed = self._redefine(clauses)
        self._place(clauses)
        self._rename_in_keys(renamed)
        self._promote()
        self._adjust(clauses)
        if self._converted:
            if any(_outgrows(one.column, self._converted) for one in self.columns):
                raise ClauseMismatch("a VARCHAR becomes too long for its type when it is converted; servers differ in what they make of it")
            self.columns = [replace(one, column=convert_column(one.column, self._converted)) for one in self.columns]
        for key in new_keys(clauses):
            self._add_key(key)
        self._check_names()

    def _that_apply(self, clauses: tuple[ast.Clause, ...]) -> Iterable[ast.Clause]:
        """Return the clauses without those that IF EXISTS or IF NOT EXISTS disable."""
        present = {one.column.name.lower() for one in self.columns}
        keys = {key.name.lower() for key in self.keys}
        foreign_keys = {key.name.lower() for key in self.foreign_keys}
        for clause in clauses:
            match clause:
                case ast.AddColumns(columns, _, _, True):
                    new = tuple(column for column in columns if column.name.lower() not in present)
                    present |= {column.name.lower() for column in new}
                    if new or clause.keys:
                        # The indexes are created even if the column already exists.
                        kept = tuple(key for key in clause.keys if _key_name(key).lower() not in keys)
                        yield replace(clause, columns=new, keys=kept)
                case ast.AddColumns(columns):
                    present |= {column.name.lower() for column in columns}
                    yield clause
                case ast.ChangeColumn(_, column, _, False):
                    present.add(column.name.lower())
                    yield clause
                case ast.ChangeColumn(name, column, _, True):
                    if name.lower() in present:
                        spare = any(_key_name(key).lower() in keys for key in column.keys)
                        yield replace(clause, column=replace(column, primary=False, unique=False)) if spare else clause
                case ast.DropColumnClause(name, True) | ast.RenameColumnClause(name, _, True):
                    if name.lower() in present:
                        yield clause
                case ast.AlterColumn(name=name, if_exists=True):
                    if name.lower() in present:
                        yield clause
                case ast.DropKey(name, True, _) | ast.RenameKey(name, _, True):
                    if name.lower() in keys:
                        yield clause
                case ast.DropForeignKey(name, True):
                    if name.lower() in foreign_keys:
                        yield clause
                case ast.AddKey(ast.KeyText(kind="foreign", if_not_exists=True) as key):
                    if _key_name(key).lower() not in foreign_keys:
                        foreign_keys.add(_key_name(key).lower())
                        yield clause
                case ast.AddKey(ast.KeyText(if_not_exists=True) as key):
                    if _key_name(key).lower() not in keys:
                        keys.add(_key_name(key).lower())
                        yield clause
                case _:
                    yield clause

    def _drop_columns(self, clauses: tuple[ast.Clause, ...]) -> None:
        # An index stays on a column that is dropped and added again under the same name.
        again = {text.name.lower() for clause in clauses if isinstance(clause, ast.AddColumns) for text in clause.columns}
        for clause in clauses:
            if isinstance(clause, ast.DropColumnClause):
                found = self._find(clause.name)
                self.columns = [one for one in self.columns if one is not found]
                name = found.column.name
                self.foreign_keys = [key for key in self.foreign_keys if name not in key.columns]
                if name.lower() in again:
                    continue
                trimmed = [replace(key, columns=tuple(part for part in key.columns if part != name)) for key in self.keys]
                self.keys = [
                    key for key, before in zip(trimmed, self.keys, strict=True) if key.columns or (key.hidden and not before.columns)
                ]

    def _drop_keys(self, clauses: tuple[ast.Clause, ...]) -> None:
        for clause in clauses:
            if isinstance(clause, ast.DropForeignKey) or (isinstance(clause, ast.DropKey) and clause.constraint):
                kept = [key for key in self.foreign_keys if key.name.lower() != clause.name.lower()]
                if len(kept) < len(self.foreign_keys):
                    # Its index stays.
                    self.foreign_keys = kept
                    continue
                if isinstance(clause, ast.DropForeignKey) and self.foreign_keys:
                    # States of release 0.9 contain no foreign keys.
                    raise ClauseMismatch(f"it has no foreign key {clause.name}")
            if isinstance(clause, ast.DropKey):
                remaining = [key for key in self.keys if key.name.lower() != clause.name.lower()]
                if len(remaining) == len(self.keys) and not clause.constraint:
                    raise ClauseMismatch(f"it has no index {clause.name}")
                self.keys = remaining
            elif isinstance(clause, ast.RenameKey):
                if not any(key.name.lower() == clause.name.lower() for key in self.keys):
                    raise ClauseMismatch(f"it has no index {clause.name}")
                self.keys = [replace(key, name=clause.new_name) if key.name.lower() == clause.name.lower() else key for key in self.keys]

    def _redefine(self, clauses: tuple[ast.Clause, ...]) -> dict[str, str]:
        """Apply CHANGE, MODIFY and RENAME COLUMN, in place; return the renames."""
        changes = {clause.name.lower(): clause for clause in clauses if isinstance(clause, ast.ChangeColumn | ast.RenameColumnClause)}
        renamed: dict[str, str] = {}
        for name in changes:
            self._find(name)
        for i, one in enumerate(self.columns):
            clause = changes.get(one.column.name.lower())
            if clause is None:
                continue
            new = replace(one.column, name=clause.new_name) if isinstance(clause, ast.RenameColumnClause) else self._define(clause.column)
            if new.name != one.column.name:
                renamed[one.column.name] = new.name
            self.columns[i] = DraftColumn(new, one.origin)
            self._widen(one.column.name)
        return renamed

    def _widen(self, name: str) -> None:
        """Extend a prefix index to the whole column if the column's new type has no prefixes."""
        indivisible = {one.column.name for one in self.columns if one.column.form not in _DIVISIBLE}
        self.keys = [
            replace(key, whole=True) if name in key.columns and not key.whole and indivisible.issuperset(key.columns) else key
            for key in self.keys
        ]

    def _place(self, clauses: tuple[ast.Clause, ...]) -> None:
        """Place new columns, and redefined columns with a position, in the order of their clauses."""
        for clause in clauses:
            if isinstance(clause, ast.AddColumns):
                for text in clause.columns:
                    self._insert(DraftColumn(self._define(text)), clause.place)
            elif isinstance(clause, ast.ChangeColumn) and clause.place is not None:
                # A moving column keeps its position until its clause is applied: others may be placed after it.
                moving = self._find(clause.column.name)
                self.columns = [one for one in self.columns if one is not moving]
                self._insert(moving, clause.place)

    def _insert(self, one: DraftColumn, place: str | None) -> None:
        if place is None:
            self.columns.append(one)
        elif place == FIRST:
            self.columns.insert(0, one)
        else:
            self.columns.insert(self.columns.index(self._find(place)) + 1, one)

    def _rename_in_keys(self, renamed: dict[str, str]) -> None:
        self.keys = [replace(key, columns=tuple(renamed.get(part, part) for part in key.columns)) for key in self.keys]
        self.foreign_keys = [replace(key, columns=tuple(renamed.get(part, part) for part in key.columns)) for key in self.foreign_keys]

    def _adjust(self, clauses: tuple[ast.Clause, ...]) -> None:
        """Apply ALTER COLUMN, which names columns as they were before the statement."""
        for clause in clauses:
            if isinstance(clause, ast.AlterColumn):
                found = next((one for one in self.columns if (one.origin or "").lower() == clause.name.lower()), None)
                if found is None:
                    raise ClauseMismatch(f"it has no column {clause.name}")
                column = found.column
                is_expression = clause.default is not None and clause.default.written is ast.DefaultForm.EXPRESSION
                if column.generated or (column.auto_increment and not is_expression):
                    # Such a column has no default, whatever the statement contains.
                    pass
                elif clause.default is not None:
                    column = replace(column, default=default_of(column, clause.default, mariadb=self._setting.dialect.mariadb))
                elif clause.drop_default or clause.null_default:
                    column = replace(column, default=None)
                if clause.invisible is not None:
                    column = replace(column, invisible=clause.invisible)
                self.columns[self.columns.index(found)] = replace(found, column=column)

    # -- columns

    def _define(self, text: ast.ColumnText) -> Column:
        if not (text.default or text.null_default or text.on_update):
            self._plain.add(text.name)
        if self._converted and charset_of(text.charset, text.collation, self.charset) != "binary":
            # Conversion comes before any size is computed, also for new columns.
            text = replace(text, charset=self._converted, collation="")
        return define_column(text, replace(self._setting, charset=self.charset))

    def _promote(self) -> None:
        """Without explicit_defaults_for_timestamp, the first NOT NULL TIMESTAMP without attributes defaults to the current time."""
        if self._setting.explicit_timestamps:
            return
        for i, one in enumerate(self.columns):
            column = one.column
            if column.type.zoned and not column.nullable and not column.generated:
                if column.default is None or column.name in self._plain:
                    now = ast.DefaultText("current_timestamp", ast.DefaultForm.EXPRESSION)
                    default = default_of(column, now, mariadb=self._setting.dialect.mariadb)
                    self.columns[i] = replace(one, column=replace(column, default=default))
                return

    def _find(self, name: str) -> DraftColumn:
        found = next((one for one in self.columns if one.column.name.lower() == name.lower()), None)
        if found is None:
            raise ClauseMismatch(f"it has no column {name}")
        return found

    def _check_names(self) -> None:
        names = [one.column.name.lower() for one in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ClauseMismatch(f"it has a column {twice} already")

    # -- indexes

    def _add_key(self, text: ast.KeyText) -> None:
        if text.or_replace:
            self.keys = [key for key in self.keys if key.name.lower() != text.name.lower()]
        columns = tuple(self._find(part).column.name for part in text.columns if part)
        hidden = "" in text.columns
        name = ast.PRIMARY if text.kind == "primary" else text.name or self._free_name(columns, hidden=not columns or text.columns[0] == "")
        if any(key.name.lower() == name.lower() for key in self.keys):
            raise ClauseMismatch(f"it has an index {name} already")
        whole = not hidden and text.kind != "spatial" and not any(map(self._is_prefix, columns, text.prefixes))
        unique = text.kind in ("primary", "unique")
        self.keys.append(Key(name, columns, unique, whole, generated=text.kind == "foreign", hidden=hidden))
        if text.references is not None:
            self._add_foreign_key(text.constraint, columns, text.references)

    def _add_foreign_key(self, name: str, columns: tuple[str, ...], references: ast.ReferencesText) -> None:
        if not references.columns:
            raise ClauseMismatch("a foreign key names no columns of its parent")
        parent = references.parent if references.parent.database else TableName(self.name.database, references.parent.table)
        name = name or self._free_constraint_name()
        if any(key.name.lower() == name.lower() for key in self.foreign_keys):
            raise ClauseMismatch(f"it has a foreign key {name} already")
        self.foreign_keys.append(ForeignKey(name, columns, parent, references.columns, references.on_delete, references.on_update))

    def _free_constraint_name(self) -> str:
        """Return the name that the server gives to an unnamed foreign key."""
        prefix = f"{self.name.table}_ibfk_"
        numbers = [key.name.removeprefix(prefix) for key in self.foreign_keys if key.name.startswith(prefix)]
        return f"{prefix}{max((int(number) for number in numbers if number.isdecimal()), default=0) + 1}"

    def _is_prefix(self, name: str, prefix: int) -> bool:
        length = string_length(self._find(name).column)
        return prefix > 0 and (length is None or prefix < length)

    def _free_name(self, columns: tuple[str, ...], *, hidden: bool) -> str:
        """Return the name that the server gives to an unnamed index."""
        taken = {key.name.lower() for key in self.keys} | {ast.PRIMARY.lower()}
        wanted = "functional_index" if hidden else columns[0]
        if wanted.lower() not in taken:
            return wanted
        return next(name for name in (f"{wanted}_{number}" for number in range(2, 1 << 16)) if name.lower() not in taken)

    def _without_spares(self) -> list[Key]:
        """Return the indexes without those created for foreign keys where another one covers them."""

        def serves(other: Key, key: Key) -> bool:
            return other is not key and not other.generated and other.columns[: len(key.columns)] == key.columns

        return [key for key in self.keys if not (key.generated and any(serves(other, key) for other in self.keys))]


def _outgrows(column: Column, charset: str) -> bool:
    """Whether a VARCHAR's bytes would no longer fit a VARCHAR in another character set."""
    return bool(column.charset) and (string_length(column) or 0) * character_width(charset) > LONGEST_VARCHAR


def _makes_long_text(clause: ast.Clause) -> bool:
    return isinstance(clause, ast.ChangeColumn) and clause.column.type.word.endswith(("text", "blob"))


def new_keys(clauses: Iterable[ast.Clause]) -> Iterator[ast.KeyText]:
    for clause in clauses:
        match clause:
            case ast.AddKey(key):
                yield key
            case ast.AddColumns(_, keys):
                yield from keys
            case ast.ChangeColumn(_, column):
                yield from column.keys


def _key_name(key: ast.KeyText) -> str:
    """Return the name of an index if no other index had it."""
    return ast.PRIMARY if key.kind == "primary" else key.name or (key.columns[0] if key.columns else "")
