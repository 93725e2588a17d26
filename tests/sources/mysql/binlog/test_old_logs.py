"""`binlog:DIRECTORY` with log files of servers before checksums: MySQL 5.1 and 5.5, MariaDB 5.1 and 5.2.

No such server runs here: `write_old` makes the files from a real MariaDB log by the documented format. MariaDB still writes the same row
events (version 1), and with `SETTINGS` the same table maps and values. Newer parts are removed: GTIDs (their transactions begin with a
QUERY event `BEGIN` again), its own status variables, and the longer format description. The references are that server's SELECT, and a
second server that executes the same files as `mariadb-binlog` reads them.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer, Setting
from headrace.errors import DefiniteError
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.offline_source import directory_planner, open_directory, read_head
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.split_reader import SegmentSplit
from testkit.oracles.binlogs import Image, Logbook, images_of, open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.oracles.planned import replayed
from testkit.servers.servers import execute, mariadb, mysqlbinlog

MAGIC = b"\xfebin"
HEADER = struct.Struct("<IBIIIH")
QUERY, FORMAT_DESCRIPTION, GTID, STANDALONE = 2, 15, 162, 1
ADDED_SINCE = frozenset({160, 161, 163})
SETTINGS: dict[str, Setting] = {
    "binlog_checksum": "NONE",
    "binlog_row_metadata": "NO_LOG",
    "binlog_annotate_row_events": False,
    "mysql56_temporal_format": False,
    "explicit_defaults_for_timestamp": False,
    "character_set_server": "latin1",
}
_STATUS_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3}
_STATUS_TEXTS = frozenset({5, 6})
# Post-header lengths by type from 1 on: sources of MySQL 5.0, 5.1 and 5.5, Format_description_log_event.
_LENGTHS_50 = bytes.fromhex("380d0008001200040404041200004b00041a")
_LENGTHS_51 = bytes.fromhex("380d0008001200040404041200005300041a0800000008080802")
_LENGTHS_55 = bytes.fromhex("380d0008001200040404041200005400041a080000000808080200")
LENGTHS = {"5.0": _LENGTHS_50, "5.1": _LENGTHS_51, "5.2": _LENGTHS_51, "5.5": _LENGTHS_55}
"""By the first two numbers of a server's version; MariaDB 5.2 is MySQL 5.1's."""


def format_description(version: str, timestamp: int = 1, server_id: int = 1) -> bytes:
    """The first event of a file: no algorithm, no checksum."""
    lengths = LENGTHS[".".join(version.split(".")[:2])]
    body = struct.pack("<H50sIB", 4, version.encode(), timestamp, 19) + lengths
    return event(FORMAT_DESCRIPTION, body, len(MAGIC), timestamp, server_id)


def event(kind: int, body: bytes, offset: int, timestamp: int = 1, server_id: int = 1, flags: int = 0) -> bytes:
    """An event that lies at an offset of its file."""
    size = HEADER.size + len(body)
    return HEADER.pack(timestamp, kind, server_id, size, offset + size, flags) + body


def as_old(log: bytes, version: str) -> bytes:
    """A log file of MariaDB as a server of an old version would have written it."""
    old = MAGIC
    for timestamp, kind, server_id, flags, body in _events(log):
        if kind == FORMAT_DESCRIPTION:
            old += format_description(version, timestamp, server_id)
        elif kind == GTID and not body[12] & STANDALONE:
            old += event(QUERY, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN", len(old), timestamp, server_id, 8)
        elif kind == QUERY:
            old += event(kind, _old_query(body), len(old), timestamp, server_id, flags)
        elif kind != GTID and kind not in ADDED_SINCE:
            assert kind < 27, f"servers before checksums know no event of type {kind}"
            old += event(kind, body, len(old), timestamp, server_id, flags)
    return old


def _events(log: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    at = len(MAGIC)
    while at < len(log):
        timestamp, kind, server_id, size, _, flags = HEADER.unpack_from(log, at)
        yield timestamp, kind, server_id, flags, log[at + HEADER.size : at + size]
        at += size


def _old_query(body: bytes) -> bytes:
    """A QUERY event without the status variables that MariaDB added."""
    size = struct.unpack_from("<H", body, 11)[0]
    status, at = body[13 : 13 + size], 0
    while at < size and status[at] < 128:
        at += 1 + (1 + status[at + 1] if status[at] in _STATUS_TEXTS else _STATUS_SIZES[status[at]])
    return body[:11] + struct.pack("<H", at) + status[:at] + body[13 + size :]


VERSIONS = ("5.1.73-log", "5.5.62-0ubuntu0.14.04.1-log", "5.5.30-30.1-log", "5.1.67-MariaDB-log", "5.2.14-MariaDB")
COLUMNS = (
    "id INT UNSIGNED PRIMARY KEY, i8 TINYINT, i64 BIGINT UNSIGNED, d DECIMAL(20,6), f DOUBLE, s VARCHAR(300), "
    "c CHAR(10) CHARACTER SET utf8, b MEDIUMBLOB, bits BIT(11), "
    "e ENUM('x','y'), st SET('p','q','r'), y YEAR, dt DATE, moment DATETIME, ts TIMESTAMP NULL, t TIME"
)
FIRST = (
    "(1, -1, 18446744073709551615, -1234567.000001, 1.5, 'caf\u00e9', '\u6f22', x'00ff', b'10101010101', 'y', 'p,r', 2012, '2012-02-29', "
)
VALUES = (
    FIRST + "'2012-02-29 23:59:59', '2012-02-29 12:00:00', '-838:59:59')",
    "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(3, 127, 0, 0, -0.25, REPEAT('z', 300), '', REPEAT('w', 70000), 0, 'x', '', 1901, '1000-01-01', NULL, NULL, NULL)",
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logbook]:
    """A MariaDB with tables `wide` and `orders`, created and changed over two log files."""
    server = mariadb(tmp_path_factory.mktemp("old") / "server", **SETTINGS)
    with server:
        execute(server, "CREATE DATABASE shop CHARACTER SET latin1")
        with open_logbook(server, "shop", sql_mode="") as found:
            found.run(f"CREATE TABLE wide ({COLUMNS})", f"INSERT INTO wide VALUES {', '.join(VALUES)}")
            found.run("CREATE TABLE orders (id INT PRIMARY KEY, body VARCHAR(40))")
            found.insert("orders", [(n, f"order {n}") for n in range(200)])
            found.run("UPDATE orders SET body = 'changed' WHERE id % 5 = 0", "FLUSH BINARY LOGS")
            found.run("DELETE FROM orders WHERE id % 9 = 0", "UPDATE wide SET s = 'again', d = d + 1 WHERE id <> 2")
            found.run("ALTER TABLE orders ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'n'", "INSERT INTO orders VALUES (1000, 'last', 'x')")
            found.run("FLUSH BINARY LOGS")
            yield found


def write_old(book: Logbook, directory: Path, version: str) -> list[Path]:
    """The server's complete log files, as a server of the version would have written them."""
    last = book.place().file
    for path in book.server.binlog_dir.glob("binlog.0*"):
        if path.name < last:
            (directory / path.name).write_bytes(as_old(path.read_bytes(), version))
    return sorted(directory.iterdir())


def images_in(directory: Path, book: Logbook, table: str) -> list[Image]:
    log = open_directory(directory)
    planner = directory_planner(log.path, log.start, BatchLimits(flush_seconds=0), mariadb=log.mariadb)
    catalog, found, at = book.catalog(table), [], log.start
    try:
        while at < log.end:
            end = BinlogPosition.from_json(planner.plan(at.to_json()))
            splits = [split for split in planner.splits(at.to_json(), end.to_json()) if isinstance(split, SegmentSplit)]
            found += [image for split in splits for image in images_of(list(read_segment(split.segment, catalog)))]
            at = end
    finally:
        planner.stop()
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_value_is_the_server_s(book: Logbook, tmp_path: Path, version: str) -> None:
    first = write_old(book, tmp_path, version)[0]
    head = read_head(first)
    assert (head.server_version, head.checksum, head.mariadb) == (version, False, "MariaDB" in version)
    assert replayed(images_in(tmp_path, book, "wide")) == book.select(book.schema("wide"))


def test_another_server_executes_the_same_files(book: Logbook, tmp_path: Path) -> None:
    """The files are complete logs for `mariadb-binlog` and for a server, too."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with mariadb(tmp_path / "replica", **SETTINGS) as replica:
        execute_log(write_old(book, logs, "5.5.62-log"), replica)
        for table in ("wide", "orders"):
            assert source_rows(replica, "shop", table) == source_rows(book.server, "shop", table)


def execute_log(files: list[Path], server: PrivateServer) -> None:
    """Execute log files on a server by `mariadb-binlog`."""
    text = subprocess.run([*mysqlbinlog("mariadb"), *map(str, files)], check=True, capture_output=True).stdout
    client = ["mariadb", "--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root", "--binary-mode"]
    done = subprocess.run(client, input=text, capture_output=True, check=False, env={"MYSQL_PWD": server.password})
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("version", ["5.0.96-log", *VERSIONS])
@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
def test_both_servers_programs_read_the_format_description(tmp_path: Path, version: str, flavour: str) -> None:
    """The bytes have the documented format: `mariadb-binlog` and Headrace find the same version."""
    file = tmp_path / "binlog.000001"
    file.write_bytes(MAGIC + format_description(version, timestamp=1_400_000_000))
    text = subprocess.run([*mysqlbinlog(flavour), str(file)], check=True, capture_output=True, text=True).stdout
    assert f"end_log_pos {len(MAGIC) + 19 + 57 + len(LENGTHS[version[:3]])}" in text
    assert f"server v {version}" in text
    assert read_head(file).server_version == version


@pytest.mark.parametrize("version", ["5.6.51-log", "8.0.36", "5.5.68-MariaDB", "10.11.6-MariaDB", "", "x.5.62-log"])
def test_a_damaged_version_does_not_switch_checksums_off(tmp_path: Path, version: str) -> None:
    """Only an old version with an old size means that there are no checksums."""
    whole = bytearray(MAGIC + format_description("5.5.62-log"))
    whole[25:75] = version.encode().ljust(50, b"\0")
    (tmp_path / "binlog.000001").write_bytes(whole)
    with pytest.raises(DefiniteError, match=r"damaged|unknown layout"):
        open_directory(tmp_path)
