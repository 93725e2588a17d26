"""Resolves the target table of a source table: read from the server once per process, then cached.

An existing table decides; where there is none, the result is the table that Headrace would create. The cache holds until the driver alters
target tables, which gives the sink another `generation`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.existing_table import plan_existing_table
from headrace.sinks.clickhouse.tables.system_tables import find_with_local_tables
from headrace.sinks.clickhouse.tables.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class TargetScope:
    """Server, options and cache generation of a sink. Picklable."""

    target: ClickHouseTarget
    options: ClickHouseOptions
    generation: int = 0


_known: dict[tuple[int, TargetScope], dict[TableSchema, TargetTable]] = {}
_lock = threading.Lock()


def resolve_tables(scope: TargetScope, schemas: Iterable[TableSchema]) -> Mapping[TableName, TargetTable]:
    """Return the target tables of schemas, cached where possible; raise `DefiniteError` for a table that cannot be used."""
    wanted = tuple(schemas)
    # A forked worker must not use its parent's cache, which may be stale.
    key = (os.getpid(), scope)
    with _lock:
        if key not in _known:
            for old in [one for one in _known if one[1].target == scope.target and one[1].generation < scope.generation]:
                del _known[old]
        known = _known.setdefault(key, {})
        missing = [schema for schema in wanted if schema not in known]
    if missing:
        found = read_target_tables(scope, missing)
        with _lock:
            known.update(zip(missing, found, strict=True))
    return {schema.name: known[schema] for schema in wanted}


def resolve_table(scope: TargetScope, schema: TableSchema, prefetch: Iterable[TableSchema] = ()) -> TargetTable:
    """Return the target table of one schema. If it is not cached, one query also reads the tables of `prefetch`.

    A schema in `prefetch` may be stale because its table was altered since; that does not fail this table.
    """
    with _lock:
        known = _known.get((os.getpid(), scope), {}).get(schema)
    if known is not None:
        return known
    try:
        return resolve_tables(scope, dict.fromkeys((*prefetch, schema)))[schema.name]
    except DefiniteError:
        return resolve_tables(scope, (schema,))[schema.name]


def read_target_tables(scope: TargetScope, schemas: Iterable[TableSchema]) -> list[TargetTable]:
    """Return the target tables of schemas as the server has them now."""
    planned = [plan_table(schema, scope.target, scope.options) for schema in schemas]
    connection = connect(scope.target)
    with translate_errors(scope.target, "looking at tables"):
        there, local_tables = find_with_local_tables(connection, ((target_table.database, target_table.table) for target_table in planned))
    found = (
        (
            target_table,
            there.get((target_table.database, target_table.table)),
            local_tables.get((target_table.database, target_table.table)),
        )
        for target_table in planned
    )
    return [
        target_table if table is None else plan_existing_table(target_table, table, scope.options.of(target_table.source), local_table)
        for target_table, table, local_table in found
    ]
