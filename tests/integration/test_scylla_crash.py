"""Kill -9 of a pipe from ScyllaDB's log, with all its processes, while changes go on: in the end the view shows what SELECT gives.

Changes of all kinds are written through the capture layer, which gives Cassandra a log like ScyllaDB's; meanwhile the streams become others
and the table gets a column.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from headrace.cql.describing import describe
from headrace.cql.session import CqlSession
from headrace.model.schema import TableName
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.capture.wrapping import capture
from testkit.cassandra import PrivateCassandra
from testkit.cell_views import selected, shown
from testkit.cql_changes import Changes
from testkit.pipeline import Pipeline
from testkit.scylla_tables import add_generation, create_tables, make_generation

COLUMNS = "p int, c int, s text static, v text, n int, m map<int, text>, e set<text>, l list<int>, PRIMARY KEY (p, c)"
SETTINGS = ("--set", "scylla.confidence=2", "--set", "scylla.window=0.2", "--set", "scylla.streams_per_query=3")
PATIENCE_S = 400.0


class AllKinds(Changes):
    """Statements without end, one after the other, of all kinds."""

    def __init__(self, session: CqlSession, keyspace: str, seed: int) -> None:
        super().__init__(session, keyspace, pause_s=0.01)
        self._draw = random.Random(seed)
        self.columns = ["v"]

    def statement(self) -> str:
        draw, t = self._draw, f"{self._keyspace}.t"
        p, c, x = draw.randrange(12), draw.randrange(6), draw.randrange(1000)
        row, ttl = f"p = {p} AND c = {c}", draw.choice(("", "", " USING TTL 100000"))
        return draw.choice(
            (
                f"INSERT INTO {t} (p, c, v, m, e) VALUES ({p}, {c}, 'v{x}', {{{x}: 'a', 2: 'b'}}, {{'x', 'y{x}'}}){ttl}",
                f"UPDATE {t}{ttl} SET v = 'u{x}', n = {x} WHERE {row}",
                f"UPDATE {t}{ttl} SET {draw.choice(self.columns)} = 'w{x}' WHERE {row}",
                f"UPDATE {t} SET m[{x % 5}] = 'm{x}', e = e + {{'z{x % 7}'}} WHERE {row}",
                f"UPDATE {t} SET m = m - {{2, {x % 5}}}, e = {{'only{x}'}} WHERE {row}",
                f"UPDATE {t} SET l = l + [{x}, {x + 1}] WHERE {row}",
                f"UPDATE {t} SET l = [{x}] WHERE {row}",
                f"UPDATE {t} SET s = 's{x}' WHERE p = {p}",
                f"DELETE v, m FROM {t} WHERE {row}",
                f"DELETE FROM {t} WHERE {row}",
                f"DELETE FROM {t} WHERE p = {p} AND c >= {c} AND c < {c + 2}",
                f"BEGIN BATCH INSERT INTO {t} (p, c, n) VALUES ({p}, {c}, {x}); UPDATE {t} SET v = 'b' WHERE p = {p} AND c = 1 APPLY BATCH",
                f"DELETE FROM {t} WHERE p = {p}" if x < 100 else f"UPDATE {t} SET n = {x} WHERE {row}",
            )
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
                # At least one batch is done, then another begins: it is cut off somewhere, from its plan to its checkpoint.
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
