"""One bad event is skipped and recorded: rows that cannot be decoded, rows that the sink refuses, statements, damaged logs, records.

Pipes without Spark, real servers and the real ClickHouse engine, queried by clickhouse-connect.
"""

from __future__ import annotations

import json
import secrets
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.pipes.state.event_skips import RECORD, halted_at, request_skip, skipped_events
from headrace.sinks.stdout.output import STDOUT
from testkit.faults.damage import assemble, event_starts, split_events
from testkit.oracles.binlogs import Logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.pipelines.pipeline import Run
from testkit.recordings.debezium_recordings import load_records, load_truth
from testkit.servers.broker import PrivateBroker

ROW_EVENTS = (23, 24, 25, 30, 31, 32)


class Runs:
    """One pipe, run again and again by the command."""

    def __init__(self, source: str, sink: str, state: Path, *more: str) -> None:
        self.state = state
        self._command = ["replicate", source, sink, "--state", str(state), "--once", *more]

    def well(self) -> None:
        assert cli.main(self._command) == 0

    def halts(self, capsys: pytest.CaptureFixture[str], saying: str) -> str:
        """Run until the error; return the event that it names."""
        capsys.readouterr()
        assert cli.main(self._command) == 2
        said = capsys.readouterr().err
        assert saying in said
        halted = halted_at(self.state)
        assert halted is not None, said
        return str(halted["event"])

    def record(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / RECORD).read_text().splitlines()]


def test_events_rows_and_statements(
    book: Logbook, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_spark(monkeypatch)
    client = sink_client(f"http://127.0.0.1:{clickhouse.port}")
    book.run("CREATE TABLE t (id INT PRIMARY KEY, day DATE, v VARCHAR(20))", "INSERT INTO t VALUES (1, '2024-01-01', 'there')")
    target = url_of(clickhouse)
    runs = Runs(book.server.url(book.database), target, tmp_path / "state", "--schema-changes", "add_column=halt")
    runs.well()

    def shown() -> list[int]:
        return [row[0] for row in client.query(f"SELECT id FROM {book.database}.t FINAL ORDER BY id").result_rows]

    with pytest.raises(DefiniteError, match="no event to skip"):
        request_skip(runs.state)

    # An invalid date between valid changes of the same transaction.
    book.run("SET SESSION sql_mode = ''", "BEGIN", "INSERT INTO t VALUES (2, '2024-01-02', 'good')")
    book.run("INSERT INTO t VALUES (3, '0000-00-00', 'poison'), (4, '2024-01-04', 'of the same event')")
    book.run("INSERT INTO t VALUES (5, '2024-01-05', 'good')", "COMMIT")
    event = runs.halts(capsys, "a date that does not exist")
    assert event == runs.halts(capsys, "a date that does not exist")
    assert shown() == [1]
    with pytest.raises(DefiniteError, match=r"does not halt at binlog\.000001:4") as refused:
        request_skip(runs.state, "binlog.000001:4")
    assert event in str(refused.value)
    assert cli.main(["skip", "--state", str(runs.state), "--yes"]) == 0
    runs.well()
    assert shown() == [1, 2, 5]
    [asked, skipped] = runs.record()
    assert (asked["what"], asked["place"], skipped["what"], skipped["table"]) == ("asked", event, "skipped", f"{book.database}.t")
    assert asked["who"]
    assert "a date that does not exist" in asked["error"]
    assert stat.S_IMODE((runs.state / RECORD).stat().st_mode) == 0o600
    assert skipped_events(runs.state) == 1

    # A row that the sink refuses, among others of its event: only the row is skipped.
    client.command(f"ALTER TABLE {book.database}.t ADD CONSTRAINT small CHECK id < 100")
    book.run("INSERT INTO t VALUES (6, '2024-01-06', 'good'), (600, '2024-01-06', 'too large'), (7, '2024-01-07', 'good')")
    row = runs.halts(capsys, "refused")
    assert row.startswith("row ")
    request_skip(runs.state, row, "a test")
    runs.well()
    assert shown() == [1, 2, 5, 6, 7]

    # A statement that the policy does not apply.
    book.run("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (8, NULL, 'after', 9)")
    statement = runs.halts(capsys, "add_column")
    assert statement.startswith("statement ")
    request_skip(runs.state, statement)
    runs.well()
    assert shown() == [1, 2, 5, 6, 7, 8]
    assert "more" not in client.query(f"SELECT * FROM {book.database}.t LIMIT 0").column_names
    found = client.query("SELECT position, table FROM headrace.errors FINAL WHERE state = 'skipped' AND pipe = 'state'").result_rows
    assert {event, row, statement} <= {place for place, _ in found}
    assert skipped_events(runs.state) == 3

    # A skip request before the position is removed: its position may be another event later.
    book.run("INSERT INTO t VALUES (9, NULL, 'last', NULL)")
    runs.well()
    assert {line["place"] for line in runs.record() if line["what"] == "passed"} == {event, row, statement}
    with pytest.raises(DefiniteError, match="no event to skip"):
        request_skip(runs.state)


def test_a_damaged_event_of_log_files(
    book: Logbook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A damaged event with a valid checksum is skipped; the events around it are read."""
    without_spark(monkeypatch)
    book.run("FLUSH BINARY LOGS")
    name = book.place().file
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    for number in range(5):
        book.run(f"INSERT INTO t VALUES ({number}, 'value {number}')")
    book.run("FLUSH BINARY LOGS")
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(book.server.binlog_dir / name, files)
    log = (files / name).read_bytes()
    events = split_events(log, checksum=True)
    place = [at for at, event in enumerate(events) if event[4] in ROW_EVENTS][2]
    # The length of the text exceeds the event.
    wounded = bytearray(events[place])
    wounded[-len("value 2") - 1] = 19
    (files / name).write_bytes(assemble([*events[:place], bytes(wounded), *events[place + 1 :]], checksum=True))
    offset = list(event_starts(log))[place]
    state = tmp_path / "state"
    command = ["replicate", f"binlog:{files}", "stdout:", "--state", str(state), "--once", "--tables", f"{book.database}.*"]
    assert cli.main(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert f"{name}:{offset}" in err
    assert cli.main(["skip", "--state", str(state), "--place", f"{name}:{offset}", "--yes"]) == 0
    capfd.readouterr()
    assert cli.main(command) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["after"]["id"] for line in out.splitlines() if json.loads(line)["op"] == "insert"] == [0, 1, 3, 4]
    assert f"skipped by request: {name}:{offset}" in err
    assert not STDOUT.left
    assert struct.unpack_from("<I", log, offset + 9)[0] == len(events[place]) + 4


@pytest.mark.slow(because="test_one_record_that_is_none_is_skipped without Spark")
@pytest.mark.timeout(900)
def test_a_record_in_kafka_through_spark(broker: PrivateBroker, clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    """A topic with a bad record among good ones, by the commands."""
    prefix = f"p{secrets.token_hex(4)}"
    late = [one for one in load_records("mysql-schema") if one.topic.endswith(".shop.late")]
    topic = broker.create_topic(f"{prefix}.shop.late")
    broker.produce(topic, [{"key": one.key, "value": one.value} for one in late[:1]])
    broker.produce(topic, [{"key": b"{}", "value": b"no JSON"}])
    broker.produce(topic, [{"key": one.key, "value": one.value} for one in late[1:]])
    sink, state = f"clickhouse://default@127.0.0.1:{clickhouse.port}/{prefix}", tmp_path / "state"
    command = ["replicate", broker.url(), sink, "--topics", f"{prefix}.shop.*", "--state", str(state), "--name", prefix, "--once"]
    halted = Run(command, tmp_path / "1.log").wait()
    assert halted.code == 2, halted.output
    assert f"{topic}[0]@1" in halted.output
    assert Run(["skip", "--state", str(state), "--yes"], tmp_path / "2.log").wait().code == 0
    ended = Run(command, tmp_path / "3.log").wait()
    assert ended.code == 0, ended.output
    client = sink_client(f"http://127.0.0.1:{clickhouse.port}")
    assert client.query(f"SELECT count() FROM {prefix}.late FINAL").result_rows[0][0] == len(load_truth("mysql")["late"].rows)
    found = client.query(f"SELECT position, state, row FROM headrace.errors FINAL WHERE pipe = '{prefix}'").result_rows
    assert [row[:2] for row in found] == [(f"{topic}[0]@1", "skipped")]
    assert json.loads(found[0][2])["value"] == "no JSON"


def test_a_place_that_is_not_met_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from headrace.pipes.state.event_skips import EventSkips, note_halt
    from headrace.sources.mysql.segments.skipped_events import is_passed
    from headrace.sources.mysql.server.position import BinlogPosition

    note_halt(tmp_path, DefiniteError("broken", place="there", event="binlog.000003:120"))
    request_skip(tmp_path)
    skips = EventSkips(tmp_path)
    check: Callable[[int], Callable[[str], bool]] = lambda at: lambda place: is_passed(place, BinlogPosition("binlog.000003", at))  # noqa: E731
    skips.drop_passed(check(120))
    assert skips.pending == {"binlog.000003:120"}
    skips.drop_passed(check(121))
    assert skips.pending == frozenset()
    assert "nothing was skipped at binlog.000003:120" in caplog.text
    assert EventSkips(tmp_path).pending == frozenset()
    assert skipped_events(tmp_path) == 0


def test_what_transforms_hide_is_not_shown_in_the_sinks_record(
    book: Logbook, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_spark(monkeypatch)
    client = sink_client(f"http://127.0.0.1:{clickhouse.port}")
    book.run("CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(20))")
    target, masked = url_of(clickhouse), f'transforms."{book.database}.t".mask.email=null'
    runs = Runs(book.server.url(book.database), target, tmp_path / "state", "--name", book.database, "--set", masked)
    runs.well()
    client.command(f"ALTER TABLE {book.database}.t ADD CONSTRAINT small CHECK id < 100")
    book.run("INSERT INTO t VALUES (600, 'ann@x.org')")
    runs.halts(capsys, "refused")
    request_skip(runs.state)
    runs.well()
    assert "ann@x.org" in runs.record()[-1]["content"]
    found = client.query(f"SELECT state, row FROM headrace.errors FINAL WHERE pipe = '{book.database}'").result_rows
    assert found == [("skipped", "")]
