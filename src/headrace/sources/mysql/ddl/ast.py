"""The syntax tree of statements: what the grammar finds in a text, before it is resolved against the known tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.model.schema import ReferentialAction, TableName

PRIMARY: Final = "PRIMARY"
"""The name of every primary key."""


@dataclass(frozen=True, slots=True)
class TypeText:
    """A column's type: the server's plain keyword for it (`varchar`, `int`) and its modifiers."""

    word: str
    length: int | None = None
    scale: int | None = None
    members: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    charset: str = ""
    serial: bool = False


class DefaultForm(Enum):
    STRING = auto()
    NUMBER = auto()
    BITS = auto()
    EXPRESSION = auto()


@dataclass(frozen=True, slots=True)
class DefaultText:
    """A default: a string's content, a number, the hexadecimal digits of a bit literal, or an expression as written."""

    text: str
    written: DefaultForm


@dataclass(frozen=True, slots=True)
class ColumnText:
    name: str
    type: TypeText
    nullable: bool | None = None
    """None: not specified."""
    default: DefaultText | None = None
    null_default: bool = False
    on_update: bool = False
    charset: str = ""
    collation: str = ""
    compressed: bool = False
    auto_increment: bool = False
    generated: str = ""
    invisible: bool = False
    comment: str = ""
    primary: bool = False
    unique: bool = False
    references: ReferencesText | None = None
    """A foreign key; None: there is none, or the server ignores it."""

    @property
    def keys(self) -> tuple[KeyText, ...]:
        primary = (KeyText("primary", PRIMARY, (self.name,), (0,)),) if self.primary else ()
        unique = (KeyText("unique", "", (self.name,), (0,)),) if self.unique or self.type.serial else ()
        foreign = (KeyText("foreign", "", (self.name,), (0,), references=self.references),) if self.references is not None else ()
        return primary + unique + foreign


@dataclass(frozen=True, slots=True)
class ReferencesText:
    parent: TableName
    """Without a database: in the database of the child."""
    columns: tuple[str, ...] = ()
    """Empty: the primary key (MariaDB)."""
    on_delete: ReferentialAction = ReferentialAction.NONE
    on_update: ReferentialAction = ReferentialAction.NONE

    @property
    def cascades(self) -> bool:
        """Whether a change of the parent changes child rows."""
        return not self.on_delete is self.on_update is ReferentialAction.NONE


@dataclass(frozen=True, slots=True)
class KeyText:
    """An index: `kind` is "primary", "unique", "index", "fulltext", "spatial", or "foreign" (which may create an index)."""

    kind: str
    name: str
    columns: tuple[str, ...]
    """Empty names stand for expressions."""
    prefixes: tuple[int, ...] = ()
    """Per column, the number of indexed characters; 0 for the whole column."""
    if_not_exists: bool = False
    or_replace: bool = False
    references: ReferencesText | None = None
    """Of a foreign key."""
    constraint: str = ""
    """The name of a foreign key, which may differ from that of its index."""


@dataclass(frozen=True, slots=True)
class OptionsText:
    """Options of a table or database; None: not specified."""

    charset: str = ""
    collation: str = ""
    comment: str | None = None
    engine: str = ""


class Clause:
    """A clause of ALTER TABLE."""


@dataclass(frozen=True, slots=True)
class AddColumns(Clause):
    columns: tuple[ColumnText, ...]
    keys: tuple[KeyText, ...] = ()
    place: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumnClause(Clause):
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn(Clause):
    """CHANGE, or MODIFY with two equal names."""

    name: str
    column: ColumnText
    place: str | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumnClause(Clause):
    name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterColumn(Clause):
    """ALTER COLUMN: None leaves the default, or the visibility, unchanged."""

    name: str
    default: DefaultText | None = None
    drop_default: bool = False
    null_default: bool = False
    invisible: bool | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddKey(Clause):
    key: KeyText


@dataclass(frozen=True, slots=True)
class DropKey(Clause):
    """Drops a key by name; the primary key's is `PRIMARY`. `constraint`: the name may belong to something other than an index."""

    name: str
    if_exists: bool = False
    constraint: bool = False


@dataclass(frozen=True, slots=True)
class DropForeignKey(Clause):
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameKey(Clause):
    name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameTo(Clause):
    table: TableName


@dataclass(frozen=True, slots=True)
class SetOptions(Clause):
    options: OptionsText


@dataclass(frozen=True, slots=True)
class ConvertTo(Clause):
    """Converts all text columns and the table's own character set; an empty one means the database's."""

    charset: str
    collation: str = ""


@dataclass(frozen=True, slots=True)
class DisturbRows(Clause):
    """Adds or removes rows without row events, also in the other table if there is one."""

    what: str
    other: TableName | None = None


@dataclass(frozen=True, slots=True)
class Versioning(Clause):
    """System versioning or a period: not supported."""

    what: str


class StatementText:
    """A statement that may change tables."""


@dataclass(frozen=True, slots=True)
class RowStatement(StatementText):
    """A row change logged as a statement: its verb."""

    verb: str


@dataclass(frozen=True, slots=True)
class CreateTableText(StatementText):
    table: TableName
    columns: tuple[ColumnText, ...] = ()
    keys: tuple[KeyText, ...] = ()
    options: OptionsText = field(default_factory=OptionsText)
    like: TableName | None = None
    selects: bool = False
    versioned: bool = False
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class CreateTemporary(StatementText):
    """Only its session sees a temporary table. It hides a table of the same name from that session."""

    table: TableName


@dataclass(frozen=True, slots=True)
class DropTables(StatementText):
    tables: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class RenameTables(StatementText):
    pairs: tuple[tuple[TableName, TableName], ...]


@dataclass(frozen=True, slots=True)
class Truncate(StatementText):
    table: TableName


@dataclass(frozen=True, slots=True)
class AlterTable(StatementText):
    table: TableName
    clauses: tuple[Clause, ...]
    ignore: bool = False
    """Whether invalid rows are dropped, or changed until they are valid."""


@dataclass(frozen=True, slots=True)
class CreateDatabaseText(StatementText):
    database: str
    options: OptionsText
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class AlterDatabaseText(StatementText):
    database: str
    options: OptionsText


@dataclass(frozen=True, slots=True)
class DropDatabaseText(StatementText):
    database: str
