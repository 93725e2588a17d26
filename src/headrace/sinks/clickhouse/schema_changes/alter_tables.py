"""Plans the statements that apply DROP, TRUNCATE and RENAME of source tables to their targets. Pure, like `alter_columns`.

Invariant: each step may be repeated. A table that Headrace did not create is never dropped, only truncated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.identifiers import check_name_lengths, quote_name
from headrace.sinks.clickhouse.tables.create_table import create_sql
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, TargetTable
from headrace.sinks.schema_changes import DdlPlan, Step, TargetNameTaken

Place = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """An existing target table, its view and its cluster."""

    target_table: TargetTable
    viewed: bool = False
    cluster: str = ""

    @property
    def place(self) -> Place:
        return self.target_table.database, self.target_table.table

    @property
    def on_cluster(self) -> str:
        return f" ON CLUSTER {quote_name(self.cluster)}" if self.cluster else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The table and, if it is Distributed, its local table."""
        return (
            self.target_table.qualified,
            *([qualified(self.target_table.local_table)] if self.target_table.local_table is not None else []),
        )

    def without_view(self) -> tuple[str, ...]:
        return (f"DROP VIEW IF EXISTS {self.target_table.view}{self.on_cluster}",) if self.viewed else ()


def plan_drop(table: TargetState) -> DdlPlan:
    """Plan the removal of a target whose source table was dropped."""
    if table.target_table.family is EngineFamily.HISTORY:
        return DdlPlan()
    if not table.target_table.created_by_headrace:
        return plan_truncate(table)
    drops = (f"DROP TABLE IF EXISTS {name}{table.on_cluster}" for name in table.names)
    return DdlPlan((Step((*table.without_view(), *drops)),), vacates=True)


def plan_truncate(table: TargetState) -> DdlPlan:
    """Plan the emptying of a target whose source table was truncated."""
    if table.target_table.family is EngineFamily.HISTORY:
        # A history keeps old rows.
        return DdlPlan()
    return DdlPlan((Step((f"TRUNCATE TABLE IF EXISTS {table.names[-1]}{table.on_cluster}",)),))


def plan_archive(table: TargetState, name: str, *, again: bool) -> DdlPlan:
    """Plan to rename the target with all its rows; `again`: create an empty one in its place."""
    target_table = table.target_table
    if target_table.local_table is not None or table.cluster:
        raise DefiniteError(
            f"the table {target_table.full_name} of a cluster cannot be kept under another name",
            place=f"table {target_table.source}",
            hint="choose apply, ignore or halt for it",
        )
    check_name_lengths(target_table.database, name)
    kept = qualified((target_table.database, name))
    steps = [Step((*table.without_view(), f"RENAME TABLE IF EXISTS {target_table.qualified} TO {kept}"))]
    if again:
        steps.append(
            Step(
                (
                    create_sql(target_table)
                    if target_table.matches_plan
                    else f"CREATE TABLE IF NOT EXISTS {target_table.qualified} AS {kept}",
                )
            )
        )
    return DdlPlan(tuple(steps))


def plan_renames(tables: Sequence[tuple[TargetState, Place]], there: Mapping[Place, str]) -> DdlPlan:
    """Plan to rename tables, possibly in a cycle. `there`: the names in use, with their tables' UUIDs."""
    waiting = {table.place: place for table, place in tables if table.place != place}
    taken, by_place = dict(there), {table.place: table for table, _ in tables}
    clustered = next((table for table in by_place.values() if table.target_table.local_table is not None or table.cluster), None)
    if waiting and clustered is not None:
        raise DefiniteError(
            f"tables of a cluster are not renamed: {clustered.target_table.source}",
            place=f"table {clustered.target_table.source}",
            hint="rename them in ClickHouse, or choose resync for rename_table",
        )
    steps = [Step(tuple(view for old in waiting for view in by_place[old].without_view()))] if waiting else []
    databases = sorted({database for database, _ in waiting.values()} - {database for database, _ in taken})
    steps += [Step(tuple(f"CREATE DATABASE IF NOT EXISTS {quote_name(database)}" for database in databases))]
    while waiting:
        old = next((old for old, new in waiting.items() if new not in taken), None)
        if old is not None:
            new = waiting.pop(old)
            steps.append(Step((f"RENAME TABLE IF EXISTS {qualified(old)} TO {qualified(new)}",)))
            taken[new] = taken.pop(old)
            continue
        ring = next((old for old, new in waiting.items() if new in waiting), None)
        if ring is None:
            old, blocked = next(iter(waiting.items()))
            raise TargetNameTaken(
                f"a table cannot be renamed to {blocked[0]}.{blocked[1]}: there is another table of that name in the sink",
                place=f"table {old[0]}.{old[1]}",
                hint=f"drop or rename {blocked[0]}.{blocked[1]} in ClickHouse, then start again",
            )
        old, new = ring, waiting[ring]
        if not taken[old]:
            raise DefiniteError(
                "the sink cannot exchange tables: its database does not tell them apart",
                place=f"table {old[0]}.{old[1]}",
                hint="use a database with the Atomic engine, or choose resync for rename_table",
            )
        steps.append(Step((f"EXCHANGE TABLES {qualified(old)} AND {qualified(new)}",), (*old, taken[old])))
        taken[old], taken[new] = taken[new], taken[old]
        del waiting[old]
        onward = waiting.pop(new)
        if onward != old:
            waiting[old] = onward
    return DdlPlan(tuple(step for step in steps if step.statements))


def qualified(place: Place) -> str:
    return ".".join(map(quote_name, place))
