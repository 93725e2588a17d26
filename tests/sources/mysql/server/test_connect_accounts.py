"""Connections: authentication plugins, Unix sockets, silent servers, replicas with the same id."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.mysql.binlog import replication_client as stream_module
from headrace.sources.mysql.binlog.replication_client import NewFile, ReplicationStream, choose_server_id
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url, query
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.mysql.snapshot.table_scan import scan_table
from testkit.servers.accounts import Account

GRANTS = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


@contextmanager
def user_with(server: PrivateServer, how: str) -> Iterator[MySQLAddress]:
    user, password = f"u{secrets.token_hex(4)}", f"ключ/ß'{secrets.token_hex(4)}"
    quoted = password.replace("'", "''")
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED {how.format(quoted)}")
        cursor.execute(f"GRANT {GRANTS} TO '{user}'@'%'")
        yield MySQLAddress("127.0.0.1", server.port, user, password)
        cursor.execute(f"DROP USER '{user}'@'%'")


def read_all(address: MySQLAddress) -> None:
    """Open an ordinary connection, and one that follows the log."""
    connection = connect(address)
    try:
        assert query(connection, address, "SELECT SUBSTRING_INDEX(CURRENT_USER(), '@', 1)") == [(address.user,)]
        stream = ReplicationStream(address, log_end(connection, address, 0), blocking=False)
        assert [piece for piece in stream.pieces() if isinstance(piece, NewFile)]
        stream.close()
    finally:
        connection.close()


def test_authentication_plugins(server: PrivateServer) -> None:
    """Passwords beyond Latin-1: the server hashes UTF-8."""
    if server.flavour == "mysql":
        with user_with(server, "WITH caching_sha2_password BY '{}'") as address:
            # Without TLS the first login needs the server's RSA key, the second uses the server's cache; with TLS neither.
            for settings in ("", "", "?tls=required"):
                read_all(replace(address, tls=parse_mysql_url(f"mysql://h/{settings}").tls))
            with pytest.raises(DefiniteError, match="refused user"):
                connect(replace(address, password="wrong"))
        return
    with user_with(server, "VIA mysql_native_password USING PASSWORD('{}')") as address:
        read_all(address)
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("INSTALL SONAME 'auth_ed25519'")
        try:
            with user_with(server, "VIA ed25519 USING PASSWORD('{}')") as address:
                read_all(address)
                with pytest.raises(DefiniteError, match="refused user"):
                    connect(replace(address, password="wrong"))
        finally:
            cursor.execute("UNINSTALL SONAME 'auth_ed25519'")


def test_unix_socket(server: PrivateServer, replica_account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A socket's address holds 107 bytes; the tests' directories may be longer.
    (tmp_path / "d").symlink_to(server.data_dir)
    monkeypatch.chdir(tmp_path)
    url = f"mysql://{replica_account.user}:{replica_account.password}@localhost/db?socket=d/server.sock"
    address = parse_mysql_url(url)
    assert str(address) == f"mysql://{replica_account.user}@localhost/db?socket=d/server.sock"
    read_all(address)
    connection = connect(address)
    [(host,)] = query(connection, address, "SELECT host FROM information_schema.processlist WHERE id = CONNECTION_ID()")
    connection.close()
    assert host == "localhost", "not by TCP"
    with pytest.raises(DefiniteError, match="socket cannot be opened"):
        connect(replace(address, socket="d/no.sock"))


class Forwarder:
    """A proxy that can stop forwarding: then the server hangs, as seen by the client."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.silent = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if self.silent.is_set():
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if self.silent.is_set():
                    return
                target.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            one.close()


@pytest.fixture
def forwarder(server: PrivateServer) -> Iterator[Forwarder]:
    found = Forwarder(server.port)
    yield found
    found.close()


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    with pytest.raises(TransientError):
        yield
    assert time.monotonic() - started < seconds


def test_a_server_that_hangs(replica_account: Account, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection and never answers; or it stops in a query, in the log, in a result: a transient error in the given time."""
    base = f"mysql://{replica_account.user}:{replica_account.password}@127.0.0.1:{forwarder.port}/?read-timeout=0.4&connect-timeout=0.4"
    address = parse_mysql_url(base)
    connection, scanning = connect(address), connect(address)
    position = log_end(connection, address, 0)
    monkeypatch.setattr(stream_module, "_HEARTBEAT_S", 60)
    stream = ReplicationStream(address, position)
    schema = TableSchema(TableName("mysql", "help_topic"), (Column("name", Kind.STRING, False),), ("name",))
    batches = scan_table(scanning, address, schema, block_rows=2)
    forwarder.silent.set()
    with ends_within(2):
        connect(address)
    with ends_within(2):
        connect(parse_mysql_url(base + "&tls=required"))
    with ends_within(2):
        query(connection, address, "SELECT 1")
    with ends_within(2):
        for _ in stream.pieces():
            pass
    with ends_within(2):
        for _ in batches:
            pass
    stream.close()
    with ends_within(2):
        ReplicationStream(address, position)


def test_a_hang_in_the_tls_handshake() -> None:
    """A server that sends a greeting with TLS, and then nothing."""
    greeting = (
        b"\x0a8.4.0\0"
        + b"\1\0\0\0"
        + b"abcdefgh\0"
        + b"\xff\xff\xff\2\0\xff\xff\x15"
        + b"\0" * 10
        + b"ijklmnopqrst\0"
        + b"caching_sha2_password\0"
    )

    def greet(listener: socket.socket) -> None:
        held.append(listener.accept()[0])
        held[0].sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)

    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        with ends_within(3):
            connect(parse_mysql_url(f"mysql://u@127.0.0.1:{listener.getsockname()[1]}/?connect-timeout=0.4&tls=required"))
        thread.join()
        held[0].close()


def test_server_ids_do_not_collide(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing replica is found; a new one with the same id ends the stream, and the next try uses another id."""
    address = parse_mysql_url(server.url())
    connection = connect(address)
    position = log_end(connection, address, 0)
    chosen: list[int] = []

    def choose(taken: set[int]) -> int:
        chosen.append(choose_server_id(taken))
        return chosen[-1]

    monkeypatch.setattr(stream_module, "choose_server_id", choose)
    first = ReplicationStream(address, position)
    assert any(isinstance(piece, NewFile) for piece, _ in zip(first.pieces(), range(1), strict=False))
    listing = "SHOW SLAVE HOSTS" if server.flavour == "mariadb" else "SHOW REPLICAS"
    assert chosen[0] in {int(row[0]) for row in query(connection, address, listing)}
    monkeypatch.setattr(stream_module, "_SERVER_IDS", range(chosen[0], chosen[0] + 2))
    second = ReplicationStream(address, position)
    assert chosen[1] == chosen[0] + 1
    # A replica that does not check: MariaDB ends the older one, which reports it and reconnects with another id.
    monkeypatch.setattr(stream_module, "choose_server_id", lambda _: chosen[0])
    thief = ReplicationStream(address, position)
    if server.flavour == "mariadb":
        with pytest.raises(TransientError, match="another replica uses the same server id"):
            for _ in first.pieces():
                pass
    else:
        # MySQL distinguishes replicas by uuid: both continue.
        assert len(query(connection, address, "SELECT 1 FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%%'")) >= 3
    for stream in (first, second, thief):
        stream.close()
    connection.close()
