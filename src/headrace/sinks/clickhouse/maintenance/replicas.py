"""Checks that all hosts of a target share the same tables.

Invariant: with several hosts, every target table is one table on all of them (Replicated, Shared, or Distributed over such tables). Writing
to any host, and repeating a write on another, then reaches the same table; separate tables would scatter the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import DefiniteError, TransientError
from headrace.sinks.clickhouse.server.client import Connection, connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.system_tables import ExistingTable
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.clickhouse.tables.target_table import TargetTable

Place = tuple[str, str]
_SHARING_DATABASES = ("Replicated", "Shared")


def check_replicas(
    connection: Connection, scope: TargetScope, target_tables: Sequence[TargetTable], found: Mapping[Place, ExistingTable]
) -> None:
    """Raise `DefiniteError` if several hosts have separate tables; does nothing for one host."""
    target = scope.target
    if not target.others:
        return
    missing = [target_table for target_table in target_tables if (target_table.database, target_table.table) not in found]
    sharing = _sharing_databases(connection, target) if missing and not scope.options.cluster else frozenset()
    engines = {place: table.engine for place, table in found.items()}
    if not scope.options.cluster:
        # A Replicated or Shared database replicates all of its tables.
        new = [(target_table.database, target_table.table) for target_table in missing if target_table.database not in sharing]
        engines |= dict.fromkeys(new, "a plain table to be made")
    check_shared(target, engines)
    check_same(target, _paths_by_host(target, [place for place, engine in engines.items() if engine.startswith("Replicated")]))


def sync_replica(scope: TargetScope, target_table: TargetTable) -> None:
    """Wait until the current host has all rows that were written to others, before a statement that reads rows to write others."""
    if not scope.target.others:
        return
    database, table = target_table.local_table or (target_table.database, target_table.table)
    connection = connect(scope.target)
    with translate_errors(scope.target, f"waiting for the replica of {database}.{table}"):
        here = f"database = {quote_text(database)} AND table = {quote_text(table)}"
        if connection.client.query(f"SELECT 1 FROM system.replicas WHERE {here}").result_rows:
            connection.client.command(f"SYSTEM SYNC REPLICA {quote_name(database)}.{quote_name(table)}")


def check_shared(target: ClickHouseTarget, engines: Mapping[Place, str]) -> None:
    """Raise `DefiniteError` for a table that each host has separately."""
    for (database, table), engine in engines.items():
        if not engine.startswith(("Replicated", "Shared", "Distributed")):
            raise DefiniteError(
                f"{database}.{table} is {engine.partition('(')[0].partition(' ORDER')[0]}, "
                f"which each of the {len(target.hosts)} hosts would have for itself",
                place=str(target),
                hint="several hosts are for one cluster: choose the cluster (its tables are then made Replicated), make the table "
                "Replicated, Shared or Distributed, or name one host",
            )


def check_same(target: ClickHouseTarget, paths: Iterable[tuple[str, Mapping[Place, str]]]) -> None:
    """Raise `DefiniteError` for hosts of different shards; `paths` gives each table's Keeper path, host by host."""
    first: dict[Place, tuple[str, str]] = {}
    for host, places in paths:
        for (database, table), path in places.items():
            elsewhere, expected = first.setdefault((database, table), (host, path))
            if path != expected:
                raise DefiniteError(
                    f"{database}.{table} is not the same table on {elsewhere} ({expected}) and on {host} ({path or 'not there'})",
                    place=str(target),
                    hint="hosts of different shards need a Distributed table over their tables; or name the replicas of one shard only",
                )


def _paths_by_host(target: ClickHouseTarget, places: Sequence[Place]) -> Iterable[tuple[str, Mapping[Place, str]]]:
    if not places:
        return
    listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for database, table in places)
    for index in range(len(target.hosts)):
        host = target.at(index)
        try:
            connection = connect(host)
            with translate_errors(host, "looking at replicas"):
                rows = connection.client.query(
                    f"SELECT database, table, zookeeper_path FROM system.replicas WHERE (database, table) IN ({listed})"
                ).result_rows
        except TransientError:
            # An unavailable host is checked the next time.
            continue
        there = {(database, table): path for database, table, path in rows}
        yield f"{host.host}:{host.port}", {place: there.get(place, "") for place in places}


def _sharing_databases(connection: Connection, target: ClickHouseTarget) -> frozenset[str]:
    with translate_errors(target, "looking at databases"):
        rows = connection.client.query("SELECT name, engine FROM system.databases").result_rows
    return frozenset(name for name, engine in rows if engine in _SHARING_DATABASES)
