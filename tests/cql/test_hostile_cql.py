"""CQL servers that attack their client: an error in bounded memory and time, never a traceback.

Each attack is a function over one accepted connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from cassandra.connection import ConnectionShutdown, DefaultEndPoint

from headrace.cql.address import parse_cql_url
from headrace.cql.bounded_connection import BoundedCqlConnection, check_rows
from headrace.cql.session import connect
from headrace.errors import DefiniteError, HeadraceError
from testkit.faults.hostile_server import bounded, hostile_port, receive_exactly

Attack = Callable[["Client"], None]

_SUPPORTED, _READY, _ERROR, _RESULT, _EVENT = 0x06, 0x02, 0x00, 0x08, 0x0C


@dataclass
class Client:
    """The other end of one connection."""

    connection: socket.socket
    stream: int = 0

    def receive(self) -> bytes:
        """The body of the next request."""
        head = receive_exactly(self.connection, 9)
        self.stream = struct.unpack(">h", head[2:4])[0]
        return receive_exactly(self.connection, struct.unpack(">i", head[5:9])[0])

    def send(self, opcode: int, body: bytes, *, length: int | None = None, flags: int = 0, stream: int | None = None) -> None:
        number = self.stream if stream is None else stream
        size = len(body) if length is None else length
        self.connection.sendall(struct.pack(">BBhBi", 0x84, flags, number, opcode, size) + body)

    def accept(self) -> None:
        """The handshake, and the first statement."""
        self.receive()
        self.send(_SUPPORTED, struct.pack(">H", 2) + _list("CQL_VERSION", "3.4.5") + _list("COMPRESSION", "lz4"))
        self.receive()
        self.send(_READY, b"")
        self.receive()


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _list(name: str, *values: str) -> bytes:
    return _string(name) + struct.pack(">H", len(values)) + b"".join(map(_string, values))


_UP: Final = _string("STATUS_CHANGE") + _string("UP") + b"\x04\x7f\0\0\x01" + struct.pack(">i", 9042)
EVENT_FRAME: Final = struct.pack(">BBhBi", 0x84, 0, -1, _EVENT, len(_UP)) + _UP
"""A message without a request: a node is up."""


def huge_frame(client: Client) -> None:
    """A frame of 2^31 - 1 bytes."""
    client.receive()
    client.send(_SUPPORTED, b"", length=0x7FFFFFFF)
    while True:
        client.connection.sendall(bytes(1 << 20))


def negative_frame(client: Client) -> None:
    client.receive()
    client.send(_SUPPORTED, b"", length=-5)
    client.receive()


def no_cql(client: Client) -> None:
    client.receive()
    client.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client.receive()


def cut_map(client: Client) -> None:
    """A map of 65,535 strings in a few bytes."""
    client.receive()
    client.send(_SUPPORTED, b"\xff\xff\xff\xff")
    client.receive()


def wrong_message(client: Client) -> None:
    """A result where the options are due."""
    client.receive()
    client.send(_RESULT, struct.pack(">i", 1))
    client.receive()


def endless_events(client: Client) -> None:
    """Unrequested frames without an end."""
    client.receive()
    while True:
        client.connection.sendall(EVENT_FRAME)


def silence(client: Client) -> None:
    """No answer."""
    client.receive()
    client.receive()


def huge_result_frame(client: Client) -> None:
    client.accept()
    client.send(_RESULT, b"", length=0x7FFFFFFF)
    client.receive()


def compressed_claim(client: Client) -> None:
    """A compressed frame that claims 2 GiB."""
    client.accept()
    client.send(_RESULT, struct.pack(">I", 0x7FFFFFFF) + b"\0" * 20, flags=1)
    client.receive()


def unknown_opcode(client: Client) -> None:
    client.accept()
    client.send(0x77, b"")
    client.receive()


def cut_rows(client: Client) -> None:
    """Fewer rows than announced."""
    client.accept()
    client.send(_RESULT, struct.pack(">iii", 2, 1, 1) + _string("k") + _string("t") + _string("c") + struct.pack(">Hi", 9, 0x7FFFFFFF))
    client.receive()


def many_columns(client: Client) -> None:
    client.accept()
    client.send(_RESULT, struct.pack(">iii", 2, 1, 0x7FFFFFFF) + _string("k") + _string("t"))
    client.receive()


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        huge_frame,
        negative_frame,
        no_cql,
        cut_map,
        wrong_message,
        endless_events,
        huge_result_frame,
        compressed_claim,
        unknown_opcode,
        cut_rows,
        many_columns,
    )
}


@contextlib.contextmanager
def hostile_cql(attack: Attack) -> Iterator[int]:
    """The port of a server that does this to every client."""
    with hostile_port(lambda connection: attack(Client(connection))) as port:
        yield port


_WAITED = ("endless_events",)
"""Attacks without an answer: the timeout is a transient error."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_an_error(name: str) -> None:
    # Long enough for a busy machine: a timeout is a transient error.
    patience_s = 3 if name in _WAITED else 30
    with bounded(900), hostile_cql(ATTACKS[name]) as port, pytest.raises(HeadraceError) as caught:
        connect(parse_cql_url(f"cql://127.0.0.1:{port}/k?connect-timeout={patience_s}&read-timeout={patience_s}"))
    assert name in _WAITED or isinstance(caught.value, DefiniteError), caught.value
    assert caught.value.hint


def test_frames_of_a_closed_connection_are_dropped() -> None:
    """All connections of the process share the driver's thread. A flood that it decoded to the end would delay the others for minutes."""
    with hostile_cql(silence) as port, bounded(900, 10):
        connection = BoundedCqlConnection(DefaultEndPoint("127.0.0.1", port), protocol_version=4)
        connection._io_buffer.io_buffer.write(EVENT_FRAME * 20_000)
        connection.close()
        with pytest.raises(ConnectionShutdown):
            connection.process_io_buffer()
        with pytest.raises(ConnectionShutdown):
            connection._io_buffer.io_buffer.write(EVENT_FRAME)


@pytest.mark.parametrize(
    ("rows", "columns", "left"), [(-1, 1, 100), (26, 1, 100), (1 << 31, 0, 100), (1, 70_000, 1 << 30), (4 << 20, 1, 1 << 30)]
)
def test_impossible_row_counts_are_rejected(rows: int, columns: int, left: int) -> None:
    with pytest.raises(Exception, match="CQL's protocol"):
        check_rows(rows, columns, left)


def test_rows_of_a_page_are_taken() -> None:
    check_rows(5000, 200, 5000 * 200 * 4)
    check_rows(0, 0, 0)


@pytest.mark.parametrize("command", ["check", "tail"])
def test_commands_end_with_an_error_and_without_a_traceback(command: str) -> None:
    with hostile_cql(ATTACKS["cut_rows"]) as port:
        arguments = [command, f"scylla://127.0.0.1:{port}/k?connect-timeout=3", *(["--once"] if command == "tail" else [])]
        done = subprocess.run([sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "CQL's protocol" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
