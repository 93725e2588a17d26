"""A pipe that Headrace 0.9 began: today's code resumes its recorded state (`tests/golden/state-0.9`, see the README there)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.scylla.pipe import ScyllaPipe
from headrace.pipes.scylla.sink_factory import LogTarget
from headrace.runtime.checkpoint import committed_offset
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.position import LogPosition
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from testkit.oracles.cell_views import selected, shown
from testkit.pipelines.local_pipeline import without_spark

RECORDED = Path(__file__).parents[2] / "golden" / "state-0.9"
ADDRESS = "scylla://127.0.0.1:20141/"
"""The source's address at the time of the recording."""
TABLES = [TableName("recorded", "l"), TableName("recorded", "t")]
COUNTED, UNREAD, REREAD = 5, 8, 1
"""Log rows that Headrace 0.9 counted, and those that it had not read. One deletes a list element of the snapshot: its row is reread."""


@pytest.fixture
def server(cql: CqlSession) -> Iterator[CqlSession]:
    """The recorded cluster: tables with their ids, rows, logs and streams. The log rows have no TTL."""
    for statement in (RECORDED / "scylla-source.cql").read_text().splitlines():
        cql.execute(statement)
    yield cql
    cql.execute("DROP KEYSPACE recorded")


@pytest.fixture
def sink(server: CqlSession, target: ClickHouseTarget) -> CellSink:
    """The recorded target, with the address of the source replaced."""
    client = connect(target).client
    for statement in (RECORDED / "scylla-target.sql").read_text().splitlines():
        client.command(statement.replace(ADDRESS, str(server.address)))
    return CellSink(ClickHouseSink(target))


@pytest.fixture
def state(server: CqlSession, tmp_path: Path) -> Path:
    """The recorded state directory, with the address of the source replaced."""
    found = tmp_path / "state"
    shutil.copytree(RECORDED / "scylla", found)
    file = found / "pipe.json"
    assert ADDRESS in file.read_text()
    file.write_text(file.read_text().replace(ADDRESS, str(server.address)))
    return found


def test_resuming_with_a_state_of_version_0_9(server: CqlSession, sink: CellSink, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)
    client = connect(sink.sink.target).client

    def run() -> None:
        settings = PipeSettings(Selection(("recorded.*",), ("recorded.cdc_*",)), state, once=True, patience=30)
        options = ScyllaOptions(confidence=0.5, window=0.2, streams_per_query=2, generations="recorded", tablets="recorded")
        ScyllaPipe(server.address, options, LogTarget(sink, "clickhouse://there/", sink.sink.progress_store()), settings, LogView()).run()

    def counted() -> int:
        return int(client.query("SELECT total_rows FROM headrace.positions FINAL WHERE pipe = 'state'").result_rows[0][0])

    assert counted() == COUNTED
    before = LogPosition.from_json(committed_offset(state / "checkpoint") or {})
    run()
    after = LogPosition.from_json(committed_offset(state / "checkpoint") or {})
    assert [after.places[name].time > before.places[name].time for name in TABLES] == [True, True]
    # The log is read from the stored position on: no row is read twice or missed, and no table is copied again.
    assert counted() == COUNTED + UNREAD + REREAD
    assert (state / "copies.jsonl").read_text().count('"begun"') == len(TABLES)
    assert {name.table: len(selected(server, describe(server, name))) for name in TABLES} == {"l": 3, "t": 9}
    for name in TABLES:
        table = describe(server, name)
        assert shown(sink, table) == selected(server, table), name
    assert '"stamp"' in (state / "scylla.json").read_text()
    run()
    assert counted() == COUNTED + UNREAD + REREAD
    # From now on a file without a stamp is not accepted.
    shutil.copy(RECORDED / "scylla" / "pipe.json", state)
    with pytest.raises(DefiniteError, match=r"another version|no checksum"):
        run()
