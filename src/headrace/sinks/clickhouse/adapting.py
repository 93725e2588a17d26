"""Whether a table that is there can hold a source's table, and how.

Invariant: a table that was accepted here stores every image of its schema exactly, and shows the source's rows by what its engine does.
Everything else is refused with what is wrong and what to do; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.carriers import misfit
from headrace.sinks.clickhouse.choices import Deletes, MissingColumns, TableChoices
from headrace.sinks.clickhouse.creation import MADE
from headrace.sinks.clickhouse.engines import (
    Engine,
    UnreadableEngine,
    fickle_function,
    names_in,
    parse_distribution,
    parse_engine,
    split_key,
)
from headrace.sinks.clickhouse.found import FoundColumn, FoundTable
from headrace.sinks.clickhouse.keys import plain_columns, sources_of
from headrace.sinks.clickhouse.layout import ComputedColumn, Family, Layout, Mark, Meaning, Storage, StoredColumn
from headrace.sinks.clickhouse.marks import can_hold, types_for
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.types import DELETED, OCCURRENCE, ROW

_START_OVER: Final = "drop or rename the table in ClickHouse and start with a new state directory, or use another target database"
_FAMILIES: Final = {
    "ReplacingMergeTree": Family.REPLACING,
    "CollapsingMergeTree": Family.COLLAPSING,
    "VersionedCollapsingMergeTree": Family.VERSIONED,
    "MergeTree": Family.HISTORY,
    "CoalescingMergeTree": Family.COALESCING,
}
_UNFIT: Final = {
    "SummingMergeTree": "adds up the rows of a key instead of keeping the last one",
    "AggregatingMergeTree": "aggregates the rows of a key instead of keeping the last one",
    "GraphiteMergeTree": "thins out rows by age",
    "Log": "can neither change nor take away a row",
    "TinyLog": "can neither change nor take away a row",
    "StripeLog": "can neither change nor take away a row",
    "Memory": "can neither change nor take away a row, and forgets all of them when the server stops",
    "Null": "keeps nothing",
    "Set": "cannot be read",
    "Join": "keeps one row of each key in memory, whichever came first or last",
    "Buffer": "holds rows back in memory and loses them in a crash",
    "Merge": "only reads other tables",
    "View": "is a query, not a table",
    "MaterializedView": "is the result of a query; rows are written to the table that it reads",
    "LiveView": "is a query, not a table",
    "WindowView": "is a query, not a table",
    "Dictionary": "is filled from its own source",
    "EmbeddedRocksDB": "has no versions: a replay would put an old row over a new one",
    "KeeperMap": "has no versions: a replay would put an old row over a new one",
    "Kafka": "is a stream, not a table",
    "URL": "is elsewhere, and cannot take away a row",
    "File": "cannot take away a row",
    "S3": "cannot take away a row",
    "MySQL": "is another server's table",
}
_MAKE_OTHER: Final = (
    "make the table a ReplacingMergeTree(version, is_deleted), or let Headrace make it: rename it, or choose another target"
)


def adapt(plan: Layout, found: FoundTable, choices: TableChoices, holder: FoundTable | None = None) -> Layout:
    """The layout of a table that is there; a definite error if it cannot be used. `plan` is the layout of the table that would be made,
    `holder` the table beneath one that only distributes rows."""
    return _Adapter(plan, found, choices, holder).layout()


def missing_parts(plan: Layout, found: FoundTable, choices: TableChoices, holder: FoundTable | None = None) -> Missing:
    """What the table lacks and may get by choice (`missing_columns = add`); nothing if that was not chosen."""
    if choices.missing_columns != MissingColumns.ADD:
        return Missing()
    return _Adapter(plan, found, choices, holder).missing()


def was_made(table: FoundTable) -> bool:
    """Whether Headrace made a table: by its version column's comment, or by the columns that tables of ours always had."""
    marked = any(column.comment == MADE for column in table.columns)
    return marked or any(column.default_kind == "MATERIALIZED" and column.name in (DELETED, ROW) for column in table.columns)


@dataclass(frozen=True, slots=True)
class Missing:
    """Columns that a table that is there lacks."""

    columns: tuple[FoundColumn, ...] = ()

    def added_to(self, found: FoundTable) -> FoundTable:
        """The table as it will be."""
        there = {column.name for column in found.columns}
        return replace(found, columns=(*found.columns, *(column for column in self.columns if column.name not in there)))


class _Adapter:
    """One table that is there, looked at for one source table."""

    def __init__(self, plan: Layout, found: FoundTable, choices: TableChoices, holder: FoundTable | None) -> None:
        self.plan, self.found, self.choices = plan, found, choices
        self.shard_by = ""
        engine = self._parsed(found)
        self.distributes = engine.name == "Distributed"
        if self.distributes:
            self.shard_by, held = self._distribution(engine, holder)
            self.table, self.engine = held, self._parsed(held)
        else:
            self.table, self.engine = found, engine
        self.family = self._family()

    def layout(self) -> Layout:
        columns = self._columns()
        marks = self._marks()
        self._check_others(columns, marks)
        moving = self._moving(columns, marks)
        found = Layout(
            self.plan.schema,
            self.plan.database,
            self.plan.table,
            self.family,
            columns,
            marks,
            moving,
            False,
            self._held_place() if self.distributes else None,
            self.choices.deletes == Deletes.IGNORE,
            self._storage(),
            self._hides_deleted(),
            any(column.in_partition_key and not column.in_sort_key for column in self.table.columns),
            was_made(self.table),
        )
        return replace(found, ours=self._is_planned(found))

    def missing(self) -> Missing:
        """Columns of the source and of ours that the table has not."""
        plan = self.plan
        wanted = [FoundColumn(column.name, column.type) for column in plan.columns] + self._missing_marks()
        tables = (self.found, self.table) if self.distributes else (self.found,)
        columns = [column for column in wanted if any(table.column(column.name) is None for table in tables)]
        return Missing(tuple(columns))

    # The engine

    def _parsed(self, table: FoundTable) -> Engine:
        if not table.engine:
            kind = table.kind or "unknown"
            raise self._refused(f"its engine is {kind}, which {_UNFIT.get(kind, 'Headrace does not know')}", _MAKE_OTHER)
        try:
            return parse_engine(table.engine)
        except UnreadableEngine as error:
            raise self._refused(f"its engine is unknown: {table.engine}", _MAKE_OTHER) from error

    def _distribution(self, engine: Engine, holder: FoundTable | None) -> tuple[str, FoundTable]:
        try:
            over = parse_distribution(engine)
        except UnreadableEngine as error:
            raise self._refused(f"it distributes rows in a way that is not understood: {error}", _MAKE_OTHER) from error
        if holder is None:
            raise self._refused(
                f"it distributes rows over {over.database}.{over.table}, which is not on this server",
                "give the address of a server that holds the table as well",
            )
        if holder.kind == "Distributed":
            raise self._refused(
                f"it distributes rows over {over.database}.{over.table}, which distributes them again", "choose the inner table as target"
            )
        fickle = fickle_function(over.shard_by)
        columns = {column.name for column in holder.columns}
        if fickle or (over.shard_by and not columns.intersection(names_in(over.shard_by))):
            why = f"{fickle}() gives another shard each time" if fickle else "it is the same for all rows"
            if fickle:
                raise self._refused(
                    f"its shard key {over.shard_by} is not decided by the row: {why}, and a deletion would not find its row",
                    "make the table anew with a shard key of columns, such as cityHash64 of the key",
                )
        return over.shard_by, holder

    def _held_place(self) -> tuple[str, str]:
        over = parse_distribution(parse_engine(self.found.engine))
        return over.database or self.plan.database, over.table

    def _held_name(self) -> str:
        return ".".join(map(quote_name, self._held_place())) if self.distributes else self.plan.qualified

    def _family(self) -> Family:
        family = _FAMILIES.get(self.engine.name)
        if family is None:
            reason = _UNFIT.get(self.engine.name, "Headrace does not know")
            raise self._refused(f"its engine is {self.engine.full_name}, which {reason}", _MAKE_OTHER)
        if any(argument.name is None and not argument.sql.startswith("(") for argument in self.engine.arguments):
            raise self._refused(
                f"its engine {self.engine.full_name} has arguments in the old way, before ORDER BY was written", _MAKE_OTHER
            )
        return family

    def _argument(self, place: int) -> str | None:
        names = self.engine.names or ()
        return names[place] if place < len(names) else None

    # Columns of the source

    def _columns(self) -> tuple[StoredColumn, ...]:
        return tuple(self._stored(column) for column in self.plan.columns)

    def _stored(self, column: StoredColumn) -> StoredColumn:
        found = self._column(column.name)
        if found is None:
            raise self._refused(
                f"it has no column {column.name}",
                f"ALTER TABLE {self._held_name()} ADD COLUMN {quote_name(column.name)} {column.type}; or choose missing_columns = add,"
                " map the source's column to another one by `rename`, or leave it out with --exclude-columns",
            )
        if found.default_kind not in ("", "DEFAULT"):
            raise self._refused(
                f"its column {found.name} is computed ({found.default_kind}), not stored", "make it an ordinary column, or leave it out"
            )
        why = misfit(column.source, found.type) if found.type != column.type else ""
        if why:
            raise self._refused(f"its column {column.name} is {found.type}, not {column.type}: {why}", f"change it to {column.type}")
        return replace(column, type=found.type)

    def _column(self, name: str) -> FoundColumn | None:
        held = self.table.column(name)
        if self.distributes and held is not None:
            outer = self.found.column(name)
            if outer is None or outer.type != held.type:
                there = "no column" if outer is None else f"column {outer.type}"
                raise self._refused(
                    f"it has {there} {name}, the table that holds the rows has {held.type} {name}", "make both tables of equal columns"
                )
        return held

    # Columns of ours

    def _marks(self) -> tuple[Mark, ...]:
        match self.family:
            case Family.REPLACING:
                marks = self._replacing_marks()
            case Family.COLLAPSING:
                marks = (self._mark(self._argument(0), Meaning.SIGN), *self._optional(self.choices.version_column, Meaning.VERSION))
            case Family.VERSIONED:
                marks = self._versioned_marks()
            case Family.HISTORY:
                marks = self._history_marks()
            case Family.COALESCING:
                self._check_coalescing()
                marks = self._optional(self.choices.version_column, Meaning.VERSION)
        if self.choices.deletes == Deletes.IGNORE and self.family in (Family.COLLAPSING, Family.VERSIONED):
            raise self._refused(
                f"its engine {self.engine.full_name} adds up what was put and taken away: deletions cannot be left out",
                "choose deletes = apply for it",
            )
        used = {mark.name for mark in marks}
        if self.family is not Family.HISTORY:
            extra = (
                *self._optional(self.choices.operation_column, Meaning.OPERATION),
                *self._optional(self.choices.time_column, Meaning.COMMIT_TIME),
            )
            marks = (*marks, *(mark for mark in extra if mark.name not in used))
        return marks

    def _replacing_marks(self) -> tuple[Mark, ...]:
        version = self._argument(0)
        if version is None:
            raise self._refused(
                "its engine is ReplacingMergeTree without a version column: which of two rows stays would depend on the order of writing",
                "make it ReplacingMergeTree(version, is_deleted)",
            )
        marks = (*self._delete_mark(), self._mark(version, Meaning.VERSION))
        if self.plan.has_key:
            return marks
        if self.table.column(OCCURRENCE) is None or self.table.column(ROW) is None:
            raise self._refused(
                "nothing tells the source's rows apart, and the table would merge those that are equal in its sort key",
                "let Headrace make the table, or use a VersionedCollapsingMergeTree; or give the source's table a primary key",
            )
        return (*marks, self._mark(OCCURRENCE, Meaning.OCCURRENCE))

    def _delete_mark(self) -> tuple[Mark, ...]:
        """Where a deletion is marked: as the engine says, else as the user says, else by the sign."""
        by_engine = self._argument(1)
        if by_engine is not None:
            column = self._own(by_engine)
            sign = self._sign_behind(column)
            return (self._mark(sign, Meaning.SIGN) if sign else self._deleted_mark(column),)
        for name in filter(None, (self.choices.delete_column, self.choices.sign_column)):
            found = self.table.column(name)
            if found is not None and not self._is_source(name):
                return (self._deleted_mark(found),)
            if name == self.choices.delete_column:
                raise self._refused(
                    f"it has no column {name}, in which deletions were to be marked",
                    f"choose another delete_column, or missing_columns = add, or: ALTER TABLE {self._held_name()} ADD COLUMN"
                    f" {quote_name(name)} UInt8",
                )
        if self.choices.deletes == Deletes.IGNORE:
            return ()
        raise self._refused(
            f"nothing in it can say that a row was deleted: its engine is ReplacingMergeTree({self._argument(0)}) without is_deleted,"
            f" and it has no column {self.choices.sign_column}",
            "choose the column that marks deletions (delete_column), have one added (missing_columns = add), or leave deletions out"
            " (deletes = ignore)",
        )

    def _deleted_mark(self, column: FoundColumn) -> Mark:
        return self._mark(column.name, Meaning.SIGN if column.type == "Int8" else Meaning.DELETED)

    def _sign_behind(self, column: FoundColumn) -> str:
        """The sign from which the engine's column is computed, as in tables of ours."""
        if column.default_kind != "MATERIALIZED":
            return ""
        names = names_in(column.default_expression)
        bare = column.default_expression.replace(" ", "").strip("()")
        if len(names) == 1 and bare in (f"{names[0]}=-1", f"{quote_name(names[0])}=-1", f"{names[0]}<0", f"{quote_name(names[0])}<0"):
            return names[0]
        raise self._refused(
            f"its column {column.name} is {column.default_expression}, not {quote_name(self.choices.sign_column)} = -1", _START_OVER
        )

    def _versioned_marks(self) -> tuple[Mark, ...]:
        sign, version = self._argument(0), self._argument(1)
        marks: tuple[Mark, ...] = (self._mark(sign, Meaning.SIGN),)
        column = self._own(version) if version is not None and not self._is_source(version) else None
        if column is not None:
            if column.default_kind in ("MATERIALIZED", "DEFAULT"):
                self._check_content(column)
            else:
                marks = (*marks, self._mark(column.name, Meaning.CONTENT))
        optional = self._optional(self.choices.version_column, Meaning.VERSION)
        return (*marks, *(mark for mark in optional if mark.name != version))

    def _check_content(self, column: FoundColumn) -> None:
        """Whether ClickHouse computes a version that is decided by the whole row."""
        names = set(names_in(column.default_expression))
        lacking = [one.name for one in self.plan.columns if one.name not in names]
        fickle = fickle_function(column.default_expression)
        if "hash" not in column.default_expression.lower() or lacking or fickle:
            raise self._refused(
                f"its version column {column.name} is {column.default_expression}, which is no hash of the whole row"
                f"{f' (without {lacking[0]})' if lacking else ''}: what is taken away must carry the version of what was put",
                f"make it {column.name} UInt64 MATERIALIZED cityHash64(tuple(...)) over all columns, or an ordinary UInt64",
            )

    def _history_marks(self) -> tuple[Mark, ...]:
        version = self._mark(self.choices.version_column, Meaning.VERSION)
        operation = self._optional(self.choices.operation_column, Meaning.OPERATION)
        if not operation:
            names = filter(None, (self.choices.delete_column, self.choices.sign_column))
            found = next((column for column in map(self.table.column, names) if column is not None), None)
            operation = (self._deleted_mark(found),) if found is not None and not self._is_source(found.name) else ()
        if not operation:
            raise self._refused(
                f"its engine is {self.engine.full_name}, which keeps every change, and it has no column {self.choices.operation_column}"
                " that says what happened",
                f"ALTER TABLE {self._held_name()} ADD COLUMN {quote_name(self.choices.operation_column)} LowCardinality(String), choose"
                " another operation_column, or missing_columns = add",
            )
        return (*operation, version, *self._optional(self.choices.time_column, Meaning.COMMIT_TIME))

    def _check_coalescing(self) -> None:
        """Coalescing keeps the last value that is not NULL: right only where no NULL must cover a value, and no row goes."""
        nullable = next((c for c in self.plan.schema.columns if c.nullable and c.name not in self.plan.schema.row_key), None)
        listed = {name for argument in self.engine.arguments for name in names_in(argument.sql)}
        left = next(
            (c.name for c in self.plan.columns if listed and c.name not in listed and c.source.name not in self.plan.schema.row_key), ""
        )
        why = ""
        if not self.plan.has_key:
            why = "nothing tells the source's rows apart"
        elif self.choices.deletes != Deletes.IGNORE:
            why = "it cannot take away a row"
        elif nullable is not None:
            why = f"a NULL in {nullable.name} would not cover the value before it"
        elif left:
            why = f"of its column {left} it keeps any value, not the last"
        if why:
            raise self._refused(
                f"its engine is {self.engine.full_name}, and {why}",
                "a CoalescingMergeTree fits where no column may be NULL and deletions are left out (deletes = ignore); else " + _MAKE_OTHER,
            )

    def _missing_marks(self) -> list[FoundColumn]:
        chosen = self.choices
        wanted: list[FoundColumn] = []
        if self.family is Family.REPLACING and self._argument(1) is None and chosen.deletes == Deletes.APPLY:
            if chosen.delete_column:
                wanted.append(FoundColumn(chosen.delete_column, "UInt8"))
            elif self.table.column(chosen.sign_column) is None:
                # Rows that are there already are there.
                wanted.append(FoundColumn(chosen.sign_column, "Int8", "DEFAULT", "1"))
        if self.family is Family.HISTORY:
            wanted += [
                FoundColumn(chosen.operation_column, "LowCardinality(String)", "DEFAULT", "'snapshot'"),
                FoundColumn(chosen.version_column, "UInt64"),
                FoundColumn(chosen.time_column, "DateTime64(6, 'UTC')"),
            ]
        return wanted

    def _mark(self, name: str | None, meaning: Meaning) -> Mark:
        if name is None:
            raise self._refused(f"its engine {self.engine.full_name} does not name its columns", _MAKE_OTHER)
        if self._is_source(name):
            raise self._refused(
                f"its column {name}, which its engine needs, is a column of the source as well",
                "keep the source's column under another name (`rename`)",
            )
        column = self._own(name)
        if column.default_kind not in ("", "DEFAULT"):
            raise self._refused(f"its column {name} is computed ({column.default_kind}), not stored", _START_OVER)
        if not can_hold(meaning, column.type):
            raise self._refused(
                f"its column {name} is {column.type} and cannot hold what Headrace writes there ({meaning})",
                f"make it {types_for(meaning)}",
            )
        return Mark(name, meaning, column.type)

    def _optional(self, name: str, meaning: Meaning) -> tuple[Mark, ...]:
        column = self._column(name)
        if column is None or self._is_source(name) or column.default_kind not in ("", "DEFAULT") or not can_hold(meaning, column.type):
            return ()
        return (Mark(name, meaning, column.type),)

    def _own(self, name: str) -> FoundColumn:
        column = self._column(name)
        if column is None:
            raise self._refused(
                f"it has no column {name}",
                f"add it, choose another name for it, or choose missing_columns = add ({_START_OVER})",
            )
        return column

    def _is_source(self, name: str) -> bool:
        return any(column.name == name for column in self.plan.columns)

    # Everything else

    def _check_others(self, columns: tuple[StoredColumn, ...], marks: tuple[Mark, ...]) -> None:
        """What we do not write must be written by the table itself."""
        ours = {column.name for column in columns} | {mark.name for mark in marks}
        for column in self.table.columns:
            if column.name not in ours and not column.default_kind and not _may_be_null(column.type):
                raise self._refused(
                    f"it has a column {column.name} {column.type} that the source has not, without a default and without NULLs",
                    f"give it a DEFAULT, make it Nullable, or map a source's column to it by `rename`; or {_START_OVER}",
                )

    def _moving(self, columns: tuple[StoredColumn, ...], marks: tuple[Mark, ...]) -> tuple[str, ...]:
        """The source columns whose change moves a row, checked to find every image of a row at one place."""
        row_key, table = self.plan.schema.row_key, self.table
        sort_key = split_key(table.sort_key)
        # The version by which images cancel each other is the last column of their sort key, and moves nothing by itself.
        version = self._argument(1) if self.family is Family.VERSIONED else None
        keyed = [column for column in table.columns if (column.in_sort_key or column.in_partition_key) and column.name != version]
        if self.family is not Family.HISTORY:
            self._check_key_marks(keyed, marks)
            plain = plain_columns(sort_key)
            lacking = next((column.name for column in columns if column.source.name in row_key and column.name not in plain), None)
            if lacking is not None:
                shown = ", ".join(sort_key)
                raise self._refused(
                    f"its sort key is ({shown}), which does not hold the key's column {lacking}: different rows would be merged",
                    f"make the table with a sort key that holds {', '.join(map(quote_name, self.plan.key))}, in any order, alone or with"
                    " other columns",
                )
        computed = {column.name: column.default_expression for column in table.columns if column.default_expression}
        stored = {column.name for column in columns}
        needed = [*(quote_name(column.name) for column in keyed), self.shard_by]
        for column in keyed:
            fickle = fickle_function(column.default_expression) if column.name not in stored else None
            if fickle and self.family is not Family.HISTORY:
                raise self._refused(
                    f"its key depends on column {column.name} = {column.default_expression}, which is not decided by the row",
                    "make the table with a key of columns of the row",
                )
        if not row_key:
            return ()
        return tuple(dict.fromkeys((*row_key, *sources_of(needed, columns, computed))))

    def _check_key_marks(self, keyed: list[FoundColumn], marks: tuple[Mark, ...]) -> None:
        allowed = {OCCURRENCE, ROW} | ({self._argument(1)} if self.family is Family.VERSIONED else set())
        wrong = next(
            (column.name for column in keyed if column.name not in allowed and any(column.name == mark.name for mark in marks)), None
        )
        if wrong is not None:
            raise self._refused(
                f"its sort or partition key holds {wrong}, which differs between images of one row: they would never be merged",
                f"make the table without {wrong} in its keys",
            )

    def _storage(self) -> Storage:
        computed = tuple(
            ComputedColumn(column.name, column.type, column.default_expression)
            for column in self.table.columns
            if column.default_kind == "MATERIALIZED"
        )
        arguments = self.engine.names or ()
        sort_key = split_key(self.table.sort_key)
        if self.family is Family.VERSIONED and sort_key and plain_columns(sort_key[-1:]) == {arguments[-1]}:
            # The server shows the version as the last column of the sort key, which nobody wrote there.
            sort_key = sort_key[:-1]
        return Storage(
            self.engine.name,
            arguments,
            sort_key,
            self.table.partition_key,
            self.engine.settings,
            computed,
            shard_by=self.shard_by,
        )

    def _hides_deleted(self) -> bool:
        return self.family is Family.REPLACING and self._argument(1) is not None

    def _is_planned(self, found: Layout) -> bool:
        plan = self.plan
        same = (found.family, found.columns, found.marks) == (plan.family, tuple(replace(c) for c in plan.columns), plan.marks)
        keys = found.storage.arguments == plan.storage.arguments and set(found.moving) == set(plan.moving) and found.holder == plan.holder
        others = len(self.table.columns) == len(plan.columns) + len(plan.marks) + len(plan.storage.computed)
        sorted_alike = tuple(split_key(", ".join(plan.storage.sort_key))) and _bare(found.storage.sort_key) == _bare(plan.storage.sort_key)
        return same and keys and others and bool(sorted_alike or not plan.storage.sort_key)

    @cached_property
    def _name(self) -> str:
        return f"{self.plan.database}.{self.plan.table}"

    def _refused(self, difference: str, hint: str) -> DefiniteError:
        return DefiniteError(
            f"the table {self._name} is there, but is not what Headrace needs: {difference}", place=f"table {self.plan.source}", hint=hint
        )


def _bare(key: tuple[str, ...]) -> list[str]:
    """Expressions without what the server spells in its own way."""
    return [one.replace("`", "").replace(" ", "") for one in key]


def _may_be_null(kind: str) -> bool:
    return kind.startswith(("Nullable(", "LowCardinality(Nullable("))
