"""Resolves the sink's schema of a source table: projected, with hidden columns removed, and transformed.

Invariant: everything that creates, writes, alters or compares a target table uses the same schema, a pure function of the source table, its
hidden columns and the settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.state.pipe_state import PipeState
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import TableRequirements
from headrace.transforms.alteration import reread_reason, transform_alteration
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.name_checks import check_new_table, check_snapshot_replay
from headrace.transforms.salts import read_salts
from headrace.transforms.transform_plan import TransformPlan, plan_transform


@dataclass(frozen=True, slots=True)
class SinkSchemaResolver:
    """Resolves the schemas of one pipe's tables."""

    settings: PipeSettings

    def __call__(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """Return the sink's schema of a source table."""
        return self.transform_plan(schema, hidden).schema

    def transform_plan(self, schema: TableSchema, hidden: tuple[str, ...]) -> TransformPlan:
        """Return the transform plan of a source table."""
        return plan_transform(self.settings.transforms.of(schema.name), self.read(schema, hidden))

    def read(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """Return the source table with the columns that are read."""
        projection = replace(self.settings.projection, hidden=frozenset((schema.name, column) for column in hidden))
        return projection.project(read_as(schema, self.settings))

    def alteration(self, source_alteration: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> Alteration:
        """Return the alteration of the sink's schema."""
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


def current_sink_schema(schema: TableSchema, state: PipeState, settings: PipeSettings) -> TableSchema:
    """Return the sink's schema of a source table in the current state."""
    return SinkSchemaResolver(settings)(schema, hidden_in(state, schema.name))


def hidden_in(state: PipeState, name: TableName) -> tuple[str, ...]:
    """Columns that are not replicated: they were added while `add_column` was set to ignore."""
    table = state.tables.get(name)
    return table.hidden if table is not None else ()


def read_as(schema: TableSchema, settings: PipeSettings) -> TableSchema:
    """Return the source table as it is read, before projection."""
    return schema.with_zero_dates(settings.zero_dates)
