"""How topics follow schema changes: a topic only ever gets longer, so there is nothing to alter in it; messages after a statement are of
the table's new definition.

A table that is made, altered or renamed is prepared anew (its topic, its schemas); what cannot be read in place of what was there before is
refused while the statement is looked at, before anything follows it. A table that is dropped leaves its topic as it is. So does one that is
emptied, unless it was chosen that Debezium's events tell of it: then that is a step, which may be done again, with the same position.
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
def _say_untold() -> None:
    """Once in a process."""
    log.warning(
        "a table was emptied (TRUNCATE), which its topic does not tell: mypipe's messages have no word for it, and Debezium's events tell "
        "it with kafka.truncates = send"
    )


@dataclass(frozen=True, slots=True)
class KafkaSchemaApplier(SchemaApplier):
    """Follows by preparing."""

    check: Callable[[TableSchema], None]
    """Raises `DefiniteError` if readers of the table's messages so far could not read those of this definition."""
    tell_emptied: Callable[[TableSchema, int], None] | None = None
    """Tells readers that a table was emptied at a version; None if nobody is told."""

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del version
        self._check(alteration.after)
        return DdlPlan(prepared=True)

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        if self.tell_emptied is None:
            _say_untold()
            return DdlPlan()
        return DdlPlan((Step((json.dumps({"emptied": schema.to_json(), "version": version}),)),))

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """It may follow another table of its name, whose messages are in the topic."""
        self._check(schema)
        return DdlPlan()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """From here on the changes go to the topic of the new name."""
        for _, new in moves:
            self._check(new)
        return DdlPlan()

    def _check(self, schema: TableSchema) -> None:
        try:
            self.check(schema)
        except DefiniteError as error:
            hint = f"{error.hint}; or let readers cope with it: --set kafka.incompatible=new"
            raise DefiniteError(f"table {schema.name} was changed: {error.message}", place=error.place, hint=hint) from error

    def run_step(self, step: Step) -> None:
        if self.tell_emptied is None or not all(statement.startswith('{"emptied"') for statement in step.statements):
            raise DefiniteError("Kafka has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")
        for told in map(json.loads, step.statements):
            self.tell_emptied(TableSchema.from_json(told["emptied"]), told["version"])
