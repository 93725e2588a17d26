"""Plans the statements that apply an ALTER TABLE of the source to the target table. Pure: no server access.

A plan is a list of steps. Each step may be repeated: it uses IF EXISTS, or it names a table whose UUID tells whether the step was done. So
a pipe that records the number of completed steps can continue after a crash.

Invariant: after the steps the target shows the source's current rows in its current columns; or the plan has a reason (`reread`) why only a
resync can do that. If the result is uncertain, the table is read again. A table that Headrace did not create is never made unusable: such
an alteration is rejected before anything is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, BackfillValue, Truncated, UnknownValues
from headrace.sinks.clickhouse.schema_changes.alter_values import (
    constant,
    converts_alike,
    converts_in_place,
    holds_all,
    shortened,
)
from headrace.sinks.clickhouse.server.identifiers import qualify, quote_name, quote_text
from headrace.sinks.clickhouse.server.options import TableOptions
from headrace.sinks.clickhouse.tables.create_table import create_sql
from headrace.sinks.clickhouse.tables.existing_table import plan_existing_table
from headrace.sinks.clickhouse.tables.system_tables import ExistingColumn, ExistingTable
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataColumn, MetadataRole, StoredColumn, TargetTable
from headrace.sinks.clickhouse.tables.views import create_view_sql, current_rows_from
from headrace.sinks.clickhouse.types.type_mapping import ROW, merge_enum_types
from headrace.sinks.clickhouse.types.type_names import is_nullable
from headrace.sinks.schema_changes import DdlPlan, Step

_TEMPORARY = "_headrace_{}"
_REBUILT = "headrace_rebuilt_{}"
"""The name of a table while it is filled, with a digest of the old table's UUID: no other table has this name."""
_NO_DEFAULT = "its default cannot be expressed in the target's type"


@dataclass(frozen=True, slots=True)
class AlteredTable:
    target_table: TargetTable
    """The table before the alteration."""
    found: ExistingTable
    """The table that stores the rows."""
    over: ExistingTable | None
    """The Distributed table above it, if there is one."""
    plan_before: TargetTable
    """The table that Headrace would have created before the alteration."""
    plan_after: TargetTable
    """The table that Headrace would create after the alteration."""
    options: TableOptions
    uuid: str = ""
    """The table's UUID; empty if the database engine has none."""
    viewed: bool = False
    """Whether the view of its current rows exists."""

    @property
    def is_renamed(self) -> bool:
        """Whether the table's name becomes that of a view, or the reverse, because the source's table gets or loses its key."""
        return bool(self.plan_before.view_table) != bool(self.plan_after.view_table)


def plan_column_changes(alteration: Alteration, altered: AlteredTable, version: int) -> DdlPlan:
    """Plan the alteration of a target. `version` is that of the statement's log position, below every later version."""
    alteration = _with_unknown_conversions(alteration, altered)
    attempt = _InPlace(alteration, altered)
    attempt.run()
    if not attempt.obstacle:
        attempt.obstacle = _find_mismatch(altered, attempt.columns)
    if altered.is_renamed:
        attempt.obstacle = attempt.obstacle or "its rows are stored in another table if the source's table has no key"
    if altered.target_table.cancels_by_content_hash and attempt.changes_columns:
        attempt.obstacle = attempt.obstacle or "its images cancel each other by a hash of the whole row"
    if not attempt.obstacle:
        steps = attempt.steps + (_view_steps(altered) if attempt.changes_columns else [])
        return DdlPlan(tuple(steps), "; ".join(attempt.reread_reasons))
    return _plan_rebuild(alteration, altered, attempt, version)


def _with_unknown_conversions(alteration: Alteration, altered: AlteredTable) -> Alteration:
    """Return the alteration, with an unknown effect for columns whose stored form ClickHouse would convert differently than Headrace."""
    stored = {column.source.name: column for column in altered.target_table.columns}
    plan_before = {column.source.name: column.type for column in altered.plan_before.columns}

    def with_effect(altered_column: AlteredColumn) -> AlteredColumn:
        there = stored.get(altered_column.origin or "")
        if there is None or isinstance(altered_column.effect, UnknownValues):
            return altered_column
        follows = altered.target_table.created_by_headrace or plan_before.get(there.source.name, there.type) == there.type
        kind = altered.plan_after.stored_column(altered_column.column.name).type if follows else there.type
        if converts_alike(there.source, there.type, altered_column.column, kind):
            return altered_column
        return replace(altered_column, effect=UnknownValues("ClickHouse would not convert it as Headrace stores it"))

    return replace(alteration, altered_columns=tuple(map(with_effect, alteration.altered_columns)))


def has_view(target_table: TargetTable, options: TableOptions) -> bool:
    return options.view or not target_table.has_key


def alter_sql(altered: AlteredTable, command: str) -> tuple[str, ...]:
    """Return an ALTER for the local table and for the Distributed table."""
    places = dict.fromkeys((altered.target_table.storage_place, altered.target_table.place))
    return tuple(f"ALTER TABLE {qualify(place)}{altered.plan_before.on_cluster} {command}" for place in places)


class _InPlace:
    """Plans the steps that alter a table in place, and tracks its columns meanwhile."""

    def __init__(self, alteration: Alteration, altered: AlteredTable) -> None:
        self.alteration, self.altered = alteration, altered
        self.columns = list(altered.found.columns)
        self.steps: list[Step] = []
        self.reread_reasons: list[str] = []
        self.obstacle = ""
        self.changes_columns = False
        """Whether the steps change columns, not only comments."""
        self._stored = {column.source.name: column for column in altered.target_table.columns}
        self._plan_before = {column.source.name: column for column in altered.plan_before.columns}
        self._plan_after = {column.source.name: column for column in altered.plan_after.columns}

    def run(self) -> None:
        dropped = [self._stored[name] for name in self.alteration.dropped if name in self._stored and name not in self.alteration.left]
        self._drop_from_row_hash(dropped)
        for stored in dropped:
            self._drop(stored.name)
        self._rename()
        self._define()
        self._default_retained_columns()
        self._reorder()
        self.changes_columns = bool(self.steps)
        self._comment()

    def _append_alter(self, command: str) -> None:
        self.steps.append(Step(alter_sql(self.altered, command)))

    def _find(self, name: str) -> ExistingColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def _is_fixed(self, name: str) -> bool:
        """Whether the column is part of a key, which ClickHouse does not alter; records the obstacle."""
        column = self._find(name)
        fixed = column is not None and (column.in_sort_key or column.in_partition_key)
        if fixed:
            self.obstacle = self.obstacle or f"column {name} is part of its key"
        return fixed

    def _drop_from_row_hash(self, dropped: list[StoredColumn]) -> None:
        row = self._find(ROW)
        gone = {stored.name for stored in dropped}
        if row is None or row.default_kind != "MATERIALIZED" or not gone:
            return
        kept = [quote_name(column.name) for column in self.altered.target_table.columns if column.name not in gone]
        if not kept:
            self.obstacle = "none of its columns is left"
            return
        self._append_alter(f"MODIFY COLUMN {ROW} {row.type} MATERIALIZED cityHash64(tuple({', '.join(kept)}))")

    def _drop(self, name: str) -> None:
        if self._find(name) is not None and not self._is_fixed(name):
            self._append_alter(f"DROP COLUMN IF EXISTS {quote_name(name)}")
            self.columns = [column for column in self.columns if column.name != name]

    def _rename(self) -> None:
        """Rename columns in an order without name conflicts; a cycle goes through a temporary name."""
        waiting: dict[str, str] = {}
        for altered_column in self.alteration.altered_columns:
            stored = self._stored.get(altered_column.origin or "")
            if stored is not None and altered_column.column.name != altered_column.origin:
                old, new = stored.name, self._plan_after[altered_column.column.name].name
                if old != new and not self._is_fixed(old):
                    waiting[old] = new
        self._clear_names(set(waiting.values()) - set(waiting))
        while waiting and not self.obstacle:
            taken = {column.name for column in self.columns}
            free = next((old for old, new in waiting.items() if new not in taken), None)
            if free is None:
                old, new = waiting.popitem()
                self._rename_one(old, _TEMPORARY.format(old))
                waiting[_TEMPORARY.format(old)] = new
            else:
                self._rename_one(free, waiting.pop(free))

    def _rename_one(self, old: str, new: str) -> None:
        self._append_alter(f"RENAME COLUMN IF EXISTS {quote_name(old)} TO {quote_name(new)}")
        self.columns = [replace(column, name=new) if column.name == old else column for column in self.columns]

    def _clear_names(self, names: set[str]) -> None:
        """Free names of new columns: a column that the source never had is left over from an ignored change."""
        for name in sorted(names):
            if self._find(name) is not None:
                if self.altered.target_table.created_by_headrace:
                    self._drop(name)
                else:
                    self.obstacle = f"it has a column {name} of its own"

    def _define(self) -> None:
        before = None
        for altered_column in self.alteration.altered_columns:
            wanted = self._plan_after[altered_column.column.name]
            if altered_column.origin is None:
                self._add(altered_column, wanted, before)
            elif altered_column.origin in self._stored and altered_column.origin not in self.alteration.left:
                self._modify(altered_column, wanted)
            if self._find(wanted.name) is not None:
                before = wanted.name

    def _add(self, altered_column: AlteredColumn, wanted: StoredColumn, before: str | None) -> None:
        clause, is_exact = self._default(altered_column, wanted)
        there = self._find(wanted.name)
        if there is not None and not self.altered.target_table.created_by_headrace:
            # The table's owner added the column in advance. It is used as it is, and read again unless it has the same default.
            if f"DEFAULT {there.default_expression}" != clause:
                self.reread_reasons.append(f"column {wanted.name} was there already")
            return
        if there is not None:
            self._drop(wanted.name)
        if not is_exact:
            self.reread_reasons.append(_reread_reason(altered_column, _NO_DEFAULT))
        self._insert(wanted, clause, before)

    def _insert(self, wanted: StoredColumn, clause: str, before: str | None) -> None:
        place = "FIRST" if before is None else f"AFTER {quote_name(before)}"
        comment = f" COMMENT {quote_text(wanted.comment)}" if wanted.comment else ""
        codec = f" CODEC({wanted.codec})" if wanted.codec else ""
        default = f" {clause}" if clause else ""
        self._append_alter(f"ADD COLUMN IF NOT EXISTS {quote_name(wanted.name)} {wanted.type}{default}{comment}{codec} {place}")
        at = 0 if before is None else next(i for i, column in enumerate(self.columns) if column.name == before) + 1
        self.columns.insert(at, ExistingColumn(wanted.name, wanted.type, "DEFAULT" if clause else ""))

    def _default(self, altered_column: AlteredColumn, wanted: StoredColumn) -> tuple[str, bool]:
        """Return the DEFAULT clause that makes existing rows show the value the source filled in, and whether it is exact."""
        if not isinstance(altered_column.effect, BackfillValue):
            return "", False
        text = constant(self.alteration.after, altered_column.column, wanted.type, altered_column.effect.value)
        return f"DEFAULT {text}" if text else "", text is not None

    def _modify(self, altered_column: AlteredColumn, wanted: StoredColumn) -> None:
        there = self._find(wanted.name)
        assert altered_column.origin is not None
        if there is None:
            return
        kind = wanted.type if self._has_default_type(altered_column.origin) else there.type
        match altered_column.effect:
            case UnknownValues():
                self.reread_reasons.append(_reread_reason(altered_column))
                if kind != there.type and not self._is_fixed(there.name):
                    self._recreate_column(replace(wanted, type=kind))
            case Truncated() as cut:
                self._shorten(there, cut)
                self._retype(there, kind)
            case _:
                self._retype(there, kind)

    def _has_default_type(self, name: str) -> bool:
        """Whether the column has the type that Headrace would choose, not one that the table's owner chose."""
        plan_before = self._plan_before.get(name)
        return self.altered.target_table.created_by_headrace or plan_before is None or plan_before.type == self._stored[name].type

    def _recreate_column(self, wanted: StoredColumn) -> None:
        names = [column.name for column in self.columns]
        at, row = names.index(wanted.name), self._find(ROW)
        if row is not None and row.default_kind == "MATERIALIZED":
            self.obstacle = "its rows are distinguished by a hash over the column"
            return
        self._drop(wanted.name)
        self._insert(wanted, "", names[at - 1] if at else None)

    def _shorten(self, there: ExistingColumn, cut: Truncated) -> None:
        if self.altered.target_table.family is EngineFamily.HISTORY:
            # A history keeps old values; new values follow.
            self.reread_reasons.append(f"column {there.name}: the source cut text, and a history keeps what was")
            return
        if self._is_fixed(there.name):
            return
        if self._find(ROW) is not None:
            self.obstacle = "its rows are distinguished by a hash over the column"
            return
        name = quote_name(there.name)
        command = f"UPDATE {name} = {shortened(name, cut)} WHERE {name} != {shortened(name, cut)}"
        # A Distributed table has no rows to update.
        self.steps.append(Step(alter_sql(self.altered, command)[:1]))

    def _retype(self, there: ExistingColumn, kind: str) -> None:
        if there.type == kind or self._is_fixed(there.name):
            return
        if self.altered.target_table.family is EngineFamily.HISTORY and not holds_all(there.type, kind):
            # A history keeps old values: the column keeps its type, which also holds the new values.
            return
        # Members keep their numbers, whatever their index in the source.
        kind = merge_enum_types(there.type, kind) or kind
        if not converts_in_place(there.type, kind):
            self.obstacle = f"ClickHouse does not convert column {there.name} from {there.type} to {kind} in place"
            return
        default = ""
        if is_nullable(there.type) and not is_nullable(kind):
            # Only replaced images still have NULLs; a default that older rows show must stay.
            default = f" DEFAULT {there.default_expression or f'defaultValueOfTypeName({quote_text(kind)})'}"
        self._append_alter(f"MODIFY COLUMN {quote_name(there.name)} {kind}{default}")
        self._update_column(there.name, type=kind, default_kind="DEFAULT" if default else there.default_kind)

    def _default_retained_columns(self) -> None:
        """Give columns that the source dropped and the target keeps a default."""
        for name in self.alteration.dropped:
            stored = self._stored.get(name)
            there = self._find(stored.name) if stored is not None and name in self.alteration.left else None
            if there is not None and self._is_fixed(there.name):
                return
            if there is not None and not there.default_kind and not is_nullable(there.type):
                default = f"defaultValueOfTypeName({quote_text(there.type)})"
                self._append_alter(f"MODIFY COLUMN {quote_name(there.name)} {there.type} DEFAULT {default}")
                self._update_column(there.name, default_kind="DEFAULT", default_expression=default)

    def _update_column(self, name: str, **changes: Any) -> None:
        self.columns = [replace(column, **changes) if column.name == name else column for column in self.columns]

    def _reorder(self) -> None:
        """Reorder columns like the source, moving as few as possible, if the source moved any."""
        order = [self._plan_after[altered_column.column.name].name for altered_column in self.alteration.altered_columns]
        order = [name for name in order if self._find(name) is not None]
        places = {column.name: i for i, column in enumerate(self.columns)}
        staying = _longest_rising([places[name] for name in order])
        before_places = {column.name: i for i, column in enumerate(self.alteration.before.columns)}
        kept = [before_places[one.origin] for one in self.alteration.altered_columns if one.origin is not None]
        if kept == sorted(kept) or len(staying) == len(order):
            return
        before = None
        for name in order:
            column = self._find(name)
            if column is not None and places[name] not in staying:
                place = "FIRST" if before is None else f"AFTER {quote_name(before)}"
                self._append_alter(f"MODIFY COLUMN {quote_name(name)} {column.type} {place}")
            before = name

    def _comment(self) -> None:
        for altered_column in self.alteration.altered_columns:
            name = self._plan_after[altered_column.column.name].name
            if altered_column.origin is None or self._find(name) is None:
                continue
            if self.alteration.before.column(altered_column.origin).comment != altered_column.column.comment:
                self._append_alter(f"COMMENT COLUMN IF EXISTS {quote_name(name)} {quote_text(altered_column.column.comment)}")
        if self.alteration.before.comment != self.alteration.after.comment:
            self._append_alter(f"MODIFY COMMENT {quote_text(self.alteration.after.comment)}")


def _find_mismatch(altered: AlteredTable, columns: Iterable[ExistingColumn]) -> str:
    """Return why the table with these columns could not store the new schema; empty if it can."""
    held = replace(altered.found, columns=tuple(columns))
    try:
        if altered.over is None:
            plan_existing_table(altered.plan_after, held, altered.options)
        else:
            plan_existing_table(altered.plan_after, replace(altered.over, columns=tuple(columns)), altered.options, held)
    except DefiniteError as error:
        return error.message
    return ""


def _view_steps(altered: AlteredTable) -> list[Step]:
    before, after = altered.target_table, altered.plan_after
    shown = has_view(after, altered.options) or (altered.viewed and before.has_key)
    dropped = (f"DROP VIEW IF EXISTS {before.view}{altered.plan_before.on_cluster}",) if altered.viewed or shown else ()
    created = (create_view_sql(after),) if shown else ()
    if not altered.is_renamed:
        return [Step((*dropped, *created))] if dropped else []
    # One step each, because after the renaming the name of the view may be that of the table.
    steps = (dropped, (f"RENAME TABLE IF EXISTS {before.qualified} TO {after.qualified}",), created)
    return [Step(statements) for statements in steps if statements]


def _plan_rebuild(alteration: Alteration, altered: AlteredTable, attempt: _InPlace, version: int) -> DdlPlan:
    """Plan a rebuild: create the table under another name, fill it from the old one, and exchange both."""
    target_table, wanted = altered.target_table, _with_same_visibility(altered)
    if alteration.left:
        raise DefiniteError(
            f"an alteration of {target_table.source} cannot be ignored, for the table {target_table.full_name} as it is cannot go on:"
            f" {attempt.obstacle}",
            place=f"table {target_table.source}, column {', '.join(sorted(alteration.left))}",
            hint=f"start again with --schema-changes all=apply, or leave the table out with --exclude {target_table.source}",
        )
    if not target_table.created_by_headrace:
        raise DefiniteError(
            f"the table {target_table.full_name} was not made by Headrace and cannot follow an alteration of {target_table.source}:"
            f" {attempt.obstacle}",
            place=f"table {target_table.source}",
            hint=f"alter it in ClickHouse so that it holds the table as it is now, then: headrace resync {target_table.source}",
        )
    reread_reasons = attempt.reread_reasons + [
        why for why in map(_reread_reason, alteration.altered_columns) if why and why not in attempt.reread_reasons
    ]
    metadata_columns = [_metadata_value(mark, target_table, version) for mark in wanted.metadata_columns]
    if not altered.uuid or target_table.local_table is not None or wanted.storage.cluster or None in metadata_columns:
        reread_reasons.append("its table cannot be rebuilt where it is")
    values = [_value(alteration, altered_column, altered) for altered_column in alteration.altered_columns]
    if None in values:
        reread_reasons.append("a default cannot be expressed in the target's type")
    if reread_reasons:
        return DdlPlan((), "; ".join(dict.fromkeys(reread_reasons)))
    rebuilt = replace(wanted, table=_REBUILT.format(hashlib.sha256(altered.uuid.encode()).hexdigest()[:16]))
    names = [quote_name(stored.name) for stored in wanted.columns] + [quote_name(mark.name) for mark in wanted.metadata_columns]
    source = target_table.qualified if target_table.family is EngineFamily.HISTORY else current_rows_from(target_table)
    fill = f"INSERT INTO {rebuilt.qualified} ({', '.join(names)}) SELECT {', '.join(map(str, [*values, *metadata_columns]))} FROM {source}"
    statements = (
        f"DROP TABLE IF EXISTS {rebuilt.qualified} SYNC",
        create_sql(rebuilt),
        # One thread, because rows without a key are numbered.
        fill if wanted.has_key else f"{fill} SETTINGS max_threads = 1, max_insert_threads = 1",
        f"EXCHANGE TABLES {target_table.qualified} AND {rebuilt.qualified}",
    )
    swapped = Step(statements, (target_table.database, target_table.table, altered.uuid))
    return DdlPlan((swapped, Step((f"DROP TABLE IF EXISTS {rebuilt.qualified} SYNC",)), *_view_steps(altered)))


def _with_same_visibility(altered: AlteredTable) -> TargetTable:
    """Return the table to be created, with hidden metadata columns if the existing table hides them: an ALTER of the source must not
    change which of them `SELECT *` returns. Only tables with a key have hidden columns."""
    if altered.target_table.has_key != altered.plan_after.has_key:
        return altered.plan_after
    hidden = any(mark.hidden for mark in altered.target_table.metadata_columns)
    marks = tuple(replace(mark, hidden=hidden) for mark in altered.plan_after.metadata_columns)
    return replace(altered.plan_after, metadata_columns=marks)


def _reread_reason(altered_column: AlteredColumn, otherwise: str = "") -> str:
    """Return why the table must be read again because of a column; empty if it need not. `otherwise`: the reason if the effect is known."""
    why = altered_column.effect.why if isinstance(altered_column.effect, UnknownValues) else otherwise
    return f"column {altered_column.column.name}: {why}" if why else ""


def _metadata_value(mark: MetadataColumn, target_table: TargetTable, version: int) -> str | None:
    if target_table.family is EngineFamily.HISTORY:
        old = target_table.metadata_column(mark.role)
        return quote_name(old.name) if old is not None else None
    known = {MetadataRole.VERSION: str(version), MetadataRole.SIGN: "1", MetadataRole.DELETED: "0"}
    return {**known, MetadataRole.OCCURRENCE: "rowNumberInAllBlocks()"}.get(mark.role)


def _value(alteration: Alteration, altered_column: AlteredColumn, altered: AlteredTable) -> str | None:
    wanted = altered.plan_after.stored_column(altered_column.column.name)
    if altered_column.origin is None:
        value = altered_column.effect.value if isinstance(altered_column.effect, BackfillValue) else None
        text = constant(alteration.after, altered_column.column, wanted.type, value)
        return None if text is None else text or f"defaultValueOfTypeName({quote_text(wanted.type)})"
    stored = altered.target_table.stored_column(altered_column.origin)
    name = quote_name(stored.name)
    text = shortened(name, altered_column.effect) if isinstance(altered_column.effect, Truncated) else name
    if stored.type == wanted.type:
        return text
    if "Enum" in stored.type:
        text = f"CAST({text}, 'Nullable(String)')"
    return f"CAST({text}, {quote_text(wanted.type)})"


def _longest_rising(numbers: list[int]) -> set[int]:
    """Return the members of a longest increasing subsequence of distinct numbers."""
    best: list[list[int]] = []
    for number in numbers:
        before = max((chain for chain in best if chain[-1] < number), key=len, default=[])
        best.append([*before, number])
    longest: list[int] = max(best, key=len, default=[])
    return set(longest)
