"""Tables that show the rows of several sources together: over each source's own table, one without the prefix that tells them apart.

It is a `Merge` table of ClickHouse's: it holds nothing, `FINAL` and conditions reach the tables under it, and `_table` says where a row is
from. Invariant: only such a table is ever made anew; whatever else has the name is left alone, and that is said.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.errors import DefiniteError, HeadraceError
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.service.embedded_servers import Warehouses
from headrace.service.pipe_runner import Part
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.sink import ClickHouseSink

log = logging.getLogger("headrace")

_EVERY_S: Final = 5.0
_ENGINE: Final = "Merge"
SOURCE: Final = "{source}"


class MergeGauge:
    """Keeps the merged tables of one pipe as its parts' tables are."""

    every_s = _EVERY_S

    def __init__(self, prefix: str, parts: Sequence[Part], warehouses: Warehouses) -> None:
        self._prefix, self._parts, self._warehouses = prefix, parts, warehouses
        self._made: dict[str, object] = {}

    def look(self) -> None:
        wanted = merged_tables(self._prefix, self._parts)
        if not wanted or self._warehouses.is_lost(self._parts[0].spec.sink):
            return
        with open_clickhouse_sink(self._parts[0].spec.sink, choices=self._parts[0].spec.chosen.sink) as named:
            there = columns_of(named.sink, wanted)
            for name, below in wanted.items():
                # What became of the columns of a table below shows above when the table is made anew.
                found = {table: columns for table in below if (columns := there.get((name.partition(".")[0], table)))}
                if found and self._made.get(name) != (below, found):
                    self._make(named.sink, name, below)
                    self._made[name] = below, found

    def close(self) -> None:
        """The tables stay. Those that are not made yet are made now: pipes may have ended between two looks."""
        if merged_tables(self._prefix, self._parts).keys() - self._made.keys():
            try:
                self.look()
            except HeadraceError as error:
                log.warning("merged tables are not made: %s", error)

    def _make(self, sink: ClickHouseSink, name: str, below: Sequence[str]) -> None:
        try:
            make_merged(sink, name, below)
        except DefiniteError as error:
            log.error("%s", error)
            self._parts[0].fail(error)


def merged_tables(prefix: str, parts: Sequence[Part]) -> dict[str, tuple[str, ...]]:
    """The merged tables (`database.table`) that are known now, and those below them: one of each part, whether it is there or not.

    A part that has not begun in this process (it is paused, or its source is away), or that reads a table again, may have filled it
    before: whoever looks at the merged table must not miss those rows.
    """
    before = {part.name: prefix.replace(SOURCE, part.name.rpartition("/")[2]) for part in parts}
    found: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for target in filter(None, part.view.targets().values()):
            database, _, table = target.partition(".")
            name = table.removeprefix(before[part.name])
            if name and name != table:
                found[f"{database}.{name}"] = tuple(sorted(f"{one}{name}" for one in before.values()))
    return found


def columns_of(sink: ClickHouseSink, merged: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    """What tells whether the columns of the tables below merged ones have changed; of those that are there."""
    listed = ", ".join(f"({quote_text(name.partition('.')[0])}, {quote_text(table)})" for name, below in merged.items() for table in below)
    sql = (
        "SELECT database, table, toString(sum(cityHash64(name, type, position))) FROM system.columns "
        f"WHERE (database, table) IN ({listed}) GROUP BY database, table"
    )
    return {(database, table): columns for database, table, columns in sink.reader().query(sql)[1]}


def make_merged(sink: ClickHouseSink, name: str, below: Sequence[str]) -> None:
    """Make a table that shows the rows of those below it, or make it anew."""
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
    cluster = f" ON CLUSTER {quote_name(sink.choices.cluster)}" if sink.choices.cluster else ""
    statement = (
        f"CREATE OR REPLACE TABLE {quote_name(database)}.{quote_name(table)}{cluster} "
        f"ENGINE = {_ENGINE}({quote_text(database)}, {quote_text(pattern)})"
    )
    connection = connect(sink.target)
    with translated(sink.target, f"creating table {name}"):
        connection.client.command(statement)
    log.info("%s shows the rows of %s, as far as they are there", name, ", ".join(below))
