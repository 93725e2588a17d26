"""Copied log files are a source without the server: the same rows at the same positions, and every gap is an error."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.offline_source import find_schemas, last_position, open_directory, parse_directory, read_head
from headrace.sources.mysql.rows.table_map_schema import schema_of
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, plan_tables, read_segment
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.source import BinlogDirectory
from headrace.sources.mysql.split_reader import BinlogPlanner, SegmentSplit
from testkit.oracles.binlogs import Image, Logbook, images_of

SMALL = BatchLimits(flush_bytes=20_000, flush_seconds=0)


@pytest.fixture
def copied(book: Logbook, tmp_path: Path) -> tuple[Path, list[str]]:
    """Copy three log files, in which tables `t`, `u` and `packed` are created and changed, to a directory; return their names."""
    book.run("FLUSH BINARY LOGS")
    first = book.place().file
    book.run("CREATE TABLE t (id INT PRIMARY KEY, body VARCHAR(40))", "CREATE TABLE u (a INT, b INT, c TEXT, PRIMARY KEY (b, a))")
    book.insert("t", [(n, f"first {n}") for n in range(300)])
    book.insert("u", [(n, n // 7, "x" * n) for n in range(100)])
    book.run("FLUSH BINARY LOGS", "UPDATE t SET body = 'second' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
    book.run("UPDATE u SET a = a + 1000 WHERE b = 3", "CREATE TABLE packed (id INT PRIMARY KEY, body TEXT)")
    if book.server.flavour == "mysql":
        # On MariaDB the setting is global.
        book.run("SET SESSION binlog_transaction_compression = ON")
    book.insert("packed", [(n, "long" * 100) for n in range(50)])
    book.run("FLUSH BINARY LOGS")
    book.run(*[f"INSERT INTO t VALUES ({n}, 'third')" for n in range(1000, 1010)])
    names = sorted(path.name for path in book.server.binlog_dir.glob("binlog.0*") if path.name >= first)
    directory = tmp_path / "files"
    directory.mkdir()
    for name in names:
        shutil.copy(book.server.binlog_dir / name, directory)
    assert len(names) == 3
    return directory, names


def catalog_of(book: Logbook) -> ReadCatalog:
    return book.catalog("t", "u", "packed")


def read_from(planner: BinlogPlanner, at: BinlogPosition, catalog: ReadCatalog, done: Callable[[BinlogPosition], bool]) -> Iterator[Image]:
    """Return images batch by batch, as Spark reads them."""
    deadline = time.monotonic() + 30
    while not done(at):
        assert time.monotonic() < deadline, f"stuck at {at}"
        end = BinlogPosition.from_json(planner.plan(at.to_json()))
        for split in planner.splits(at.to_json(), end.to_json()):
            if isinstance(split, SegmentSplit):
                yield from images_of(list(read_segment(split.segment, catalog)))
        planner.commit(end.to_json())
        at = end


def replayed(images: list[Image], table: str, key: Callable[[tuple[object, ...]], object]) -> list[tuple[object, ...]]:
    rows: dict[object, tuple[object, ...]] = {}
    for image in images:
        if image.table.table == table:
            if image.op in (Op.DELETE, Op.BEFORE):
                del rows[key(image.row)]
            else:
                rows[key(image.row)] = image.row
    return sorted(rows.values(), key=repr)


def test_files_are_read_as_the_server_s_log(book: Logbook, copied: tuple[Path, list[str]]) -> None:
    directory, names = copied
    before = {name: (directory / name).read_bytes() for name in names}
    log = open_directory(parse_directory(f"binlog:{directory}"))
    assert (log.start.file, log.start.offset, log.mariadb) == (names[0], 4, book.server.flavour == "mariadb")
    assert (log.end.file, log.end.offset) == (names[-1], len(before[names[-1]]))
    source = pickle.loads(pickle.dumps(BinlogDirectory(log.path, log.start, SMALL, log.mariadb)))
    planner = source.planner()
    try:
        images = list(read_from(planner, log.start, catalog_of(book), lambda at: at >= log.end))
    finally:
        planner.stop()
    for table, key in (("t", lambda row: row[0]), ("u", lambda row: row[:2]), ("packed", lambda row: row[0])):
        assert replayed(images, table, key) == sorted(book.select(book.schema(table)), key=repr)
    # The same positions as on the server, and unchanged files.
    name = names[0]
    live = Segment(str(book.server.binlog_dir / name), name, 4, len(before[name]), 0, read_head(directory / name).checksum)
    versions = [image.version for image in images_of(list(read_segment(live, catalog_of(book))))]
    assert versions
    assert set(versions) <= {image.version for image in images}
    assert {name: (directory / name).read_bytes() for name in names} == before
    assert sorted(path.name for path in directory.iterdir()) == names


def test_a_run_resumes_at_its_position(book: Logbook, copied: tuple[Path, list[str]]) -> None:
    directory, names = copied
    log = open_directory(directory, f"{names[1]}:4")
    later = open_directory(directory, f"{log.end.file}:{log.end.offset}")
    assert later.start == later.end == open_directory(directory, "now").start
    planner = BinlogDirectory(log.path, log.start, BatchLimits(), log.mariadb).planner()
    try:
        images = list(read_from(planner, log.start, catalog_of(book), lambda at: at >= log.end))
        assert {image.op for image in images if image.version < BinlogPosition(names[2], 4).version} >= {Op.UPDATE, Op.DELETE}
        assert [image.row[1] for image in images][-10:] == ["third"] * 10
    finally:
        planner.stop()
    for place in (f"{names[0]}:5", f"{names[0]}:{log.end.offset + 10**9}", "binlog.999999:4", "yesterday"):
        with pytest.raises(DefiniteError) as caught:
            open_directory(directory, place)
        assert caught.value.hint


def test_a_file_that_grows_is_followed(book: Logbook, copied: tuple[Path, list[str]]) -> None:
    directory, names = copied
    last = directory / names[-1]
    whole = last.read_bytes()
    # Cut in the middle of a transaction; then the rest comes, and then another file.
    last.write_bytes(whole[: len(whole) - 20])
    log = open_directory(directory)
    assert log.end.offset < len(whole) - 20
    planner = BinlogDirectory(log.path, log.start, SMALL, log.mariadb).planner()
    try:
        catalog = catalog_of(book)
        early = list(read_from(planner, log.start, catalog, lambda at: at >= log.end))
        assert [image.row[0] for image in early][-1] == "1008"
        assert planner.plan(log.end.to_json()) == log.end.to_json()
        with last.open("ab") as file:
            file.write(whole[len(whole) - 20 :])
        end = BinlogPosition(names[-1], len(whole))
        assert [image.row[0] for image in read_from(planner, log.end, catalog, lambda at: at >= end)] == ["1009"]
        book.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2000, 'more')")
        shutil.copy(book.server.binlog_dir / names[-1], directory)
        shutil.copy(book.server.binlog_dir / book.place().file, directory)
        finish = last_position(directory)
        assert [image.row[0] for image in read_from(planner, end, catalog, lambda at: at >= finish)] == ["2000"]
    finally:
        planner.stop()


def test_the_files_alone_are_enough(book: Logbook, copied: tuple[Path, list[str]]) -> None:
    """Tables and their definitions from full table maps, without a server."""
    directory, _ = copied
    log = open_directory(directory)
    found = find_schemas(log, lambda name: name.database == book.database, lambda body, place: schema_of(parse_table_map(body, place)))
    schemas = {name: schema for name, schema in found.items() if schema is not None}
    assert set(schemas) == set(found) == {TableName(book.database, table) for table in ("t", "u", "packed")}
    assert schemas[TableName(book.database, "u")].primary_key == ("b", "a")
    keys = {name: schema.primary_key for name, schema in schemas.items()}
    planner = BinlogDirectory(log.path, log.start, BatchLimits(), log.mariadb).planner()
    try:
        images = list(
            read_from(planner, log.start, ReadCatalog(plan_tables(schemas, keys), lambda name: name in schemas), lambda at: at >= log.end)
        )
    finally:
        planner.stop()
    assert replayed(images, "t", lambda row: row[0]) == sorted(book.select(book.schema("t")), key=repr)
    assert replayed(images, "packed", lambda row: row[0]) == sorted(book.select(book.schema("packed")), key=repr)


def failure_of(directory: Path, mariadb: bool) -> DefiniteError:
    """Return the outcome of following the directory to its end."""
    log_start = BinlogPosition(min(path.name for path in directory.glob("binlog.0*")), 4)
    planner = BinlogDirectory(directory, log_start, BatchLimits(), mariadb).planner()
    try:
        at = log_start.to_json()
        for _ in range(20):
            at = planner.plan(at)
    except DefiniteError as error:
        return error
    else:
        pytest.fail("no error was raised")
    finally:
        planner.stop()


def test_files_that_cannot_be_read(book: Logbook, copied: tuple[Path, list[str]]) -> None:
    directory, names = copied
    mariadb = book.server.flavour == "mariadb"
    middle = directory / names[1]
    whole = middle.read_bytes()

    middle.write_bytes(whole[:-60])
    error = failure_of(directory, mariadb)
    assert "breaks off inside a transaction" in error.message
    assert names[1] in error.place

    half = len(whole) // 2
    middle.write_bytes(whole[:half] + bytes([whole[half] ^ 0xFF]) + whole[half + 1 :])
    assert failure_of(directory, mariadb).hint

    middle.unlink()
    with pytest.raises(DefiniteError, match="missing between"):
        open_directory(directory)
    middle.write_bytes(b"\xfdbin" + whole[4:])
    with pytest.raises(DefiniteError, match="encrypted"):
        open_directory(directory)
    middle.write_bytes(b"something else")
    with pytest.raises(DefiniteError, match="not a binary log file"):
        open_directory(directory)
    middle.write_bytes(whole)
    (directory / "relay.000001").write_bytes(whole)
    with pytest.raises(DefiniteError, match="several names"):
        open_directory(directory)
    with pytest.raises(DefiniteError, match="no binary log files"):
        open_directory(directory.parent)
    with pytest.raises(DefiniteError, match="cannot be read"):
        open_directory(directory / "nowhere")
