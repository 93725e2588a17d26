"""Reading log tables of a real server: every row once, in complete batches, over generations of vnodes and tablets; and errors.

The tests write log rows themselves, to choose streams, times and cuts.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from headrace import cli
from headrace.cql import timeuuid
from headrace.cql.blocks import LogBlock
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.language.ddl_printer import create_log_table, create_table
from headrace.cql.log import END, SEQUENCE, STREAM, TIME
from headrace.cql.options import CdcOptions
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.scylla import window_reader
from headrace.sources.scylla.generations import LogStart, ServerCatalog, oldest
from headrace.sources.scylla.log_tables import check_tables_readable, log_name, select_tables
from headrace.sources.scylla.position import LogPosition
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import WindowPlanner, WindowRead, WindowSplit, write_feedback
from headrace.sources.scylla.window_reader import LogReader, TableLog
from testkit.servers.scylla_tables import (
    Generation,
    add_generation,
    add_tablet_generation,
    create_tables,
    forget_generation,
    make_generation,
)

S = 1_000_000
Id = tuple[bytes, UUID, int]


@dataclass
class Logged:
    """A base table with a log on a server without CDC."""

    session: CqlSession
    keyspace: str
    pace: Path
    written: dict[Id, str] = field(default_factory=dict)
    table: CqlTable = field(init=False)

    def __post_init__(self) -> None:
        definition = f"CREATE TABLE {self.keyspace}.t (pk int, ck int, v text, PRIMARY KEY (pk, ck))"
        self.table = CqlCatalog().apply_all(definition).named(f"{self.keyspace}.t")
        for statement in (create_table(self.table), create_log_table(self.table, CdcOptions(ttl=0), cassandra=True)):
            self.session.execute(statement.rstrip(";"))
        create_tables(self.session, self.keyspace)

    @property
    def choices(self) -> ScyllaOptions:
        return ScyllaOptions(
            confidence=1,
            window=0.5,
            batch_rows=50,
            streams_per_query=2,
            concurrency=3,
            page_rows=7,
            generations=self.keyspace,
            tablets=self.keyspace,
        )

    @property
    def name(self) -> TableName:
        return self.table.name

    def write(
        self, stream: bytes, micros: int, rows: int, *, ends: bool = True, first: int = 0, time: UUID | None = None, **more: int
    ) -> UUID:
        """Rows of one batch."""
        found = time or timeuuid.make(micros, random.getrandbits(62) | 1 << 63)
        for number in range(first, first + rows):
            text = f"{micros}/{number}"
            values = {
                STREAM: stream,
                TIME: found,
                SEQUENCE: number,
                "cdc$operation": more.get("operation", 1),
                "pk": number,
                "ck": 2,
                "v": text,
                END: True if ends and number == first + rows - 1 else None,
            }
            columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join(["%s"] * len(values))
            ttl = f" USING TTL {more['ttl']}" if "ttl" in more else ""
            target = f"{self.keyspace}.{log_name(self.name).table}"
            self.session.execute(f"INSERT INTO {target} ({columns}) VALUES ({marks}){ttl}", list(values.values()))
            self.written[stream, found, number] = text
        return found

    def fill(self, generations: list[Generation], seed: int, begin: int, end: int, batches: int) -> None:
        """Batches at random times, each in a stream of the generation of that time."""
        draw = random.Random(seed)
        for _ in range(batches):
            micros = draw.randrange(begin, end)
            operating = [one for one in generations if one.time * 1000 <= micros][-1]
            self.write(draw.choice(operating.streams), micros, draw.choice((1, 1, 2, 9)))

    def planner(self, choices: ScyllaOptions | None = None) -> WindowPlanner:
        catalog = ServerCatalog(self.session, choices or self.choices)
        start = LogStart(oldest(catalog.generations(self.name)), 0, 0)
        return WindowPlanner(catalog, {self.name: start}, choices or self.choices, 2, self.pace)

    def blocks(self, split: WindowSplit, ttl: int = 0, choices: ScyllaOptions | None = None) -> Iterator[LogBlock]:
        return self.reader(ttl, choices).read(split)

    def reader(self, ttl: int = 0, choices: ScyllaOptions | None = None) -> LogReader:
        return LogReader(self.session.address, {self.name: TableLog(self.table, ttl)}, choices or self.choices)

    def read_all(self, until: int) -> tuple[list[Id], list[LogPosition]]:
        """Return all rows up to a time, by batch, and the ends of the batches."""
        planner = self.planner()
        reached, found, ends = planner.initial(), [], []
        while LogPosition.from_json(reached).reached < until:
            end = planner.plan(reached)
            if end == reached:
                continue
            before = len(found)
            for split in planner.splits(reached, end):
                for block in self.blocks(split):
                    rows = block.rows.select([STREAM, TIME, SEQUENCE, END]).to_pylist()
                    assert rows[-1][END] == b"\x01", "a block ends with a batch"
                    found += [(row[STREAM], UUID(bytes=row[TIME]), int.from_bytes(row[SEQUENCE], "big")) for row in rows]
            reached = end
            ends.append(LogPosition.from_json(end))
            write_feedback(self.pace, ends[-1], {str(self.name): len(found) - before})
        return found, ends


@pytest.fixture
def logged(cql: CqlSession, keyspace: str, tmp_path: Path) -> Logged:
    return Logged(cql, keyspace, tmp_path / "pace.json")


def assert_all_once(found: list[Id], logged: Logged) -> None:
    assert sorted(found) == sorted(logged.written)
    for stream in {one[0] for one in found}:
        of_stream = [(timeuuid.order_key(at), number) for which, at, number in found if which == stream]
        assert of_stream == sorted(of_stream), "a stream's rows come in the order of its log"


def now_us() -> int:
    return time.time_ns() // 1000


def test_every_row_comes_once_through_generations_of_vnodes(logged: Logged) -> None:
    end = now_us() - 2 * S
    generations = [make_generation((end - age * S) // 1000, 3, streams) for age, streams in ((4000, 3), (2000, 1), (5, 2))]
    for one in generations:
        add_generation(logged.session, logged.keyspace, one)
    logged.fill(generations, 1, end - 4000 * S + 1000, end, 120)
    # The first and the last microsecond of a generation are read in its own streams.
    logged.write(generations[0].streams[0], generations[1].time * 1000 - 1, 2)
    logged.write(generations[1].streams[0], generations[1].time * 1000, 2)
    found, ends = logged.read_all(end)
    assert_all_once(found, logged)
    assert [one.time for one in generations] == list(dict.fromkeys(position.places[logged.name].generation for position in ends))
    assert len(ends) < 40


def test_every_row_comes_once_through_generations_of_tablets(logged: Logged) -> None:
    end = now_us() - 2 * S
    first = make_generation((end - 300 * S) // 1000, 4, 1)
    # One tablet is split: its stream is closed, two are opened, the others continue.
    other = make_generation((end - 100 * S) // 1000, 8, 1)
    second = Generation(other.time, (other.ranges[0], other.ranges[1], *first.ranges[1:]))
    add_tablet_generation(logged.session, logged.keyspace, logged.name, first)
    add_tablet_generation(logged.session, logged.keyspace, logged.name, second, first)
    # The generations of the cluster are not queried.
    add_generation(logged.session, logged.keyspace, make_generation((end - 50 * S) // 1000, 2, 1))
    logged.fill([first, second], 2, end - 300 * S + 1000, end, 60)
    found, ends = logged.read_all(end)
    assert_all_once(found, logged)
    assert {position.places[logged.name].generation for position in ends} == {first.time, second.time}


def only_split(logged: Logged, generation: Generation, after: int, until: int, read_number: int = 0) -> WindowSplit:
    return WindowSplit((WindowRead(logged.name.database, logged.name.table, generation.time, after, until, read_number),), 0, 1)


def test_a_batch_without_its_end_is_waited_for(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = now_us() - 100 * S
    generation = add_generation(logged.session, logged.keyspace, make_generation(begin // 1000, 2, 1))
    stream, other = generation.streams
    logged.write(stream, begin + 5 * S, 3)
    late = logged.write(stream, begin + 6 * S, 2, ends=False)
    logged.write(stream, begin + 7 * S, 1)
    logged.write(other, begin + 6 * S, 4)
    split = only_split(logged, generation, begin, begin + 50 * S)

    def finish() -> None:
        time.sleep(0.7)
        logged.write(stream, begin + 6 * S, 1, first=2, time=late)

    thread = threading.Thread(target=finish)
    thread.start()
    blocks = list(logged.blocks(split))
    thread.join()
    rows = [row for block in blocks for row in block.rows.select([STREAM, TIME, SEQUENCE]).to_pylist()]
    found = [(row[STREAM], UUID(bytes=row[TIME]), int.from_bytes(row[SEQUENCE], "big")) for row in rows]
    assert_all_once(found, logged)

    monkeypatch.setattr(window_reader, "_END_PATIENCE_S", 1.0)
    never = logged.write(other, begin + 8 * S, 2, ends=False)
    with pytest.raises(DefiniteError, match="has no end") as raised:
        list(logged.blocks(split))
    assert raised.value.place == f"log of {logged.name}, stream 0x{other.hex()}, cdc$time {never}"
    skipped = replace(logged.reader(), skips=frozenset({raised.value.event}))
    assert sum(block.changes for block in skipped.read(split)) == len(logged.written) - 2
    logged.session.execute(
        f'UPDATE {logged.keyspace}.t_scylla_cdc_log SET "{END}" = true WHERE "{STREAM}" = %s AND "{TIME}" = %s AND "{SEQUENCE}" = 1',
        (other, never),
    )
    assert sum(block.changes for block in logged.blocks(split)) == len(logged.written)


def test_the_write_time_of_rows_follows_from_their_remaining_ttl(logged: Logged) -> None:
    begin = now_us() - 5000 * S
    generation = add_generation(logged.session, logged.keyspace, make_generation(begin // 1000, 1, 1))
    [stream] = generation.streams
    logged.write(stream, begin + 1 * S, 1, ttl=86400)
    logged.write(stream, begin + 2 * S, 1)
    logged.write(stream, begin + 3 * S, 1, ttl=90000)
    [block] = logged.blocks(only_split(logged, generation, begin, begin + 10 * S), ttl=86400)
    ordinary, unknown, strange = block.written.to_pylist()
    assert abs(ordinary - time.time()) < 5, "written just now, for any timestamp"
    assert (unknown, strange) == (None, None), "unknown without a TTL; a TTL above the log's belongs to another log"
    assert block.newest == begin + 3 * S
    [block] = logged.blocks(only_split(logged, generation, begin, begin + 10 * S))
    assert block.written.to_pylist() == [None] * 3


def test_late_rows_are_found_by_the_second_read(logged: Logged, caplog: pytest.LogCaptureFixture) -> None:
    choices = replace(logged.choices, confidence=100)
    begin = now_us() - 500 * S
    generation = add_generation(logged.session, logged.keyspace, make_generation(begin // 1000, 2, 1))
    stream, other = generation.streams
    # Written now, long after the first read of their times would have been.
    late = [logged.write(stream, begin + second * S, 2, ttl=86400) for second in (10, 20)]
    logged.write(other, now_us() - 50 * S, 1, ttl=86400)
    split = only_split(logged, generation, begin, now_us(), read_number=1)
    [block] = logged.blocks(split, 86400, choices)
    assert [UUID(bytes=raw) for raw in block.rows.column(TIME).to_pylist()] == [at for at in late for _ in range(2)]
    assert caplog.text.count("4 rows arrived later than scylla.confidence allows") == 1


def test_unknown_operations_and_closed_streams(logged: Logged) -> None:
    begin = now_us() - 100 * S
    generation = add_generation(logged.session, logged.keyspace, make_generation(begin // 1000, 1, 1))
    for operation in (*range(10), -3, -4):
        logged.write(generation.streams[0], begin + S, 1, operation=operation)
    split = only_split(logged, generation, begin, begin + 10 * S)
    assert [sorted(block.operations) for block in logged.blocks(split)] == [[-4, -3, *range(10)]]
    logged.write(generation.streams[0], begin + 2 * S, 1, operation=-7)
    with pytest.raises(DefiniteError, match="operation -7, which Headrace does not know") as poison:
        list(logged.blocks(split))
    # Skipped by its position, also when the window is read again.
    for again in (0, 1):
        looked_at = only_split(logged, generation, begin, begin + 10 * S, read_number=again)
        assert sum(block.changes for block in replace(logged.reader(), skips=frozenset({poison.value.event})).read(looked_at)) == 10
    gone = make_generation(generation.time + 1, 1, 1)
    with pytest.raises(DefiniteError, match=r"streams of generation .* no longer exist"):
        list(logged.blocks(only_split(logged, gone, begin, begin + S)))
    forget_generation(logged.session, logged.keyspace, generation)
    with pytest.raises(DefiniteError, match="lists no generation of CDC streams") as raised:
        logged.planner(replace(logged.choices, page_rows=8))
    assert "scylla.generations=KEYSPACE" in raised.value.hint


def test_logs_that_are_not_what_their_tables_demand(logged: Logged, caplog: pytest.LogCaptureFixture) -> None:
    session, keyspace = logged.session, logged.keyspace
    session.execute(f"CREATE TABLE {keyspace}.plain (pk int PRIMARY KEY)")
    chosen = select_tables(session, lambda name: name.database == keyspace and not name.table.startswith("cdc_"))
    assert (chosen.logged, chosen.unlogged) == ((logged.name,), (TableName(keyspace, "plain"),))
    found = check_tables_readable(session, chosen.logged, replace(logged.choices, log_ttl=77))[logged.name]
    assert (found.table, found.ttl) == (logged.table, 77)
    session.execute(f"ALTER TABLE {keyspace}.t_scylla_cdc_log ADD strange int")
    check_tables_readable(session, chosen.logged, logged.choices)
    assert "has a column strange that its table does not have" in caplog.text
    session.execute(f'ALTER TABLE {keyspace}.t_scylla_cdc_log DROP "cdc$deleted_v"')
    with pytest.raises(DefiniteError, match=r"altered: its column cdc\$deleted_v should be boolean \(regular\), and is missing"):
        check_tables_readable(session, chosen.logged, logged.choices)
    session.execute(f"ALTER TABLE {keyspace}.t ADD more set<text>")
    with pytest.raises(DefiniteError, match="was altered"):
        check_tables_readable(session, chosen.logged, logged.choices)
    session.execute(f"DROP TABLE {keyspace}.t_scylla_cdc_log")
    with pytest.raises(DefiniteError, match="there is no table"):
        check_tables_readable(session, [logged.name], logged.choices)


def test_check_of_a_scylla_source(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    session, keyspace = logged.session, logged.keyspace
    session.execute(f"CREATE TABLE {keyspace}.plain (pk int PRIMARY KEY)")
    url = f"scylla://{session.address.servers}/{keyspace}"
    settings = [word for name in ("generations", "tablets") for word in ("--set", f"scylla.{name}={keyspace}")]
    asked = ["check", url, "--exclude", "cdc_*", "--json", *settings]

    def check(*more: str) -> tuple[int, dict[str, tuple[str, str]]]:
        code = cli.main([*asked, *more])
        found = json.loads(capsys.readouterr().out)
        assert found["source"] == url
        return code, {one["name"]: (one["level"], one["value"] + "; " + one["meaning"] + "; " + one["repair"]) for one in found["findings"]}

    code, found = check()
    assert (code, found[f"table {logged.name}"][0]) == (2, "error"), "there is no generation"
    assert "scylla.generations=KEYSPACE" in found[f"table {logged.name}"][1]
    add_generation(session, keyspace, make_generation(now_us() // 1000 - 1000, 3, 2))
    code, found = check("--set", "scylla.log_ttl=60")
    assert code == 0
    assert found[f"table {logged.name}"] == ("ok", found[f"table {logged.name}"][1])
    assert "6 streams of vnodes" in found[f"table {logged.name}"][1]
    assert found[f"log of {logged.name}"][0] == "warning"
    assert f"ALTER TABLE {keyspace}.plain WITH cdc = {{'enabled': true}}" in found[f"table {keyspace}.plain"][1]
    assert found["clocks of nodes"][0] == "ok"
    code, found = check("--tables", "plain")
    assert (code, found[f"table {keyspace}.plain"][0]) == (2, "error"), "nothing is left to replicate"
