"""A private server with the workload in its binary log, generated once and cached.

The directory's name contains everything that the log depends on. The manifest is written last, after the server has shut down: a directory
with a manifest is complete, one without a manifest is generated again. The log is reset just before the first CREATE TABLE and closed just
after the last commit. Its first files are therefore exactly the workload, and later writes go to other files.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection
from pymysql.constants.CLIENT import MULTI_STATEMENTS

from bench.target import DATABASE, PASSWORD, USER, LogFile, Target
from bench.workload import Workload, generate_transactions
from headrace.demo.private_server import PrivateServer, Setting
from headrace.errors import DefiniteError
from testkit.servers.cache import cache_dir
from testkit.servers.servers import find_program

PACKET_BYTES = 1 << 20
SETTINGS: dict[str, Setting] = {
    "innodb_buffer_pool_size": "512M",
    "innodb_flush_log_at_trx_commit": 0,
    # A cached log must not expire between two runs.
    "binlog_expire_logs_seconds": 0,
    "max_binlog_size": "1G",
}
GTID_VARIABLE = {"mysql": "gtid_executed", "mariadb": "gtid_binlog_pos"}
GRANTS = "SELECT, RELOAD, PROCESS, SHOW DATABASES, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes the generated log."""

    changes: int
    rows: dict[str, int]
    files: tuple[LogFile, ...]
    start_file: str
    start_position: int
    start_gtids: str
    middle_file: str
    middle_position: int
    seconds: float

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        raw: dict[str, Any] = json.loads(text)
        return cls(**{**raw, "files": tuple(LogFile(**file) for file in raw["files"])})


@dataclass(frozen=True, slots=True)
class Corpus:
    """The running server and the contents of its log."""

    server: PrivateServer
    manifest: Manifest

    def target(self) -> Target:
        assert self.server.pid is not None
        return Target(
            flavour=self.server.flavour,
            version=self.server.program.version,
            port=self.server.port,
            pid=self.server.pid,
            changes=self.manifest.changes,
            rows=sum(self.manifest.rows.values()),
            files=self.manifest.files,
            start_file=self.manifest.start_file,
            start_position=self.manifest.start_position,
            start_gtids=self.manifest.start_gtids,
            middle_file=self.manifest.middle_file,
            middle_position=self.manifest.middle_position,
            binlog_directory=str(self.server.binlog_dir),
            mysqlbinlog=self.server.program.mysqlbinlog,
        )

    @contextmanager
    def disguised(self) -> Iterator[Target]:
        """Yield the same server for a reader that refuses MariaDB: until exit, the server reports version MySQL 5.7."""
        if self.server.flavour != "mariadb":
            yield self.target()
            return
        self._restart(version="5.7.10-log")
        try:
            yield self.target()
        finally:
            self._restart(version=None)

    def _restart(self, version: str | None) -> None:
        self.server.settings["version"] = version
        self.server.restart()


def default_cache() -> Path:
    """The folder of the generated servers."""
    return cache_dir() / "bench"


@contextmanager
def open_corpus(flavour: str, workload: Workload, cache: Path) -> Iterator[Corpus]:
    """Start the workload's server; generate it first if it is not in the cache."""
    program = find_program(flavour)
    directory = cache / f"{flavour}-{program.version}-{workload.name}"
    cache.mkdir(parents=True, exist_ok=True)
    with hold_lock(directory.with_name(directory.name + ".lock")):
        manifest_file = directory / "manifest.json"
        if not manifest_file.exists():
            shutil.rmtree(directory, ignore_errors=True)
            manifest = _generate(PrivateServer(program, directory, SETTINGS), workload)
            manifest_file.write_text(json.dumps(asdict(manifest)))
        with PrivateServer(program, directory, SETTINGS) as server:
            yield Corpus(server, Manifest.from_json(manifest_file.read_text()))


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock that admits one benchmark at a time."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DefiniteError("another benchmark uses this workload's server", place=str(path), hint="wait for it to end") from error
        yield


def _generate(server: PrivateServer, workload: Workload) -> Manifest:
    with server, server.root_connection(client_flag=MULTI_STATEMENTS, ssl_disabled=True) as connection:
        _prepare(connection, server.flavour, workload)
        start = _position(connection, server.flavour)
        gtids = _fetch(connection, f"SELECT @@global.{GTID_VARIABLE[server.flavour]}")[0][0]
        began = time.perf_counter()
        middle = _apply(connection, workload, server.flavour)
        seconds = time.perf_counter() - began
        connection.query("FLUSH BINARY LOGS")
        files = tuple(LogFile(row[0], row[1]) for row in _fetch(connection, "SHOW BINARY LOGS")[:-1])
        rows = {table.name: _fetch(connection, f"SELECT COUNT(*) FROM {DATABASE}.{table.name}")[0][0] for table in workload.tables}
    expected = workload.changes - workload.changes * 3 // 10 - 2 * (workload.changes // 10)
    if sum(rows.values()) != expected:
        raise DefiniteError(f"the server holds {rows} rows after the workload, not {expected} in all", place=str(server.directory))
    return Manifest(workload.changes, rows, files, *start, gtids, *middle, seconds)


def _prepare(connection: Connection[Any], flavour: str, workload: Workload) -> None:
    reset = "RESET BINARY LOGS AND GTIDS" if flavour == "mysql" else "RESET MASTER"
    for statement in (
        "SET sql_log_bin = 0",
        f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
        f"GRANT {GRANTS} ON *.* TO '{USER}'@'%'",
        "SET sql_log_bin = 1",
        reset,
        *workload.schema,
    ):
        connection.query(statement)


def _apply(connection: Connection[Any], workload: Workload, flavour: str) -> tuple[str, int]:
    """Run every transaction; return the log's position halfway."""
    middle: tuple[str, int] | None = None
    packet: list[str] = []
    size = done = 0
    for transaction in generate_transactions(workload):
        packet.append(transaction.sql)
        size += len(packet[-1])
        done += transaction.changes
        halfway = middle is None and done >= workload.changes // 2
        if size >= PACKET_BYTES or halfway:
            _send(connection, packet)
            packet, size = [], 0
        if halfway:
            middle = _position(connection, flavour)
    if packet:
        _send(connection, packet)
    assert middle is not None
    return middle


def _send(connection: Connection[Any], packet: list[str]) -> None:
    connection.query(";".join(packet))
    while connection.next_result():
        pass


def _position(connection: Connection[Any], flavour: str) -> tuple[str, int]:
    row = _fetch(connection, "SHOW BINARY LOG STATUS" if flavour == "mysql" else "SHOW MASTER STATUS")[0]
    return row[0], row[1]


def _fetch(connection: Connection[Any], query: str) -> tuple[tuple[Any, ...], ...]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(cursor.fetchall())
