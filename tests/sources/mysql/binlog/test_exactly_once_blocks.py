"""Blocks with tokens have the same bounds at each reading, with any other tables, any number of tasks and any settings.

A batch that is read again after a crash is recognised by its bytes; blocks with other bounds would be counted twice.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.sources.mysql.binlog import batch_planner
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows import row_decoder
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments import event_expander, segment_reader
from headrace.sources.mysql.segments.segment_reader import plan_tables, skip_tables
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory
from headrace.sources.mysql.split_reader import MySQLReader, SegmentSplit
from testkit.oracles.binlogs import Logbook, Place, images_of, open_logbook
from testkit.servers.servers import execute

BlockBounds = tuple[str, int, int, int, str]
"""Table, first and last version, rows, digest of the content."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of a server's log, planned as a pipe does, from the server's files."""

    book: Logbook
    start: BinlogPosition
    end: BinlogPosition

    def splits(self, parallelism: int) -> list[SegmentSplit]:
        source = BinlogDirectory(
            self.book.server.binlog_dir, self.start, BatchLimits(parallelism=parallelism), self.book.server.flavour == "mariadb"
        )
        made = source.planner()
        try:
            return [split for split in made.splits(self.start.to_json(), self.end.to_json()) if isinstance(split, SegmentSplit)]
        finally:
            made.stop()


def batch_since(book: Logbook, start: Place) -> Batch:
    end = book.place()
    return Batch(book, BinlogPosition(start.file, start.offset), BinlogPosition(end.file, end.offset))


def reader_of(book: Logbook, tables: Iterable[str], ordered: Iterable[str]) -> MySQLReader:
    schemas = {TableName(book.database, table): book.schema(table) for table in tables}
    keys: dict[TableName, tuple[str, ...]] = dict.fromkeys(schemas, ())
    names = frozenset(TableName(book.database, table) for table in ordered)
    selection = Selection(tuple(str(name) for name in schemas))
    plans = {name: replace(plan, ordered=name in names) for name, plan in plan_tables(schemas, keys).items()}
    return MySQLReader(None, plans, selection, ReadOptions(), 0)


def bounds_of(block: ChangeBlock) -> BlockBounds:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, block.images.schema) as stream:
        stream.write_batch(block.images)
    digest = hashlib.sha256(out.getvalue() + block.op.to_numpy().tobytes() + block.version.to_numpy().tobytes()).hexdigest()
    return block.schema.name.table, block.version[0].as_py(), block.version[-1].as_py(), block.rows, digest


def bounds_by_table(reading: MySQLReader, splits: list[SegmentSplit]) -> dict[str, list[BlockBounds]]:
    """The blocks of the ordered tables, table by table, in the order in which they would be written."""
    ordered = {name for name, plan in reading.tables.items() if plan.ordered}
    found: dict[str, list[BlockBounds]] = {name.table: [] for name in ordered}
    for split in splits:
        for block in reading.read(split):
            if block.schema.name in ordered:
                found[block.schema.name.table].append(bounds_of(block))
    return found


TABLES = ("a", "b", "c")


def fill(book: Logbook) -> None:
    """Some megabytes of log: three tables, transactions of every size, a changed key, and a log rotation."""
    for table in TABLES:
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, s TEXT)")
    for n in range(6):
        for table in TABLES:
            rows = [(n * 3000 + i, i, "x" * (i % 150)) for i in range(1500)]
            book.insert(table, rows)
        book.run("BEGIN", f"UPDATE a SET n = n + 1 WHERE id % 7 = {n}", f"UPDATE b SET s = 'b' WHERE id % 5 = {n}", "COMMIT")
        book.run(f"DELETE FROM a WHERE id % 31 = {n}", f"UPDATE c SET id = id + 100000 WHERE id % 97 = {n}")
        if n == 3:
            book.run("FLUSH BINARY LOGS")
        for i in range(20):
            book.run(f"INSERT INTO a VALUES ({900_000 + n * 100 + i}, {i}, NULL)", f"UPDATE c SET n = {i} WHERE id = {n * 3000}")


def test_block_bounds_do_not_depend_on_other_tables(server: PrivateServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small windows, blocks and segments, as in a large log.
    monkeypatch.setattr(segment_reader, "_WINDOW_EVENTS", 64)
    monkeypatch.setattr(row_decoder, "MAX_BLOCK_ROWS", 700)
    monkeypatch.setattr(row_decoder, "_MAX_DATA_BYTES", 32 << 10)
    monkeypatch.setattr(batch_planner, "_ORDERED_SEGMENT_BYTES", 600 << 10)
    monkeypatch.setattr(batch_planner, "_MIN_SEGMENT_BYTES", 100 << 10)
    with open_logbook(server, database) as book:
        start = book.place()
        fill(book)
        batch = batch_since(book, start)
        splits = {parallelism: batch.splits(parallelism) for parallelism in (1, 2, 5)}
        assert len({len(found) for found in splits.values()}) == 3
        assert len({len(found[0].ordered.segments) for found in splits.values()}) == 1
        assert len(splits[1][0].ordered.segments) > 2

        all_ordered = reader_of(book, TABLES, TABLES)
        expected = bounds_by_table(all_ordered, splits[1])
        assert all(len(found) > 10 for found in expected.values())
        for found in expected.values():
            assert [bounds[1] for bounds in found] == sorted(bounds[1] for bounds in found)
        for parallelism in (1, 2, 5):
            assert bounds_by_table(all_ordered, splits[parallelism]) == expected
            for ordered in (("a",), ("b", "c")):
                mixed = reader_of(book, TABLES, ordered)
                assert bounds_by_table(mixed, splits[parallelism]) == {table: expected[table] for table in ordered}
            # Excluding a table, or its earlier changes, does not change the others.
            middle = BinlogPosition.from_json(splits[1][0].until)
            late = replace(all_ordered.tables[TableName(database, "b")], skip_before=middle)
            plans = skip_tables({**all_ordered.tables, TableName(database, "b"): late}, [TableName(database, "c")])
            alone = replace(all_ordered, tables=plans)
            assert bounds_by_table(alone, splits[parallelism]) == {**expected, "b": [], "c": []}

        # Ordered or not, every image comes once.
        everything = Counter(images_of([block for split in splits[1] for block in reader_of(book, TABLES, ()).read(split)]))
        assert max(everything.values()) == 1
        for parallelism in (1, 5):
            mixed = reader_of(book, TABLES, ("a", "c"))
            assert Counter(images_of([block for split in splits[parallelism] for block in mixed.read(split)])) == everything


def test_a_table_that_is_described_in_two_ways_stays_in_order(fresh_server: Any, flavour: str) -> None:
    server: PrivateServer = fresh_server(binlog_row_metadata="MINIMAL")
    execute(server, "CREATE DATABASE shop")
    with open_logbook(server, "shop") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 0)")
        start = book.place()
        for n in range(1, 9):
            book.run(f"SET GLOBAL binlog_row_metadata = '{'FULL' if n % 2 else 'MINIMAL'}'", f"UPDATE t SET n = {n}")
        blocks = [block for split in batch_since(book, start).splits(1) for block in reader_of(book, ("t",), ("t",)).read(split)]
        images = images_of(blocks)
        assert [image.row[1] for image in images] == [str(n) for pair in zip(range(8), range(1, 9), strict=True) for n in pair]
        assert [image.version for image in images] == sorted(image.version for image in images)
        del flavour


def test_block_size_limits_of_a_log_do_not_change(server: PrivateServer, database: str) -> None:
    """A pipe that was killed under one version of Headrace and continues under the next must cut its open batch in the same way."""
    numbers = (
        batch_planner._ORDERED_SEGMENT_BYTES,
        segment_reader._WINDOW_EVENTS,
        row_decoder.MAX_BLOCK_ROWS,
        row_decoder._MAX_DATA_BYTES,
        event_expander._PIECE_BYTES,
    )
    assert numbers == (64 << 20, 262_144, 65_536, 8 << 20, 8 << 20)
    numbered = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT {} FROM n"
    with open_logbook(server, database) as book:
        raise_limit = "cte_max_recursion_depth" if server.flavour == "mysql" else "max_recursive_iterations"
        book.run(f"SET SESSION {raise_limit} = 1000000")
        book.run("CREATE TABLE slim (id INT PRIMARY KEY)", "CREATE TABLE wide (id INT PRIMARY KEY, s VARCHAR(1000) CHARACTER SET latin1)")
        start = book.place()
        book.run(
            f"INSERT INTO slim {numbered.format(150_000, 'i')}", f"INSERT INTO wide {numbered.format(20_000, 'i, REPEAT(CHAR(97), 1000)')}"
        )
        splits = batch_since(book, start).splits(2)
        found = bounds_by_table(reader_of(book, ("slim", "wide"), ("slim", "wide")), splits)
        assert [bounds[3] for bounds in found["slim"]] == [65_535, 65_535, 18_930]
        assert [bounds[3] for bounds in found["wide"]] == [8_388, 8_388, 3_224]
