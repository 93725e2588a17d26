"""A CQL server that attacks its client, for fault injection: each attack is a function over one accepted connection."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from testkit.faults.hostile_server import hostile_port, receive_exactly

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
