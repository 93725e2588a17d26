"""The effect of a statement on the known tables: schema changes, and effects that they do not express.

The meaning depends only on the text, the session and the catalog, not on the table selection. Applying the changes gives exactly the table
after the statement.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.model import schema_change
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableName, TableSchema
from headrace.sources.mysql.ddl import ast
from headrace.sources.mysql.ddl.column_definition import Setting, are_distinct, charset_of
from headrace.sources.mysql.ddl.dialect import STRICT, Dialect
from headrace.sources.mysql.ddl.statement_grammar import parse_statement
from headrace.sources.mysql.ddl.table_draft import ClauseMismatch, Draft, new_keys
from headrace.sources.mysql.ddl.token_cursor import NotUnderstood
from headrace.sources.mysql.events.event_types import Query, Session

_FALLBACK_CHARSET: Final = "utf8mb4"
_FIXED_ZONE: Final = re.compile(r"[+-]\d{1,2}:\d\d|UTC|Etc/UTC")
_LOGS_CASCADES: Final = 90_600
"""The MySQL version since which changes by foreign keys are logged."""


@dataclass(frozen=True, slots=True)
class StatementEffects:
    changes: tuple[schema_change.SchemaChange, ...] = ()
    """In order, and valid for the catalog."""
    disturbed: tuple[TableName, ...] = ()
    """Tables whose rows change without row events, other than by `changes`."""
    opaque: tuple[TableName, ...] = ()
    """Tables whose definition cannot be derived from the text. They are not in the catalog after the statement."""
    filled: tuple[TableName, ...] = ()
    """Tables created with rows that the log may lack."""
    rows: str = ""
    """The verb of a row change logged as a statement."""
    unknown: bool = False
    why: str = ""


def interpret(query: Query, catalog: schema_change.SchemaCatalog, dialect: Dialect) -> StatementEffects:
    """Return the effect of a QUERY event's statement. It never raises: a statement that is not understood is reported as unknown."""
    session = query.session
    if session.is_void_alter:
        return StatementEffects()
    try:
        found = parse_statement(query.statement, query.database, dialect, session.sql_mode)
    except NotUnderstood as error:
        return StatementEffects(unknown=True, why=str(error))
    setting = Setting(dialect, session.server_charset or _FALLBACK_CHARSET, session.explicit_timestamps)
    interpreter = _Interpreter(catalog, setting, query.database, session)
    return interpreter.run_failed(found) if query.error_code else interpreter.run(found)


@dataclass(slots=True)
class _Interpreter:
    catalog: schema_change.SchemaCatalog
    setting: Setting
    database: str
    session: Session
    meaning: StatementEffects = field(default_factory=StatementEffects)

    def run(self, found: ast.StatementText | None) -> StatementEffects:
        match found:
            case None:
                pass
            case ast.RowStatement(verb):
                self.meaning = StatementEffects(rows=verb)
            case ast.CreateTableText():
                self.create_table(found)
            case ast.CreateTemporary(table):
                if table in self.catalog.tables:
                    self.meaning = StatementEffects(
                        unknown=True, why="a temporary table hides it, and the log does not distinguish their statements"
                    )
            case ast.DropTables(tables):
                for table in tables:
                    self.take(schema_change.DropTable(table))
            case ast.RenameTables(pairs):
                for old, new in pairs:
                    self.rename(old, new)
            case ast.Truncate(table):
                self.take(schema_change.TruncateTable(table))
            case ast.AlterTable():
                self.alter_table(found)
            case ast.CreateDatabaseText():
                self.create_database(found)
            case ast.AlterDatabaseText():
                self.alter_database(found)
            case ast.DropDatabaseText(database):
                self.drop_database(database)
        return self.meaning

    def run_failed(self, found: ast.StatementText | None) -> StatementEffects:
        match found:
            case ast.CreateTableText(table) if found.or_replace:
                # The server dropped the old table before it failed to create the new one.
                self.take(schema_change.DropTable(table))
            case ast.CreateTableText(table) | ast.Truncate(table) | ast.AlterTable(table):
                self.lose(table, "a statement on it failed half-way")
            case ast.RenameTables(pairs):
                for table in sorted({name for pair in pairs for name in pair}):
                    self.lose(table, "a statement on it failed half-way")
            case _:
                return self.run(found)
        return self.meaning

    def take(self, change: schema_change.SchemaChange) -> None:
        self.catalog = schema_change.apply(change, self.catalog)
        self.meaning = replace(self.meaning, changes=(*self.meaning.changes, change))

    def lose(self, table: TableName, why: str) -> None:
        """Mark a table that exists, but whose definition is unknown."""
        if table in self.catalog.tables:
            tables = {name: schema for name, schema in self.catalog.tables.items() if name != table}
            self.catalog = replace(self.catalog, tables=tables)
        self.meaning = replace(self.meaning, opaque=(*self.meaning.opaque, table), why=self.meaning.why or why)

    def disturb(self, *tables: TableName) -> None:
        self.meaning = replace(self.meaning, disturbed=(*self.meaning.disturbed, *tables))

    def database_charset(self, database: str) -> str:
        return self.catalog.charsets.get(database, self.setting.charset)

    def loses_rows(self, keys: Iterable[ast.KeyText]) -> bool:
        """Whether a new foreign key can change rows without row events. A later statement may drop the key before the preflight checks it.

        MySQL logs such changes since 9.6.
        """
        logs = not self.setting.dialect.mariadb and self.setting.dialect.version >= _LOGS_CASCADES
        if logs or self.setting.dialect.applies_cascades:
            return False
        return any(key.references is not None and key.references.cascades for key in keys)

    def moves_times(self, schema: TableSchema) -> bool:
        """Whether an ALTER may have changed values of TIMESTAMP columns, whatever else it did.

        MySQL copies them through the session's local time. Each autumn two hours have the same local time. The event of such a statement
        contains the time zone.
        """
        dialect, zone = self.setting.dialect, self.session.time_zone
        fixed = not zone or _FIXED_ZONE.fullmatch(zone) or (zone == "SYSTEM" and dialect.in_utc)
        return not dialect.mariadb and not fixed and any(column.type.zoned for column in schema.columns)

    def merges_names(self, statement: ast.AlterTable, altered: TableSchema) -> bool:
        """Whether a new collation may treat two names of an ENUM or SET as equal. A strict session refuses such a collation."""
        if self.session.sql_mode & STRICT:
            return False
        changed = {clause.column.name.lower() for clause in statement.clauses if isinstance(clause, ast.ChangeColumn)}
        converted = any(isinstance(clause, ast.ConvertTo) for clause in statement.clauses)
        return any(
            column.form is ValueForm.MEMBERS and (converted or column.name.lower() in changed) and not are_distinct(column.members)
            for column in altered.columns
        )

    # -- statements

    def create_table(self, found: ast.CreateTableText) -> None:
        name = found.table
        if name in self.catalog.tables and found.if_not_exists and not found.or_replace:
            return
        if found.selects or self.loses_rows(found.keys):
            self.meaning = replace(self.meaning, filled=(name,))
        if found.like is not None:
            model = self.catalog.tables.get(found.like)
            if model is None:
                self.lose(name, f"it was made like {found.like}, which is not known")
            else:
                # Foreign keys are not copied.
                self.take(schema_change.CreateTable(replace(model, name=name, foreign_keys=())))
            return
        if found.selects or found.versioned or not found.columns:
            self.lose(name, "its columns come from a SELECT" if found.selects else "it is system versioned")
            return
        database_charset = self.database_charset(name.database)
        draft = Draft(TableSchema(name, (), (), charset=database_charset), self.setting)
        draft.set_options(found.options, database_charset)
        try:
            draft.create(found.columns, found.keys)
        except ClauseMismatch as misfit:
            self.lose(name, str(misfit))
            return
        self.take(schema_change.CreateTable(draft.finish()))

    def rename(self, old: TableName, new: TableName) -> None:
        if old in self.catalog.tables:
            self.take(schema_change.RenameTable(old, new))
        else:
            # An unknown name may be a view, which has no rows. The caller finds out when it captures the new name.
            self.lose(new, f"it was renamed from {old}, which is not known")
            self.meaning = replace(self.meaning, filled=(*self.meaning.filled, new))

    def alter_table(self, found: ast.AlterTable) -> None:
        table = found.table
        disturbs = [clause for clause in found.clauses if isinstance(clause, ast.DisturbRows)]
        for clause in disturbs:
            self.disturb(table, *([clause.other] if clause.other is not None else []))
            if clause.what == "CONVERT PARTITION" and clause.other is not None:
                self.lose(clause.other, "it was a partition of another table")
            elif clause.what == "CONVERT TABLE" and clause.other is not None:
                self.take(schema_change.DropTable(clause.other))
        if disturbs:
            return
        schema, rewritten = self.catalog.tables.get(table), False
        versioned = next((clause for clause in found.clauses if isinstance(clause, ast.Versioning)), None)
        renames = [clause for clause in found.clauses if isinstance(clause, ast.RenameTo)]
        if schema is None:
            if renames:
                self.rename(table, renames[-1].table)
            elif found.clauses:
                self.lose(table, "it is not known")
            return
        if versioned is not None:
            self.lose(table, versioned.what)
        else:
            draft = Draft(schema, self.setting)
            try:
                # MySQL uses the default character set of the session's database.
                database = table.database if self.setting.dialect.mariadb else self.database
                draft.alter(found.clauses, self.database_charset(database))
                altered = draft.finish()
                for change in changes_between(schema, altered, draft.origins):
                    self.take(change)
                rewritten = _recomputes(found, schema, altered) or self.moves_times(schema) or self.merges_names(found, altered)
            except ClauseMismatch as misfit:
                self.lose(table, str(misfit))
        if found.ignore or rewritten or self.loses_rows(new_keys(found.clauses)) or _empties(found):
            self.disturb(renames[-1].table if renames else table)
        if renames and renames[-1].table != table:
            self.rename(table, renames[-1].table)

    def create_database(self, found: ast.CreateDatabaseText) -> None:
        name = found.database
        if name in self.catalog.charsets:
            if found.if_not_exists and not found.or_replace:
                return
            self.drop_database(name)
        self.take(schema_change.CreateDatabase(name, charset_of(found.options.charset, found.options.collation, self.setting.charset)))

    def alter_database(self, found: ast.AlterDatabaseText) -> None:
        charset = charset_of(found.options.charset, found.options.collation, self.database_charset(found.database))
        if charset != self.catalog.charsets.get(found.database):
            self.take(schema_change.AlterDatabase(found.database, charset))

    def drop_database(self, database: str) -> None:
        for name in sorted(name for name in self.catalog.tables if name.database == database):
            self.take(schema_change.DropTable(name))
        self.take(schema_change.DropDatabase(database))


def _empties(statement: ast.AlterTable) -> bool:
    return any(isinstance(clause, ast.SetOptions) and clause.options.engine == "BLACKHOLE" for clause in statement.clauses)


def _recomputes(statement: ast.AlterTable, before: TableSchema, after: TableSchema) -> bool:
    """Whether the statement may change values of generated columns, which the server computes again without row events.

    A definition may have another expression, which is not part of the schema. The value of an expression depends on the types of the
    columns that it reads, and on their collations, which are not part of the schema either.
    """
    if not any(column.generated for column in after.columns):
        return False
    old, new = ({column.name.lower(): column for column in table.columns} for table in (before, after))
    return any(isinstance(clause, ast.ConvertTo) for clause in statement.clauses) or any(
        _may_recompute(old.get(clause.name.lower()), new.get(clause.column.name.lower()))
        for clause in statement.clauses
        if isinstance(clause, ast.ChangeColumn)
    )


def _may_recompute(old: Column | None, new: Column | None) -> bool:
    if old is None or new is None or old.generated or new.generated:
        return True
    has_collation = bool(new.charset) and new.form in (ValueForm.TEXT, ValueForm.MEMBERS)
    return has_collation or (old.kind, old.source_type) != (new.kind, new.source_type)


class _Steps:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.changes: list[schema_change.TableChange] = []

    def take(self, change: schema_change.TableChange) -> None:
        self.schema = schema_change.alter(change, self.schema)
        self.changes.append(change)


def changes_between(before: TableSchema, after: TableSchema, origins: Mapping[str, str | None]) -> list[schema_change.TableChange]:
    """Return the changes from `before` to `after` (of one name); `origins`: the old name of every new column that existed before."""
    steps = _Steps(before)
    name = before.name
    kept = {origin for origin in origins.values() if origin is not None}
    for column in before.columns:
        if column.name not in kept:
            steps.take(schema_change.DropColumn(name, column.name))
    _rename(steps, {origin: new for new, origin in origins.items() if origin is not None and origin != new})
    _arrange(steps, after, {new for new, origin in origins.items() if origin is None})
    if steps.schema.primary_key != after.primary_key:
        steps.take(schema_change.ChangePrimaryKey(name, steps.schema.primary_key, after.primary_key))
    if steps.schema.indexes != after.indexes:
        steps.take(schema_change.ChangeIndexes(name, steps.schema.indexes, after.indexes))
    if steps.schema.foreign_keys != after.foreign_keys:
        steps.take(schema_change.ChangeForeignKeys(name, steps.schema.foreign_keys, after.foreign_keys))
    if (steps.schema.charset, steps.schema.comment) != (after.charset, after.comment):
        steps.take(schema_change.ChangeOptions(name, after.charset, after.comment))
    assert steps.schema == after
    return steps.changes


def _rename(steps: _Steps, renames: dict[str, str]) -> None:
    """Rename in an order in which no name is used twice; break a cycle with an unused name."""
    waiting = dict(renames)
    while waiting:
        taken = {column.name for column in steps.schema.columns}
        free = next((old for old, new in waiting.items() if new not in taken), None)
        if free is None:
            old, new = waiting.popitem()
            aside = next(name for name in (f"{old}_{number}" for number in range(1 << 16)) if name not in taken)
            steps.take(schema_change.RenameColumn(steps.schema.name, old, aside))
            waiting[aside] = new
        else:
            steps.take(schema_change.RenameColumn(steps.schema.name, free, waiting.pop(free)))


def _arrange(steps: _Steps, after: TableSchema, new: set[str]) -> None:
    """Give every column its position and definition, with the fewest moves."""
    places = {column.name: i for i, column in enumerate(steps.schema.columns)}
    staying = _longest_rising([places[column.name] for column in after.columns if column.name not in new])
    before = schema_change.FIRST
    for column in after.columns:
        if column.name in new:
            at_end = before == (steps.schema.columns[-1].name if steps.schema.columns else schema_change.FIRST)
            steps.take(schema_change.AddColumn(steps.schema.name, column, None if at_end else before))
        else:
            old = steps.schema.column(column.name)
            moved = places[column.name] not in staying
            if moved or old != column:
                steps.take(schema_change.ModifyColumn(steps.schema.name, old, column, before if moved else None))
        before = column.name


def _longest_rising(numbers: list[int]) -> set[int]:
    """Return the members of a longest rising subsequence of distinct numbers."""
    tails: list[int] = []
    previous: dict[int, int | None] = {}
    for number in numbers:
        at = bisect_left(tails, number)
        previous[number] = tails[at - 1] if at else None
        tails[at : at + 1] = [number]
    found: set[int] = set()
    last = tails[-1] if tails else None
    while last is not None:
        found.add(last)
        last = previous[last]
    return found
