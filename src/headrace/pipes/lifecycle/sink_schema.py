"""Resolves the sink's schema of a source table: projected, with hidden columns removed, and transformed.

Invariant: everything that creates, writes, alters or compares a target table uses the same schema, a pure function of the source table, its
hidden columns and the settings.

The sink never holds rows of one table that were written with different values of `--columns`, `--exclude-columns` or `--zero-dates`. A
restart may change a value if no row in the sink would differ: `--zero-dates halt` lets no such date pass, so every other value may follow
it, and date columns that must accept NULL from now on are altered. Otherwise `headrace resync` must have the table read again before the
new value is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, Unchanged
from headrace.model.column_types import DATE_FORMS
from headrace.model.projection import Projection
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import PipeState, TableState
from headrace.pipes.state.resync_requests import resync_command
from headrace.retry import retrying
from headrace.settings.pipe_settings import RESHAPED_TABLES, PipeSettings
from headrace.sinks.base import TableRequirements
from headrace.sinks.schema_changes import DdlPlan
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.transforms.alteration import reread_reason, transform_alteration
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.options import read_salts
from headrace.transforms.transform_plan import TransformPlan, check_new_table, check_snapshot_replay, plan_transform

_COLUMNS, _ZERO_DATES = "--columns or --exclude-columns", "--zero-dates"


@dataclass(frozen=True, slots=True)
class SinkSchemaResolver:
    settings: PipeSettings

    def __call__(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """Return the sink's schema of a source table."""
        read = self.read(schema, hidden)
        # Most tables have no transforms, and a pipe may have thousands of tables.
        return read if self.settings.transforms.of(schema.name).is_empty else self.transform_plan(schema, hidden).schema

    def transform_plan(self, schema: TableSchema, hidden: tuple[str, ...]) -> TransformPlan:
        return plan_transform(self.settings.transforms.of(schema.name), self.read(schema, hidden))

    def read(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """Return the source table with the columns that are read."""
        projection = replace(self.settings.projection, hidden=frozenset((schema.name, column) for column in hidden))
        return projection.project(schema.with_zero_dates(self.settings.zero_dates))

    def alteration(self, source_alteration: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> Alteration:
        read = source_alteration.shown(lambda one: self.read(one, hidden), lambda one: self.read(one, hidden_after))
        if self.settings.transforms.of(source_alteration.before.name).is_empty:
            return read
        return transform_alteration(read, *self._transform_plans(source_alteration, hidden, hidden_after))

    def reread_reason(self, source_alteration: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> str:
        """Return why an alteration changes which rows belong in the sink; empty if it does not."""
        if not self.settings.transforms.of(source_alteration.before.name).filter:
            return ""
        return reread_reason(source_alteration, *self._transform_plans(source_alteration, hidden, hidden_after))

    def named(self, names: Iterable[str], schema: TableSchema, hidden: tuple[str, ...]) -> frozenset[str]:
        """Return the sink's names of source columns that it has."""
        called = {output.source: output.column.name for output in self.transform_plan(schema, hidden).outputs if output.source}
        return frozenset(called[name] for name in names if name in called)

    def check_new(self, schema: TableSchema) -> None:
        """Raise `DefiniteError` if the transforms of a new table name columns that it does not have."""
        check_new_table(self.settings.transforms, schema)

    def check_again(self, before: TableSchema, now: TableSchema) -> None:
        """Raise `DefiniteError` if reading a table again could reveal hidden values."""
        check_snapshot_replay(self.settings.transforms.of(now.name), before, now)

    def is_same(self, old: TableName, new: TableName) -> bool:
        """Whether both names have the same transforms."""
        return self.settings.transforms.of(old) == self.settings.transforms.of(new)

    def _transform_plans(
        self, source_alteration: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]
    ) -> tuple[TransformPlan, TransformPlan]:
        before = self.transform_plan(source_alteration.before, hidden)
        try:
            return before, self.transform_plan(source_alteration.after, hidden_after)
        except DefiniteError as error:
            raise DefiniteError(
                f"table {source_alteration.before.name} was altered, and its transforms no longer fit it: {error.message}",
                place=error.place,
                hint=error.hint,
            ) from error


def transformer_for(
    settings: PipeSettings, transform_plans: Iterable[TransformPlan], needs: Mapping[TableName, TableRequirements], *, whole: bool = True
) -> BlockTransformer | None:
    """Return the transform that tasks apply to blocks of these tables, or None. `whole`: see `BlockTransformer`."""
    transformed = [plan.schema.name for plan in transform_plans if not plan.is_plain]
    if not transformed:
        return None
    moving = {name: needs[name].key_columns for name in transformed}
    return BlockTransformer(settings.transforms, read_salts(settings.transforms), moving, whole)


def hidden_in(state: PipeState, name: TableName) -> tuple[str, ...]:
    """Columns that are not replicated: they were added while `add_column` was set to ignore."""
    table = state.tables.get(name)
    return table.hidden if table is not None else ()


def stored_column_settings(state: PipeState, settings: PipeSettings) -> PipeSettings:
    """Return the settings with the values that the rows in the sink were written with."""
    columns, zero_dates = state.options["columns"], state.options.get("zero_dates")
    if zero_dates is None:
        # States of the first releases had two values only.
        zero_dates = ZeroDates.NULL if state.options["zero_dates_as_null"] else ZeroDates.HALT
    projection = Projection(tuple(columns["include"]), tuple(columns["exclude"]))
    return replace(settings, zero_dates=ZeroDates(zero_dates), projection=projection)


def store_column_settings(
    targets: SinkTables, state: PipeState, settings: PipeSettings, read_again: Callable[[TableName], bool] | None
) -> None:
    """Store the settings of this run in the state and alter the target tables for them; raise if rows in the sink would differ.

    `read_again`: whether a table is about to be read again; None if this kind of pipe cannot do that.
    """
    before, place = stored_column_settings(state, settings), str(settings.state)
    changed = {name: flag for name, table in state.tables.items() if (flag := _changed_flag(table, before, settings))}
    ready = {name for name in changed if name in state.awaiting_resync or (read_again is not None and read_again(name))}
    if left := sorted(changed.keys() - ready):
        hint = "give the same value as before"
        if read_again is not None:
            hint += f", or have the tables read again with the new value: {resync_command(left, place)}, then start again"
        else:
            hint += ", or drop the tables in ClickHouse and start with a new --state"
        raise DefiniteError(
            f"the rows of {left[0]} in the sink were written with another {changed[left[0]]}",
            place=f"{place}, {', '.join(map(str, left[:5]))}{', …' if len(left) > 5 else ''}",
            hint=hint,
        )
    if ready:
        # Old and new rows may have the same versions: the snapshot runner removes the old ones first.
        state.options[RESHAPED_TABLES] = sorted({*state.options.get(RESHAPED_TABLES, ()), *map(str, ready)})
    _alter_date_columns(targets, state, before, settings)
    state.options |= {name: settings.stored_options[name] for name in ("zero_dates", "columns")}


def _alter_date_columns(targets: SinkTables, state: PipeState, before: PipeSettings, settings: PipeSettings) -> None:
    """Let date columns in the sink accept NULL if they must from now on. Repeating this after a crash changes nothing."""
    for name, table in state.tables.items():
        was, now = (SinkSchemaResolver(one)(table.schema, table.hidden) for one in (before, settings))
        if was == now or name in state.awaiting_resync or str(name) in state.options.get(RESHAPED_TABLES, ()):
            continue
        plan = retrying(functools.partial(_plan, targets, was, now, BinlogPosition.from_json(table.captured_at).version))
        for step in plan.steps:
            retrying(functools.partial(targets.run_step, step, [name]))


def _changed_flag(table: TableState, before: PipeSettings, settings: PipeSettings) -> str:
    """Return the flag by which the rows of a table would differ; empty if they would not."""
    was, now = (SinkSchemaResolver(one).read(table.schema, table.hidden) for one in (before, settings))
    if [column.name for column in was.columns] != [column.name for column in now.columns]:
        return _COLUMNS
    differs = before.zero_dates not in (ZeroDates.HALT, settings.zero_dates) and any(column.form in DATE_FORMS for column in was.columns)
    return _ZERO_DATES if differs else ""


def _plan(targets: SinkTables, was: TableSchema, now: TableSchema, version: int) -> DdlPlan:
    altered_columns = tuple(AlteredColumn(column, column.name, Unchanged()) for column in now.columns)
    return targets.sink.schema_applier().plan_alteration(Alteration(was, now, altered_columns), version)
