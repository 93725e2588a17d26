"""Schema changes in Kafka: messages after a statement have the table's new definition, and topics are never altered.

A table that was created, altered or renamed is prepared again (its topic, its schemas). A definition that readers of the earlier messages
could not read is rejected when the statement is planned. DROP TABLE leaves the topic as it is. So does TRUNCATE, unless the user chose that
Debezium's events report it (`kafka.truncates`): then the event is a step, which a crash may repeat with the same position.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableSchema
from headrace.sinks.schema_changes import DdlPlan, SchemaApplier, Step

log = logging.getLogger("headrace")


@functools.cache
def _warn_truncate() -> None:
    """Warn once per process."""
    log.warning(
        "a table was truncated, which its topic does not show: mypipe's messages cannot express it, and Debezium's events do only "
        "with kafka.truncates = send"
    )


@dataclass(frozen=True, slots=True)
class KafkaSchemaApplier(SchemaApplier):
    """Checks new definitions; sends TRUNCATE events if chosen."""

    check: Callable[[TableSchema], None]
    """Raises `DefiniteError` if readers of the table's messages so far could not read those of this definition."""
    tell_emptied: Callable[[TableSchema, int], None] | None = None
    """Sends the event that a table was emptied at a version; None: no event is sent."""

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del version
        self._check(alteration.after)
        return DdlPlan(prepared=True)

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        if self.tell_emptied is None:
            _warn_truncate()
            return DdlPlan()
        return DdlPlan((Step((json.dumps({"emptied": schema.to_json(), "version": version}),)),))

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """The topic may hold messages of an earlier table of that name."""
        self._check(schema)
        return DdlPlan()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """Later changes go to the topic of the new name."""
        for _, new in moves:
            self._check(new)
        return DdlPlan()

    def _check(self, schema: TableSchema) -> None:
        try:
            self.check(schema)
        except DefiniteError as error:
            hint = f"{error.hint}; or let readers handle it: --set kafka.incompatible=new"
            raise DefiniteError(f"table {schema.name} was changed: {error.message}", place=error.place, hint=hint) from error

    def run_step(self, step: Step) -> None:
        if self.tell_emptied is None or not all(statement.startswith('{"emptied"') for statement in step.statements):
            raise DefiniteError("Kafka has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")
        for entry in map(json.loads, step.statements):
            self.tell_emptied(TableSchema.from_json(entry["emptied"]), entry["version"])
