"""`binlog:DIRECTORY` with log files of servers before checksums: MySQL 5.1 and 5.5, MariaDB 5.1 and 5.2.

`testkit.recordings.old_logs` makes them from a real MariaDB log. The references are that server's SELECT, and a second server that executes
the same files as `mariadb-binlog` reads them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.sources.mysql.binlog.binlog_directory import read_head
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.offline_source import directory_planner, open_directory
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.splits import SegmentSplit
from testkit.oracles.binlogs import Image, Logbook, images_of, open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.oracles.planned import replayed
from testkit.recordings.old_logs import LENGTHS, MAGIC, SETTINGS, as_old, format_description
from testkit.servers.servers import execute, mariadb, mysqlbinlog

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
    with mariadb(tmp_path / "witness", **SETTINGS) as witness:
        execute_log(write_old(book, logs, "5.5.62-log"), witness)
        for table in ("wide", "orders"):
            assert source_rows(witness, "shop", table) == source_rows(book.server, "shop", table)


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
