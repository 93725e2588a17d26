"""`Merge` tables over the target tables of several sources: `orders` shows `east_orders` and `west_orders`.

ClickHouse's `Merge` engine stores no rows, passes `FINAL` and conditions to the underlying tables, and has `_table` as the origin of a row.
Invariant: only a `Merge` table is ever replaced; a table of another engine with the same name is left alone and reported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.errors import DefiniteError, HeadraceError
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.pipe_runner import PipeRunner
from headrace.service.probes import Probe
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import places_condition, quote_name, quote_text
from headrace.sinks.clickhouse.sink import ClickHouseSink

log = logging.getLogger("headrace")

_EVERY_S: Final = 5.0
_ENGINE: Final = "Merge"
SOURCE: Final = "{source}"


class MergeTableProbe(Probe):
    """Creates the `Merge` tables of one pipe, and recreates them when the underlying columns change."""

    every_s = _EVERY_S

    def __init__(self, prefix: str, runners: Sequence[PipeRunner], embedded_servers: EmbeddedServers) -> None:
        self._prefix, self._runners, self._embedded_servers = prefix, runners, embedded_servers
        self._made: dict[str, object] = {}

    def run(self) -> None:
        wanted = plan_merge_tables(self._prefix, self._runners)
        if not wanted or self._embedded_servers.is_down(self._runners[0].spec.sink):
            return
        with open_clickhouse_sink(self._runners[0].spec.sink, choices=self._runners[0].spec.chosen.sink) as named:
            there = column_digests(named.sink, wanted)
            for name, below in wanted.items():
                # A Merge table takes its columns from the underlying tables only when it is created.
                found = {table: columns for table in below if (columns := there.get((name.partition(".")[0], table)))}
                if found and self._made.get(name) != (below, found):
                    self._make(named.sink, name, below)
                    self._made[name] = below, found

    def close(self) -> None:
        """Create tables that are still missing: pipes may have ended between two runs of the probe."""
        if plan_merge_tables(self._prefix, self._runners).keys() - self._made.keys():
            try:
                self.run()
            except HeadraceError as error:
                log.warning("merged tables are not made: %s", error)

    def _make(self, sink: ClickHouseSink, name: str, below: Sequence[str]) -> None:
        try:
            create_merge_table(sink, name, below)
        except DefiniteError as error:
            log.error("%s", error)
            self._runners[0].add_error(error)


def plan_merge_tables(prefix: str, runners: Sequence[PipeRunner]) -> dict[str, tuple[str, ...]]:
    """Return the `Merge` tables (`database.table`), each with one underlying table per source, whether that table exists or not.

    A source that has not started in this process, or that resyncs a table, may have filled its table before; its rows must stay visible.
    """
    before = {runner.name: prefix.replace(SOURCE, runner.name.rpartition("/")[2]) for runner in runners}
    found: dict[str, tuple[str, ...]] = {}
    for runner in runners:
        for target in filter(None, runner.view.targets().values()):
            database, _, table = target.partition(".")
            name = table.removeprefix(before[runner.name])
            if name and name != table:
                found[f"{database}.{name}"] = tuple(sorted(f"{one}{name}" for one in before.values()))
    return found


def column_digests(sink: ClickHouseSink, merged: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    """Return a digest of the columns of each existing underlying table, by (database, table)."""
    here = places_condition(((name.partition(".")[0], table) for name, below in merged.items() for table in below), "table")
    sql = (
        f"SELECT database, table, toString(sum(cityHash64(name, type, position))) FROM system.columns WHERE {here} GROUP BY database, table"
    )
    return {(database, table): columns for database, table, columns in sink.reader().query(sql)[1]}


def create_merge_table(sink: ClickHouseSink, name: str, below: Sequence[str]) -> None:
    """Create or replace a `Merge` table over the underlying tables."""
    database, _, table = name.partition(".")
    condition = f"database = {quote_text(database)} AND name = {quote_text(table)}"
    there = sink.reader().query(f"SELECT engine FROM system.tables WHERE {condition}")[1]
    if there and there[0][0] != _ENGINE:
        raise DefiniteError(
            f"{name} is a {there[0][0]} table already, and not one that shows several sources together",
            place=f"table {name}",
            hint="rename or drop it, or choose another prefix; the sources' own tables are filled in any case",
        )
    pattern = f"^({'|'.join(map(re.escape, below))})$"
    cluster = f" ON CLUSTER {quote_name(sink.options.cluster)}" if sink.options.cluster else ""
    statement = (
        f"CREATE OR REPLACE TABLE {quote_name(database)}.{quote_name(table)}{cluster} "
        f"ENGINE = {_ENGINE}({quote_text(database)}, {quote_text(pattern)})"
    )
    connection = connect(sink.target)
    with translate_errors(sink.target, f"creating table {name}"):
        connection.client.command(statement)
    log.info("%s shows the rows of %s, as far as they are there", name, ", ".join(below))
