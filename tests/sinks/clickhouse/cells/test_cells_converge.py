"""The convergence property: a random history, shuffled, repeated and cut at random, gives the same rows in ClickHouse and Cassandra.

Cassandra is the reference: it gets the statements and applies its own rules. ClickHouse gets the log that ScyllaDB would write (`Capture`),
in any order, some batches twice, in blocks cut at random. Then the view is compared with SELECT, value by value, in the order of sets and
lists too.

Twenty histories share a table, each with its own partitions, so that 500 histories need only 25 tables.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import pytest

from headrace.cql.language.ddl import sorted_table
from headrace.cql.language.ddl_printer import create_table, create_type, types_used
from headrace.cql.log import STREAM, TIME
from headrace.cql.session import CqlSession
from headrace.cql.tables import ColumnRole, CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.capture.log_rows import LogRow
from headrace.sources.scylla.capture.statement_capture import log_block
from testkit.generators.cql_blocks import write
from testkit.generators.cql_histories import Statement, random_log, random_table
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.embedded_access import target_of

pytestmark = pytest.mark.scaled

HISTORIES: Final = 20
TABLES: Final = range(int(os.environ.get("HEADRACE_CELL_TABLES", "25")))
TABLES_AT_ONCE: Final = 5
STATEMENTS: Final = 12
History = list[tuple[Statement, list[LogRow]]]


@pytest.fixture(scope="module")
def sink(clickhouse: EmbeddedServer) -> Iterator[CellSink]:
    target = target_of(clickhouse, database=f"d_{secrets.token_hex(6)}")
    yield CellSink(ClickHouseSink(target))
    disconnect(target)


@pytest.mark.slow("0", "5", "10", because="test_any_delivery_of_random_histories_ends_as_cassandra_has_it[15] has other seeds")
@pytest.mark.parametrize("first", TABLES[::TABLES_AT_ONCE])
def test_any_delivery_of_random_histories_ends_as_cassandra_has_it(sink: CellSink, cql: CqlSession, keyspace: str, first: int) -> None:
    seeds = TABLES[first : first + TABLES_AT_ONCE]
    tables = [_table(seed, keyspace) for seed in seeds]
    histories = [_histories(seed, table) for seed, table in zip(seeds, tables, strict=True)]
    for table in tables:
        for kind in types_used([table]):
            cql.execute(create_type(kind, if_not_exists=True))
        cql.execute(create_table(table))
    _run(cql, [history for of_table in histories for history in of_table])
    sink.prepare(tables)
    for seed, table, of_table in zip(seeds, tables, histories, strict=True):
        _deliver(sink, table, [row for history in of_table for _, rows in history for row in rows], Random(seed))
    different = [text for table, of_table in zip(tables, histories, strict=True) for text in _differences(sink, cql, table, of_table)]
    assert not different, "\n\n".join(different[:3]) + f"\n\nand {max(len(different) - 3, 0)} more"


def _table(seed: int, keyspace: str) -> CqlTable:
    """A random table whose partitions also have the number of their history."""
    made = random_table(Random(seed), TableName(keyspace, f"t{seed}"))
    return sorted_table(made.name, [CqlColumn("h", CqlType("int"), ColumnRole.PARTITION), *made.columns])


def _histories(seed: int, table: CqlTable) -> list[History]:
    return [random_log(Random(seed * 1000 + one), table, STATEMENTS, keys={"h": [str(one)]}) for one in range(HISTORIES)]


def _run(cql: CqlSession, histories: Sequence[History]) -> None:
    """Run each history's statements in order, the histories in parallel."""
    for statements in zip(*histories, strict=True):
        for future in [cql.driver.execute_async(statement.text) for statement, _ in statements]:
            future.result()


def _deliver(sink: CellSink, table: CqlTable, log: Sequence[LogRow], random: Random) -> None:
    """Batches of the log in any order, some twice, in blocks cut at random."""
    batches = [list(rows) for _, rows in itertools.groupby(log, key=lambda row: (row.values[STREAM], row.values[TIME]))]
    batches += random.choices(batches, k=len(batches) // 3)
    random.shuffle(batches)
    cuts = sorted({0, len(batches), *random.choices(range(len(batches)), k=3)})
    pieces = [[row for batch in batches[start:end] for row in batch] for start, end in itertools.pairwise(cuts)]
    write(sink, *(log_block(table, rows, int(time.time())) for rows in pieces))


def _differences(sink: CellSink, cql: CqlSession, table: CqlTable, histories: Sequence[History]) -> Iterator[str]:
    there, here = selected(cql, table), shown(sink, table)
    for number, history in enumerate(histories):
        one, other = ([row for row in rows if row["h"] == number] for rows in (there, here))
        if one != other:
            lines = [f"history {number}", create_table(table), *(statement.text + ";" for statement, _ in history)]
            lines += [f"Cassandra: {row}" for row in one if row not in other] + [f"ClickHouse: {row}" for row in other if row not in one]
            yield "\n".join(lines)
