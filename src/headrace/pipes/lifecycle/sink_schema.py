"""A source's tables as they are read, and as the sink gets to see them: without what is not carried, and transformed.

Invariant: whoever makes, writes, alters or compares a target table sees the same schema, which is a pure function of the source's table, of
what is hidden of it, and of the settings.
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
    """Of one pipe's tables."""

    settings: PipeSettings

    def __call__(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """A source's table as the sink gets to see it."""
        return self.shape(schema, hidden).schema

    def shape(self, schema: TableSchema, hidden: tuple[str, ...]) -> TransformPlan:
        """How that comes about."""
        return plan_transform(self.settings.transforms.of(schema.name), self.read(schema, hidden))

    def read(self, schema: TableSchema, hidden: tuple[str, ...]) -> TableSchema:
        """A source's table with the columns that are read of it."""
        projection = replace(self.settings.projection, hidden=frozenset((schema.name, column) for column in hidden))
        return projection.project(read_as(schema, self.settings))

    def alteration(self, told: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> Alteration:
        """An alteration as the sink gets to see it."""
        read = told.shown(lambda one: self.read(one, hidden), lambda one: self.read(one, hidden_after))
        if self.settings.transforms.of(told.before.name).is_empty:
            return read
        return transform_alteration(read, *self._shapes(told, hidden, hidden_after))

    def reread_reason(self, told: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> str:
        """Why other rows belong into the sink after an alteration; empty if the same do."""
        if not self.settings.transforms.of(told.before.name).filter:
            return ""
        return reread_reason(told, *self._shapes(told, hidden, hidden_after))

    def named(self, names: Iterable[str], schema: TableSchema, hidden: tuple[str, ...]) -> frozenset[str]:
        """What the sink calls columns of the source's table, as far as it has them."""
        called = {output.source: output.column.name for output in self.shape(schema, hidden).outputs if output.source}
        return frozenset(called[name] for name in names if name in called)

    def check_new(self, schema: TableSchema) -> None:
        """Raise `DefiniteError` if what was chosen for a table that has come is about columns that it does not have."""
        check_new_table(self.settings.transforms, schema)

    def check_again(self, before: TableSchema, now: TableSchema) -> None:
        """Raise `DefiniteError` if a table that is read again may show what was hidden of it."""
        check_snapshot_replay(self.settings.transforms.of(now.name), before, now)

    def is_same(self, old: TableName, new: TableName) -> bool:
        """Whether a table is transformed under another name as it was under its own."""
        return self.settings.transforms.of(old) == self.settings.transforms.of(new)

    def _shapes(self, told: Alteration, hidden: tuple[str, ...], hidden_after: tuple[str, ...]) -> tuple[TransformPlan, TransformPlan]:
        before = self.shape(told.before, hidden)
        try:
            return before, self.shape(told.after, hidden_after)
        except DefiniteError as error:
            raise DefiniteError(
                f"table {told.before.name} was altered, and its transforms no longer fit it: {error.message}",
                place=error.place,
                hint=error.hint,
            ) from error


def shaper_for(
    settings: PipeSettings, shapes: Iterable[TransformPlan], needs: Mapping[TableName, TableRequirements], *, whole: bool = True
) -> BlockTransformer | None:
    """What tasks do to blocks of these tables; None: nothing. `whole`: see `BlockTransformer`."""
    transformed = [shape.schema.name for shape in shapes if not shape.is_plain]
    if not transformed:
        return None
    moving = {name: needs[name].key_columns for name in transformed}
    return BlockTransformer(settings.transforms, read_salts(settings.transforms), moving, whole)


def current_sink_schema(schema: TableSchema, state: PipeState, settings: PipeSettings) -> TableSchema:
    """A source's table as the sink gets to see it now."""
    return SinkSchemaResolver(settings)(schema, hidden_in(state, schema.name))


def hidden_in(state: PipeState, name: TableName) -> tuple[str, ...]:
    """The columns of a table that are not carried, because they came when new ones were to be ignored."""
    table = state.tables.get(name)
    return table.hidden if table is not None else ()


def read_as(schema: TableSchema, settings: PipeSettings) -> TableSchema:
    """A source's table as it is read, whichever of its columns are shown."""
    return schema.with_zero_dates(settings.zero_dates)
