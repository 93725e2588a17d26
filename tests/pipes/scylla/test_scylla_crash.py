"""SIGKILL of a pipe from ScyllaDB's log, with all its processes, during changes: at the end the view equals SELECT.

Changes of all kinds go through the capture layer, which gives Cassandra a log like ScyllaDB's; the generation of streams changes and the
table gets a column in between.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.capture.captured_session import capture
from testkit.generators.cql_changes import COLUMNS, AllKinds
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.cassandra import PrivateCassandra
from testkit.servers.scylla_tables import add_generation, create_tables, make_generation

pytestmark = pytest.mark.scaled

SETTINGS = ("--set", "scylla.confidence=2", "--set", "scylla.window=0.2", "--set", "scylla.streams_per_query=3")
PATIENCE_S = 400.0


@pytest.mark.slow(
    because="test_one_kill[ScyllaToCql] kills a pipe from such a log; test_alterations_generations_and_new_tables without Spark"
)
@pytest.mark.timeout(900)
def test_killed_at_any_moment(cassandra: PrivateCassandra, cql: CqlSession, keyspace: str, tmp_path: Path) -> None:
    create_tables(cql, keyspace)
    add_generation(cql, keyspace, make_generation(time.time_ns() // 1_000_000, 3, 2))
    cql.execute(f"CREATE TABLE {keyspace}.t ({COLUMNS})")
    settings = (*SETTINGS, "--set", f"scylla.generations={keyspace}", "--set", f"scylla.tablets={keyspace}", "--snapshot", "none")
    sink_dir = tmp_path / "sink"
    pipeline = Pipeline(cassandra.url(keyspace), f"chdb:{sink_dir}", tmp_path / "state", settings, tables=("t",))
    changes = AllKinds(cql, keyspace, 6)
    chooser, landed = random.Random(7), []
    for round_number in range(2):
        with changes.going_on():
            batch = pipeline.last_committed_batch()
            with pipeline.running() as run:
                # After one complete batch, kill at a random moment of the next, between its plan and its checkpoint.
                run.until(lambda batch=batch: pipeline.last_committed_batch() > batch, PATIENCE_S)
                planned = pipeline.last_planned_batch()
                run.until(lambda planned=planned: pipeline.last_planned_batch() > planned, PATIENCE_S, poll_s=0.002)
                time.sleep(chooser.choice((0.0, 0.03, 0.2)))
            landed.append("open" if pipeline.batch_is_open() else "committed")
        if round_number == 0:
            add_generation(cql, keyspace, make_generation(time.time_ns() // 1_000_000, 2, 3))
            capture(cql, [f"{keyspace}.t"], keyspace).execute(f"ALTER TABLE {keyspace}.t ADD w text")
            changes.columns.append("w")
    done = pipeline.once(timeout_s=PATIENCE_S)
    assert done.code == 0, done.output
    assert "open" in landed
    table = describe(cql, TableName(keyspace, "t"))
    there = selected(cql, table)
    with pipeline.sink_served(sink_dir) as url:
        here = shown(CellSink.from_url(url.replace("http://", "clickhouse://")), table)
    different = [row for row in here if row not in there] + [row for row in there if row not in here]
    assert not different, different[:4]
    assert len(there) > 10
    assert changes.done > 50
    print(f"{changes.done} statements, {len(there)} rows, kills landed: {landed}")
