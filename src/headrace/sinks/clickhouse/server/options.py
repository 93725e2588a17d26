"""Options of target tables, for all tables or by table.

Every field has a default. Options of a table override those of all tables, glob by glob in their order. Pure data: picklable, comparable,
independent of a server.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from headrace.model.schema import TableName


class TargetEngine(StrEnum):
    """What a created table stores."""

    REPLACING = "replacing"
    """The last image of each row, by version; `FINAL` shows the source's rows."""
    COLLAPSING = "collapsing"
    """Each row, repeated by the sum of its signs."""
    VERSIONED = "versioned"
    """Like collapsing, in any order of writing."""
    HISTORY = "history"
    """Every change, forever."""


class MissingColumns(StrEnum):
    """What happens when an existing table lacks a column of the source."""

    ERROR = "error"
    ADD = "add"


class Deletes(StrEnum):
    """What a deletion in the source does."""

    APPLY = "apply"
    IGNORE = "ignore"


class DatetimeAs(StrEnum):
    """The fractional digits of DATETIME and TIMESTAMP columns."""

    DECLARED = "declared"
    """As many as the column has: DateTime64(0) to DateTime64(6)."""
    MICRO = "micro"
    """Always six: DateTime64(6)."""
    STRING = "string"


class DecimalAs(StrEnum):
    """The type of DECIMAL columns."""

    DECIMAL = "decimal"
    STRING = "string"


class JsonAs(StrEnum):
    """The type of JSON columns: their text, or ClickHouse's JSON, which stores objects only and does not keep the text."""

    STRING = "string"
    JSON = "json"


class BitAs(StrEnum):
    """The type of BIT columns: a number, the digits 0 and 1, or a number with Bool for BIT(1)."""

    UINT64 = "uint64"
    STRING = "string"
    BOOL = "bool"


class GeometryAs(StrEnum):
    """The type of spatial columns: the source's bytes, or Point, LineString, Polygon and so on where the column is declared as one."""

    WKB = "wkb"
    GEO = "geo"


class EnumAs(StrEnum):
    """The type of ENUM columns."""

    LOW_CARDINALITY = "low_cardinality"
    ENUM = "enum"
    """Enum8 or Enum16, with the source's numbers."""
    STRING = "string"


class SetAs(StrEnum):
    """The type of SET columns: members joined by commas, or an array of them (which cannot be NULL)."""

    LOW_CARDINALITY = "low_cardinality"
    ARRAY = "array"
    STRING = "string"


class TimeAs(StrEnum):
    """The type of TIME columns: Time64, microseconds, or text."""

    TIME64 = "time64"
    INT64 = "int64"
    STRING = "string"


class TinyintAs(StrEnum):
    """The type of TINYINT(1) columns; Bool halts at values other than 0 and 1."""

    INT8 = "int8"
    BOOL = "bool"


class UnsignedAs(StrEnum):
    """The type of BIGINT UNSIGNED columns; Int64 halts at larger numbers."""

    UINT64 = "uint64"
    INT64 = "int64"
    DECIMAL = "decimal"
    STRING = "string"


class YearAs(StrEnum):
    """The type of YEAR columns."""

    UINT16 = "uint16"
    STRING = "string"


class DeleteAs(StrEnum):
    """The type of `delete_column` where Headrace creates it: UInt8 is 1 for a deleted row, else 0; Int8 is -1 for a deleted row, else 1."""

    UINT8 = "uint8"
    INT8 = "int8"


class OnRefusedRow(StrEnum):
    """What happens to a row that the target table rejects."""

    HALT = "halt"
    """The pipe stops and names the row."""
    DEAD_LETTER = "dead_letter"
    """The row is stored in `headrace.errors`, for `headrace retry`, and the pipe continues."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of one table. The text under a field is its documentation for users. A field with `flag` is a flag of `headrace replicate`,
    with this placeholder for its value."""

    database: str = ""
    """The target database, in which `{database}` stands for the source's; empty: that of the sink's address, else the source's own name."""
    target: str = ""
    """The target table, as `table` or `database.table`, in which `{database}` and `{table}` stand for the source's; empty: `{table}`."""
    engine: TargetEngine = field(default=TargetEngine.REPLACING, metadata={"flag": "ENGINE"})
    version_column: str = "_version"
    """The column with the log position of a change: the higher, the later."""
    sign_column: str = "_sign"
    """The column that is 1 for an inserted row and -1 for a deleted one."""
    delete_column: str = field(default="", metadata={"flag": "NAME"})
    """If set, deletions are marked in this column (1, or -1 if it is signed) and there is no sign column."""
    delete_type: DeleteAs = DeleteAs.UINT8
    tombstone_column: str = "_deleted"
    """Of created tables with a sign: the column, computed from it, by which `FINAL` hides deleted rows."""
    content_column: str = "_content"
    """Of created `versioned` tables: the hash of the row by which images cancel each other."""
    hidden_columns: bool = False
    """Whether `SELECT *` returns only the source's columns in tables that are created with the engine `replacing`; queries may name the
    hidden ones. Databases of MaterializeMySQL have it."""
    keyless_views: bool = False
    """Whether the name `t` of a table without a key is a view of the source's rows; its images are in `t__rows`, with the engine
    `replacing`. Databases of MaterializeMySQL have it."""
    operation_column: str = "_operation"
    """In a history, the column with the operation: snapshot, insert, update, delete."""
    time_column: str = "_commit_time"
    """In a history, the column with the commit time."""
    sort_key: tuple[str, ...] | str = field(default="primary", metadata={"flag": "KEY"})
    """`primary`, `materialize` (the rule of MaterializeMySQL), or expressions."""
    partition_by: str = field(default="", metadata={"flag": "EXPR"})
    """Empty, `primary` (the rule of MaterializeMySQL), or an expression."""
    shard_by: str = ""
    """For a cluster: the expression that decides a row's shard; empty: a hash of its key."""
    settings: tuple[tuple[str, str], ...] = ()
    """ClickHouse settings of created tables, such as `index_granularity`."""
    primary_key: str = ""
    """The indexed prefix of the sort key in created tables, such as `(tenant)`; empty: all of it."""
    ttl: str = ""
    """When rows of created tables expire, such as `created + INTERVAL 90 DAY`."""
    sample_by: str = ""
    """The sampling expression of created tables."""
    extra_columns: tuple[tuple[str, str], ...] = ()
    """Additional columns of created tables, each with its declaration, such as `UInt16 ALIAS toYear(created)`."""
    column_ttls: tuple[tuple[str, str], ...] = ()
    """Source column to the expression by which its values expire."""
    indexes: tuple[tuple[str, str], ...] = ()
    """Skipping indexes of created tables, each with its declaration, such as `total TYPE minmax GRANULARITY 4`."""
    missing_columns: MissingColumns = field(default=MissingColumns.ERROR, metadata={"flag": "WHAT"})
    rename: tuple[tuple[str, str], ...] = ()
    """Source column to target column."""
    types: tuple[tuple[str, str], ...] = ()
    """Source column, or `kind:WORD` for all columns of a kind, to a ClickHouse type; it becomes Nullable where the source's column is,
    unless NOT NULL follows it."""
    datetime: DatetimeAs = DatetimeAs.DECLARED
    decimal: DecimalAs = DecimalAs.DECIMAL
    json: JsonAs = JsonAs.STRING
    bit: BitAs = BitAs.UINT64
    geometry: GeometryAs = GeometryAs.WKB
    enum: EnumAs = EnumAs.LOW_CARDINALITY
    set: SetAs = SetAs.LOW_CARDINALITY
    time: TimeAs = TimeAs.TIME64
    tinyint1: TinyintAs = TinyintAs.INT8
    uint64: UnsignedAs = UnsignedAs.UINT64
    year: YearAs = YearAs.UINT16
    zone: str = "UTC"
    """The time zone in which ClickHouse shows TIMESTAMP columns; they store the instant, in any zone."""
    codecs: tuple[tuple[str, str], ...] = ()
    """Source columns (globs) to a codec, such as `ZSTD(3)`."""
    low_cardinality: tuple[str, ...] = ()
    """Source columns (globs) to store as LowCardinality(String) instead of String."""
    view: bool = field(default=False, metadata={"flag": "true"})
    """Whether a view `t_current` shows the source's rows. (Tables without a key always have it.)"""
    row_policy: bool = False
    """Whether a row policy hides deleted rows."""
    cleanup_hours: float = 0.0
    """How often tombstones are purged; 0: never."""
    deletes: Deletes = Deletes.APPLY
    on_refused_row: OnRefusedRow = OnRefusedRow.HALT


CHANGEABLE: Final = frozenset({"hidden_columns", "missing_columns", "view", "row_policy", "cleanup_hours", "deletes", "on_refused_row"})
"""The fields that may change for an existing table: they affect future behaviour, not the table's definition."""

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of `TableOptions` and their values."""


@dataclass(frozen=True, slots=True)
class ClickHouseOptions:
    """Options of all tables and of some tables."""

    all_tables: Fields = ()
    tables: tuple[tuple[str, Fields], ...] = ()
    """A glob over `database.table` of the source, and the options of matching tables."""
    cluster: str = ""
    """Create tables ON CLUSTER, replicated, with a Distributed table over them."""
    replica_path: str = ""
    """For a cluster: the tables' Keeper path, such as `/clickhouse/tables/{shard}/{database}/{table}`; empty: the servers' default."""
    replica_name: str = "{replica}"
    """With a path: the name of a server's replica there."""

    def of(self, name: TableName) -> TableOptions:
        """Return the options of a table."""
        chosen = dict(self.all_tables)
        for glob, own in self.tables:
            if fnmatch.fnmatchcase(str(name), glob):
                chosen.update({option: _laid_over(chosen.get(option), value) for option, value in own})
        return replace(TableOptions(), **chosen)

    def unmatched(self, names: Sequence[TableName]) -> tuple[str, ...]:
        """Return the globs that match none of these tables."""
        return tuple(glob for glob, _ in self.tables if not any(fnmatch.fnmatchcase(str(name), glob) for name in names))


def _laid_over(below: Any, above: Any) -> Any:
    """Merge mappings of all tables with those of a table; replace any other value."""
    if isinstance(below, tuple) and isinstance(above, tuple) and all(isinstance(pair, tuple) for pair in (*below, *above)):
        return tuple({**dict(below), **dict(above)}.items())
    return above
