"""A table with few changes is read whole by one task of a batch, and every image is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sources.mysql.binlog import batch_planner
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments import table_shares
from headrace.sources.mysql.segments.segment_reader import Segment, plan_tables
from headrace.sources.mysql.segments.table_shares import TableShare, measure_tables, share_tables
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory
from headrace.sources.mysql.split_reader import MySQLReader, SegmentSplit
from headrace.sources.splits import decode_split, encode_split
from testkit.oracles.binlogs import Logbook, Place, images_of, open_logbook

SMALL = tuple(f"small{n}" for n in range(12))
TABLES = ("hot", *SMALL)
SEGMENT = Segment("log", "log.000001", 4, 1000, 0, checksum=True)


def fill(book: Logbook) -> None:
    """One table with most changes and twelve with few, in transactions of several tables, in two log files."""
    for table in TABLES:
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, s TEXT)")
    for n in range(40):
        book.insert("hot", [(n * 100 + i, i, "x" * 120) for i in range(100)])
        book.run("BEGIN", *(f"INSERT INTO {table} VALUES ({n}, {n}, 'row {n}')" for table in SMALL), "COMMIT")
        book.run(f"UPDATE hot SET n = n + 1 WHERE id % 13 = {n % 13}", f"DELETE FROM small3 WHERE id = {n - 5}")
        if n == 25:
            book.run("FLUSH BINARY LOGS")


def plan(book: Logbook, start: Place, *, parallelism: int, whole_tables: bool) -> list[SegmentSplit]:
    """Plan everything since `start` as one batch, and send the splits through their text form."""
    limits = BatchLimits(parallelism=parallelism, whole_tables=whole_tables)
    begin, last = BinlogPosition(start.file, start.offset), book.place()
    made = BinlogDirectory(book.server.binlog_dir, begin, limits, book.server.flavour == "mariadb").planner()
    try:
        splits = made.splits(begin.to_json(), BinlogPosition(last.file, last.offset).to_json())
    finally:
        made.stop()
    decoded = [decode_split(encode_split(split), [SegmentSplit]) for split in splits if isinstance(split, SegmentSplit)]
    return [split for split in decoded if isinstance(split, SegmentSplit)]


def reader_of(book: Logbook, tables: Sequence[str], ordered: Sequence[str] = ()) -> MySQLReader:
    schemas = {TableName(book.database, table): book.schema(table) for table in tables}
    plans = plan_tables(schemas, dict.fromkeys(schemas, ()))
    plans = {name: replace(one, ordered=name.table in ordered) for name, one in plans.items()}
    return MySQLReader(None, plans, Selection(tuple(str(name) for name in schemas)), ReadOptions(), 0)


def blocks_by_task(reader: MySQLReader, splits: Sequence[SegmentSplit]) -> list[list[ChangeBlock]]:
    return [list(reader.read(split)) for split in splits]


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_planner, "_MIN_SEGMENT_BYTES", 60 << 10)
    monkeypatch.setattr(table_shares, "DIVIDED_BYTES", 30 << 10)


@pytest.mark.usefixtures("small_segments")
def test_small_tables_have_one_block_per_log_file(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database) as book:
        start = book.place()
        fill(book)
        by_ranges = plan(book, start, parallelism=4, whole_tables=False)
        splits = plan(book, start, parallelism=4, whole_tables=True)
        assert len(splits) == len(by_ranges) >= 3
        reader = reader_of(book, TABLES)
        tasks = blocks_by_task(reader, splits)
        expected = images_of([block for task in blocks_by_task(reader, by_ranges) for block in task])
        assert images_of([block for task in tasks for block in task]) == expected
        assert max(Counter(expected).values()) == 1

        tables = [{block.schema.name.table for block in task} for task in tasks]
        assert all("hot" in found for found in tables)
        assert all(sum(table in found for found in tables) == 1 for table in SMALL)
        counts = Counter(block.schema.name.table for task in tasks for block in task)
        assert all(counts[table] == 2 for table in SMALL), "two log files, one block each"

        # Ordered tables keep their own rule, and tables that are not selected are not read.
        mixed = blocks_by_task(reader_of(book, ("hot", "small1", "small2"), ("small1", "hot")), splits)
        kept = {"hot", "small1", "small2"}
        assert images_of([b for task in mixed for b in task]) == [image for image in expected if image.table.table in kept]


@pytest.mark.usefixtures("small_segments")
def test_an_unknown_table_is_an_error_of_the_task_that_has_it(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database) as book:
        start = book.place()
        fill(book)
        reader = reader_of(book, TABLES)
        tables = {name: one for name, one in reader.tables.items() if name.table != "small7"}
        incomplete, failures = replace(reader, tables=tables), []
        for split in plan(book, start, parallelism=4, whole_tables=True):
            try:
                list(incomplete.read(split))
            except DefiniteError as error:
                failures.append(error.message)
        assert [f"{database}.small7" in message for message in failures] == [True]


@pytest.mark.usefixtures("small_segments")
def test_a_damaged_log_is_read_by_ranges(server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner leaves the error to the reader, which reports its place."""
    with open_logbook(server, database) as book:
        start = book.place()
        fill(book)

        def fail(segments: Sequence[Segment]) -> dict[TableName, int]:
            raise DefiniteError("the log is truncated", place=segments[0].file)

        monkeypatch.setattr("headrace.sources.mysql.split_reader.measure_tables", fail)
        splits = plan(book, start, parallelism=4, whole_tables=True)
        assert len(splits) >= 3
        assert all(split.tables is None for split in splits)


def test_sizes_are_those_of_the_row_events(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database) as book:
        start = book.place()
        fill(book)
        splits = plan(book, start, parallelism=1, whole_tables=False)
        sizes = measure_tables([split.segment for split in splits])
        mine = {name.table: size for name, size in sizes.items() if name.database == database}
        assert set(mine) == set(TABLES)
        # 4,000 inserted rows of more than 120 bytes, and 40 of 15 to 30 bytes in each small table. Updates log the whole row twice.
        assert mine["hot"] > 480_000
        assert all(600 < mine[table] < 6_000 for table in SMALL)
        assert sum(sizes.values()) < sum(split.segment.end - split.segment.start for split in splits)


def names(sizes: Sequence[int]) -> dict[TableName, int]:
    return {TableName("d", f"t{n:03}"): size for n, size in enumerate(sizes)}


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_tasks_have_equal_loads(tasks: int) -> None:
    megabyte = 1 << 20
    sizes = names([60 * megabyte, *(3 * megabyte // (n + 1) for n in range(200))])
    total = sum(sizes.values())
    shares = share_tables(sizes, [total // tasks] * tasks, (SEGMENT,))
    assert [one.divided for one in shares] == [(TableName("d", "t000"),)] * tasks
    whole = [name for one in shares for name in one.whole]
    assert sorted(whole, key=str) == sorted((name for name in sizes if name.table != "t000"), key=str)
    loads = [sum(sizes[name] for name in one.whole) for one in shares]
    assert max(loads) - min(loads) <= 3 * megabyte
    assert share_tables(sizes, [total // tasks] * tasks, (SEGMENT,)) == shares


def test_large_tables_are_divided() -> None:
    sizes = names([40 << 20, 40 << 20])
    assert share_tables(sizes, [40 << 20] * 2, (SEGMENT,)) == [TableShare((SEGMENT,), (), tuple(sizes))] * 2
