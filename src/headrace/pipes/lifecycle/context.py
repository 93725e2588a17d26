"""The objects that the parts of one running pipe share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.model.schema import TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver, hidden_in
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.settings.pipe_settings import PipeSettings

Targets_co = TypeVar("Targets_co", covariant=True)


class SnapshotInterrupted(Exception):
    """The pipe was stopped during a snapshot."""


@dataclass(frozen=True, slots=True)
class PipeContext(Generic[Targets_co]):
    """Settings, state and sink of one pipe. `targets` is `SinkTables` for change blocks and `LogTarget` for ScyllaDB's log rows."""

    settings: PipeSettings
    state: PipeState
    directory: StateDirectory
    targets: Targets_co
    view: ProgressView
    is_stopping: Callable[[], bool] = lambda: False

    @property
    def schemas(self) -> SinkSchemaResolver:
        return SinkSchemaResolver(self.settings)

    @property
    def selection(self) -> Selection:
        """The selected tables, including those that were added while the pipe ran."""
        return self.state.current_selection(self.settings.selection)

    def is_selected(self, name: TableName) -> bool:
        return self.state.is_selected(self.settings.selection, name)

    @property
    def written_tables(self) -> list[TableSchema]:
        """The sink's schemas of the pipe's tables, without tables that await a resync: their targets may not exist."""
        return [self.sink_schema(table.schema) for name, table in self.state.tables.items() if name not in self.state.awaiting_resync]

    def sink_schema(self, schema: TableSchema) -> TableSchema:
        return self.schemas(schema, hidden_in(self.state, schema.name))
