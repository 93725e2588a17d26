"""A server's log compared with the capture layer's, statement by statement.

On ScyllaDB (`make test-scylla`) this verifies the capture layer: the log is the server's. On Cassandra the log is the capture layer's, and
the test shows that a server and Headrace's reader do not change it.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.cql.options import CdcOptions
from headrace.cql.session import CqlSession
from headrace.embedded.process import EmbeddedServer
from headrace.model.table_selection import Selection
from headrace.pipes.scylla.tail import Tail
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.kafka.scylla.log_documents import log_documents
from headrace.sources.scylla.capture.statement_capture import Capture, log_block
from testkit.generators.cql_histories import random_history
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.logged_cluster import LoggedCluster

DEFINITIONS = """
    CREATE TYPE ks.ut (a int, b text, c int);
    CREATE TABLE ks.t (
        pk int, ck int, v int, w text, f frozen<map<int, text>>, m map<int, text>, s set<text>, l list<int>, u ut, st int static,
        PRIMARY KEY (pk, ck)
    )
"""
ROW = "WHERE pk = 0 AND ck = 0"
STATEMENTS = (
    f"UPDATE ks.t USING TIMESTAMP ? SET v = 0 {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET v = null {ROW}",
    "INSERT INTO ks.t (pk, ck, v, w, f) VALUES (0, 1, 1, 'x', {1: 'a'}) USING TIMESTAMP ?",
    "INSERT INTO ks.t (pk, ck, v, w) VALUES (0, 2, null, '') USING TIMESTAMP ?",
    f"UPDATE ks.t USING TIMESTAMP ? SET m = m + {{1: 'v1', 2: 'v2'}} {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET m = m - {{1, 2, 3}} {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET m = null, s = {{}} {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET m = {{1: 'v1'}}, s = {{'a', 'b'}} {ROW}",
    "INSERT INTO ks.t (pk, ck, m) VALUES (0, 0, {5: 'v5'}) USING TIMESTAMP ?",
    "INSERT INTO ks.t (pk, ck, m, v) VALUES (0, 3, {5: 'v5'}, 4) USING TIMESTAMP ? AND TTL 600",
    f"UPDATE ks.t USING TIMESTAMP ? SET m[3] = 'x', m[1] = null, s = s - {{'a'}}, s = s + {{'z'}} {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET l = [1, 2] {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET l = l + [3] {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET u.a = 42, u.c = null {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET u = {{a: 1, b: 'x'}} {ROW}",
    f"UPDATE ks.t USING TIMESTAMP ? SET u = null {ROW}",
    f"DELETE m, v FROM ks.t USING TIMESTAMP ? {ROW}",
    f"DELETE m[3] FROM ks.t USING TIMESTAMP ? {ROW}",
    "UPDATE ks.t USING TIMESTAMP ? SET st = 7 WHERE pk = 0",
    "UPDATE ks.t USING TIMESTAMP ? SET st = 8, v = 8 WHERE pk = 0 AND ck = 5",
    "DELETE FROM ks.t USING TIMESTAMP ? WHERE pk = 0 AND ck = 1",
    "DELETE FROM ks.t USING TIMESTAMP ? WHERE pk = 0 AND ck > 1 AND ck <= 3",
    "DELETE FROM ks.t USING TIMESTAMP ? WHERE pk = 0 AND ck < 5",
    "DELETE FROM ks.t USING TIMESTAMP ? WHERE pk = 0",
)


def _plain(text: str) -> dict[str, Any]:
    """A document without the parts that differ between clusters: the stream, the random half of times, the keys of lists."""
    found: dict[str, Any] = json.loads(text)
    for name in ("table", "time", "stream"):
        del found[name]
    for word, added in found.get("elements", {}).get("l", {}).items():
        if word == "added":
            found["elements"]["l"][word] = list(added.values())
        elif word == "removed":
            found["elements"]["l"][word] = len(added)
    return found


@pytest.mark.parametrize(
    "options", [CdcOptions(enabled=True), CdcOptions(enabled=True, preimage="full", postimage=True)], ids=["deltas", "images"]
)
def test_the_log_is_what_the_capture_layer_says(
    cql: CqlSession, keyspace: str, cassandra: PrivateCassandra | GivenCluster, options: CdcOptions
) -> None:
    cluster = LoggedCluster(cql, keyspace, DEFINITIONS.replace("ks.", f"{keyspace}."), options)
    begin = time.time_ns() // 1000 - 3_000_000
    stamped = [text.replace("ks.", f"{keyspace}.").replace("?", str(begin + 1000 * at)) for at, text in enumerate(STATEMENTS)]
    [table] = cluster.tables.values()
    expected = Capture([table], lambda: begin, options, keyspace=keyspace, seed=1)
    wanted = [_plain(text) for one in stamped for text in log_documents(log_block(table, expected.log(one))).value.to_pylist()]
    for statement in stamped:
        cluster.execute(statement)

    looking = Tail(cassandra.address(keyspace), cluster.choices, Selection((f"{keyspace}.t",)), once=True)
    found = [_plain(document.decode()) for document in looking.documents(threading.Event())]
    assert found == wanted


@pytest.mark.slow(because="test_any_delivery_of_random_histories_ends_as_cassandra_has_it, test_the_log_is_what_the_capture_layer_says")
def test_random_histories_are_in_clickhouse_what_they_are_on_the_server(
    cql: CqlSession, keyspace: str, cassandra: PrivateCassandra | GivenCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements, their log, the pipe and the view: the view must equal the server's SELECT."""
    begin = time.time_ns() // 1000 - 2_000_000
    histories = [random_history(seed, 20, keyspace=keyspace, start=begin) for seed in (3, 4, 5)]
    definitions = "".join(f"{text.rstrip(';')};" for text in dict.fromkeys(text for one in histories for text in one.definitions))
    cluster = LoggedCluster(cql, keyspace, definitions)
    for history in histories:
        for statement in history.statements:
            cluster.execute(statement.text)
    without_spark(monkeypatch)
    with EmbeddedServer(tmp_path / "data") as server:
        target = target_of(server)
        sink = f"clickhouse://{target.user}@127.0.0.1:{server.port}/"
        state = ["--state", str(tmp_path / "state"), "--once", "--start-at", "oldest", "--exclude", "cdc_*"]
        assert main(["replicate", cassandra.url(keyspace), sink, *state, *cluster.settings]) == 0
        rows = 0
        for history in histories:
            there = selected(cql, history.table)
            assert shown(CellSink(ClickHouseSink(target)), history.table) == there, str(history)
            rows += len(there)
        assert rows > 5
        disconnect(target)
