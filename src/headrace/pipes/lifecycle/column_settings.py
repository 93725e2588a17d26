"""The settings that decide which columns a table has in the sink, and which dates they hold.

These are `--columns`, `--exclude-columns` and `--zero-dates`. Invariant: the sink never holds rows of one table that were written with
different values of these settings. A restart may change a value if no row in the sink would differ: `--zero-dates halt` lets no such date
pass, so every other value may follow it, and date columns that must accept NULL from now on are altered. Otherwise `headrace resync` must
have the table read again before the new value is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration, AlteredColumn, Unchanged
from headrace.model.column_types import DATE_FORMS
from headrace.model.projection import Projection
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.lifecycle.sink_tables import SinkTables
from headrace.pipes.state.pipe_state import PipeState, TableState
from headrace.pipes.state.resync_requests import resync_command
from headrace.retry import retrying
from headrace.settings.pipe_settings import RESHAPED_TABLES, PipeSettings
from headrace.sinks.schema_changes import DdlPlan
from headrace.sources.mysql.server.position import BinlogPosition

_COLUMNS, _ZERO_DATES = "--columns or --exclude-columns", "--zero-dates"


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
            retrying(functools.partial(targets.run_step, step))


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
