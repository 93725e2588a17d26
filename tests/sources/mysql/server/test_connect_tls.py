"""TLS with real servers: for statements, for the log, for table scans."""

from __future__ import annotations

import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.mysql.binlog.replication_client import ReplicationStream
from headrace.sources.mysql.server.connection import connect, parse_mysql_url, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.snapshot.table_scan import scan_table
from testkit.servers.certificates import Authority, Pair
from testkit.servers.servers import build, execute

PASSWORD = f"pä/ß?{secrets.token_hex(4)}"
GRANTS = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


class Secured:
    """A server with certificates, and accounts with different TLS requirements."""

    def __init__(self, flavour: str, directory: Path) -> None:
        self.authority, self.stranger = Authority(directory, "authority"), Authority(directory, "stranger")
        self.good = self.authority.issue("server", hosts=("127.0.0.1",))
        self.client, self.impostor = self.authority.issue("client"), self.stranger.issue("impostor")
        self.used = Pair(directory / "used-cert.pem", directory / "used-key.pem")
        self._place(self.good)
        self.server = build(
            flavour, directory / "server", ssl_ca=str(self.authority.cert), ssl_cert=str(self.used.cert), ssl_key=str(self.used.key)
        )

    def start(self) -> None:
        self.server.start()
        self.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        for user, demand in (("open", ""), ("secure", "REQUIRE SSL"), ("known", "REQUIRE X509")):
            self.run(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}' {demand}", f"GRANT {GRANTS} TO '{user}'@'%'")

    def run(self, *statements: str) -> None:
        execute(self.server, *statements)

    def use(self, pair: Pair) -> None:
        """Change the certificate of the running server."""
        self._place(pair)
        self.run("FLUSH SSL" if self.server.flavour == "mariadb" else "ALTER INSTANCE RELOAD TLS")

    def _place(self, pair: Pair) -> None:
        shutil.copy(pair.cert, self.used.cert)
        shutil.copy(pair.key, self.used.key)

    def url(self, user: str, settings: str = "", host: str = "127.0.0.1") -> str:
        return f"mysql://{user}@{host}:{self.server.port}/shop?{settings}".rstrip("?")

    def cipher(self, url: str) -> str:
        address = parse_mysql_url(url)
        connection = connect(address)
        try:
            return str(query(connection, address, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])
        finally:
            connection.close()

    def rejection(self, url: str) -> str:
        with pytest.raises(DefiniteError) as caught:
            connect(parse_mysql_url(url))
        assert PASSWORD not in str(caught.value)
        assert caught.value.hint
        return str(caught.value)


@pytest.fixture(scope="module")
def secured(flavour: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(flavour, tmp_path_factory.mktemp("tls"))
    try:
        found.start()
        yield found
    finally:
        found.server.remove()


@pytest.fixture(autouse=True)
def password_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SOURCE_PASSWORD", PASSWORD)


def test_modes(secured: Secured) -> None:
    ca = f"ca={secured.authority.cert}"
    assert secured.cipher(secured.url("open")) == ""
    assert secured.cipher(secured.url("open", "tls=disabled")) == ""
    for settings in ("tls=preferred", "tls=required", f"tls=verify-ca&{ca}", f"tls=verify-identity&{ca}", ca):
        assert secured.cipher(secured.url("open", settings)), settings
        assert secured.cipher(secured.url("secure", settings)), settings
    # The name is not in the certificate, only the address.
    assert secured.cipher(secured.url("open", f"tls=verify-ca&{ca}", host="localhost"))


def test_accounts_that_demand_more(secured: Secured) -> None:
    assert "add ?tls=required" in secured.rejection(secured.url("secure"))
    assert "add cert= and key=" in secured.rejection(secured.url("known", "tls=required"))
    own = f"cert={secured.client.cert}&key={secured.client.key}"
    assert secured.cipher(secured.url("known", own))
    assert secured.cipher(secured.url("known", f"{own}&ca={secured.authority.cert}"))
    foreign = f"cert={secured.impostor.cert}&key={secured.impostor.key}"
    with pytest.raises(HeadraceError) as caught:
        connect(parse_mysql_url(secured.url("known", foreign)))
    assert "check cert= and key=, that the server trusts their issuer" in caught.value.hint
    mixed = f"cert={secured.client.cert}&key={secured.impostor.key}"
    assert "cert or key" in secured.rejection(secured.url("known", mixed))


def test_servers_that_are_not_who_they_should_be(secured: Secured) -> None:
    ca = f"ca={secured.authority.cert}"
    for settings in (f"ca={secured.stranger.cert}", "tls=verify-ca", f"tls=verify-ca&ca={secured.stranger.cert}"):
        refused = secured.rejection(secured.url("open", settings))
        assert "certificate is not accepted" in refused, settings
        assert "give the issuer's certificate with ca=FILE" in refused
    assert "use a host name that the certificate bears instead of 'localhost'" in secured.rejection(
        secured.url("open", f"tls=verify-identity&{ca}", host="localhost")
    )
    # MySQL refuses to load one that has expired already.
    brief = secured.authority.issue("brief", hosts=("127.0.0.1",), valid=timedelta(seconds=2))
    secured.use(brief)
    time.sleep(2.5)
    try:
        assert "renew the server's certificate" in secured.rejection(secured.url("open", ca))
        assert secured.cipher(secured.url("open", "tls=required"))
    finally:
        secured.use(secured.good)
    assert secured.cipher(secured.url("open", ca))


def test_a_server_without_tls(fresh_server: Any, secured: Secured) -> None:
    off: dict[str, Any] = {"skip_ssl": True} if secured.server.flavour == "mariadb" else {"tls_version": '""'}
    server: PrivateServer = fresh_server(**off)
    url = server.url()
    assert secured.cipher(f"{url}?tls=preferred") == ""
    with pytest.raises(DefiniteError, match="offers no TLS"):
        connect(parse_mysql_url(f"{url}?tls=required"))


def test_log_and_scan_over_tls(secured: Secured) -> None:
    """More than any buffer; the bytes are compared with the server's file and its sums."""
    server = secured.server
    address = parse_mysql_url(secured.url("secure", f"ca={secured.authority.cert}"))
    connection = connect(address)
    start = log_end(connection, address, 0)
    secured.run(
        "DROP TABLE IF EXISTS shop.big",
        "CREATE TABLE shop.big (id INT PRIMARY KEY, body LONGBLOB NOT NULL)",
        "INSERT INTO shop.big VALUES " + ", ".join(f"({i}, REPEAT(CHAR({65 + i}), {1_000_000 + 7 * i}))" for i in range(9)),
        "INSERT INTO shop.big VALUES (99, REPEAT('q', 3000000))",
    )
    end = log_end(connection, address, 0)
    assert start.file == end.file
    received = read_log(ReplicationStream(address, start, blocking=False))
    # MariaDB can add a binlog checkpoint event at any time, so the log may go on behind `end`.
    assert len(received) >= end.offset - start.offset
    assert (server.binlog_dir / start.file).read_bytes()[start.offset :].startswith(received)
    schema = TableSchema(TableName("shop", "big"), (Column("id", Kind.INT32, False), Column("body", Kind.BYTES, False)), ("id",))
    rows = [row for batch in scan_table(connection, address, schema) for row in batch.to_pylist()]
    expected = query(connection, address, "SELECT id, LENGTH(body), CRC32(body) FROM shop.big ORDER BY id")
    assert [(row["id"], len(row["body"]), zlib.crc32(row["body"])) for row in rows] == expected
    connection.close()


def read_log(stream: ReplicationStream) -> bytes:
    try:
        return b"".join(piece.tobytes() for piece in stream.pieces() if isinstance(piece, np.ndarray))
    finally:
        stream.close()


def test_a_wide_request_reads_the_same_log(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions beyond 4 GiB need MySQL's other request; for a near position it must send the same bytes."""
    if secured.server.flavour == "mariadb":
        pytest.skip("MariaDB has no such request")
    address = parse_mysql_url(secured.url("open"))
    connection = connect(address)
    secured.run("CREATE TABLE shop.first (id INT PRIMARY KEY)", "INSERT INTO shop.first VALUES (1)")
    middle = log_end(connection, address, 0)
    secured.run("CREATE TABLE shop.then (id INT PRIMARY KEY)", "INSERT INTO shop.then VALUES (1)")
    secured.run("FLUSH BINARY LOGS", "DROP TABLE shop.then")
    plain = read_log(ReplicationStream(address, middle, blocking=False))
    monkeypatch.setattr("headrace.sources.mysql.binlog.replication_client._PLAIN_POSITIONS", 0)
    assert read_log(ReplicationStream(address, middle, blocking=False)) == plain
    connection.close()


def test_positions_beyond_4_gib(secured: Secured) -> None:
    """A log file extended by a hole; at its end, the rotation that a server writes after such a transaction."""
    address = parse_mysql_url(secured.url("open"))
    connection = connect(address)
    file = log_end(connection, address, 0).file
    secured.run("FLUSH BINARY LOGS", "CREATE DATABASE after_it", "DROP DATABASE after_it")
    path, far = secured.server.binlog_dir / file, (1 << 32) + 1000
    rotate = path.read_bytes()[-(19 + 8 + len(file) + 4) :]
    assert rotate[4] == 4
    body = rotate[:13] + ((far + len(rotate)) & 0xFFFFFFFF).to_bytes(4, "little") + rotate[17:-4]
    with path.open("r+b") as log:
        log.seek(far)
        log.write(body + zlib.crc32(body).to_bytes(4, "little"))
    end = log_end(connection, address, 0)
    received = read_log(ReplicationStream(address, BinlogPosition(file, far), blocking=False))
    following = received.removeprefix(body + zlib.crc32(body).to_bytes(4, "little"))
    written = bytearray((secured.server.binlog_dir / end.file).read_bytes()[4:])
    # The flag LOG_EVENT_BINLOG_IN_USE; servers do not send it.
    written[17] = 0
    # MariaDB can add a binlog checkpoint event at any time, so the log may go on behind `end`.
    assert len(following) >= end.offset - 4
    assert written.startswith(following)
    assert received.startswith(body) == (secured.server.flavour == "mysql")
    with pytest.raises(HeadraceError):
        read_log(ReplicationStream(address, BinlogPosition(file, far + len(rotate) + 1), blocking=False))
    connection.close()
    path.write_bytes(b"")
