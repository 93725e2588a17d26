"""Resolves the target table of a source table: read from the server once per process, then cached.

An existing table decides; where there is none, the result is the table that Headrace would create. A cached table is valid until the driver
alters it: the sink's scope then says that this table, or all of them, must be read again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.existing_table import plan_existing_table
from headrace.sinks.clickhouse.tables.system_tables import find_with_local_tables
from headrace.sinks.clickhouse.tables.target_table import TargetTable

_MOST_ALTERED: Final = 100
"""Tasks carry the names of altered tables: with more, every table counts as altered."""
_MOST_SCHEMAS: Final = 4
"""How many schemas of one table are cached: a resync may read by an older one meanwhile."""


@dataclass(frozen=True, slots=True)
class CacheValidity:
    """Which cached tables are valid. Picklable."""

    generation: int = 0
    """Rises with every change of target tables by the driver."""
    all_altered: int = 0
    """The generation in which all tables may have been altered."""
    altered: tuple[tuple[TableName, int], ...] = ()
    """Tables that were altered since, each with the last such generation."""

    @classmethod
    def of_new_run(cls) -> Self:
        """Return the validity of a new run of a pipe or a comparison: nothing that an earlier run cached is valid.

        Spark's Python workers outlive the runs of a pipe, and between two runs a user may alter or recreate the tables.
        """
        now = time.monotonic_ns()
        return cls(now, now)

    def after_change(self, names: Iterable[TableName] | None) -> Self:
        """Return the validity after these tables were altered; None: any of them."""
        now = self.generation + 1
        altered = {} if names is None else {**dict(self.altered), **dict.fromkeys(names, now)}
        if names is None or len(altered) > _MOST_ALTERED:
            return replace(self, generation=now, all_altered=now, altered=())
        return replace(self, generation=now, altered=tuple(altered.items()))


ALL_VALID: Final = CacheValidity()


@dataclass(frozen=True, slots=True)
class TargetScope:
    """Server and options of a sink, and which cached tables are valid. Picklable."""

    target: ClickHouseTarget
    options: ClickHouseOptions
    validity: CacheValidity = ALL_VALID


@dataclass(frozen=True, slots=True)
class _CachedTable:
    generation: int
    """The generation in which it was read."""
    table: TargetTable


@dataclass(slots=True)
class _Cache:
    """The target tables of one server by one set of options. Thread-safe."""

    tables: dict[TableName, dict[TableSchema, _CachedTable]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, scope: TargetScope, schemas: Iterable[TableSchema]) -> dict[TableSchema, TargetTable]:
        """Return the valid tables of these schemas."""
        validity, found = scope.validity, {}
        altered = dict(validity.altered)
        with self.lock:
            for schema in schemas:
                cached = self.tables.get(schema.name, {}).get(schema)
                if cached is not None and cached.generation >= altered.get(schema.name, validity.all_altered):
                    found[schema] = cached.table
        return found

    def store(self, scope: TargetScope, tables: Mapping[TableSchema, TargetTable]) -> None:
        with self.lock:
            for schema, table in tables.items():
                known = self.tables.setdefault(schema.name, {})
                known.pop(schema, None)
                known[schema] = _CachedTable(scope.validity.generation, table)
                if len(known) > _MOST_SCHEMAS:
                    del known[next(iter(known))]


_caches: dict[tuple[int, ClickHouseTarget, ClickHouseOptions], _Cache] = {}
_lock = threading.Lock()


def _cache_of(scope: TargetScope) -> _Cache:
    # A forked worker must not use its parent's cache, which may be stale.
    with _lock:
        return _caches.setdefault((os.getpid(), scope.target, scope.options), _Cache())


def resolve_tables(scope: TargetScope, schemas: Iterable[TableSchema]) -> Mapping[TableName, TargetTable]:
    """Return the target tables of schemas, cached where possible; raise `DefiniteError` for a table that cannot be used."""
    wanted, cache = tuple(schemas), _cache_of(scope)
    found = cache.find(scope, wanted)
    missing = [schema for schema in wanted if schema not in found]
    if missing:
        read = dict(zip(missing, read_target_tables(scope, missing), strict=True))
        cache.store(scope, read)
        found |= read
    return {schema.name: found[schema] for schema in wanted}


def resolve_table(scope: TargetScope, schema: TableSchema, prefetch: Iterable[TableSchema] = ()) -> TargetTable:
    """Return the target table of one schema. If it is not cached, one query also reads the tables of `prefetch`.

    A schema in `prefetch` may be stale because its table was altered since; that does not fail this table.
    """
    known = _cache_of(scope).find(scope, (schema,))
    if known:
        return known[schema]
    try:
        return resolve_tables(scope, dict.fromkeys((*prefetch, schema)))[schema.name]
    except DefiniteError:
        return resolve_tables(scope, (schema,))[schema.name]


def refresh_tables(scope: TargetScope, schemas: Iterable[TableSchema]) -> list[TargetTable]:
    """Read the target tables of schemas from the server, and cache them."""
    wanted = tuple(schemas)
    tables = read_target_tables(scope, wanted)
    _cache_of(scope).store(scope, dict(zip(wanted, tables, strict=True)))
    return tables


def read_target_tables(scope: TargetScope, schemas: Iterable[TableSchema]) -> list[TargetTable]:
    """Return the target tables of schemas as the server has them now."""
    planned = [plan_table(schema, scope.target, scope.options) for schema in schemas]
    found, local_tables = find_with_local_tables(scope.target, (plan.place for plan in planned))
    return [
        plan_existing_table(plan, found[plan.place], scope.options.of(plan.source), local_tables.get(plan.place))
        if plan.place in found
        else plan
        for plan in planned
    ]
