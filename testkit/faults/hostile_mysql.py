"""A MySQL server that attacks its client, for fault injection: each attack is a function over one accepted connection.

It implements the part of the protocol that the attacks need. It listens on loopback, serves each connection in a thread, and ends with the
`with` block.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from testkit.faults.hostile_server import hostile_port, receive_exactly

Attack = Callable[["Client"], None]

_CAPABILITIES: Final = 0x000FF7DF | 0x00080000
_FULL: Final = 0xFFFFFF


class Client:
    """The other end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.number = connection, 0

    def send(self, payload: bytes, number: int | None = None) -> None:
        """One packet, or the whole ones of a longer payload."""
        self._connection.sendall(struct.pack("<I", len(payload))[:3] + bytes([self.number if number is None else number % 256]) + payload)
        self.number = (self.number + 1) % 256

    def send_raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def receive(self) -> bytes:
        header = receive_exactly(self._connection, 4)
        self.number = (header[3] + 1) % 256
        return receive_exactly(self._connection, int.from_bytes(header[:3], "little"))

    def greet(self, plugin: bytes = b"mysql_native_password") -> None:
        """The first packet of the handshake; then the client's answer is read."""
        self.number = 0
        low, high = struct.pack("<H", _CAPABILITIES & 0xFFFF), struct.pack("<H", _CAPABILITIES >> 16)
        salt = b"12345678", b"123456789012\0"
        self.send(
            b"\x0a9.7.0\0"
            + struct.pack("<I", 1)
            + salt[0]
            + b"\0"
            + low
            + b"\x2d\x02\0"
            + high
            + b"\x15"
            + bytes(10)
            + salt[1]
            + plugin
            + b"\0"
        )
        self.receive()

    def accept(self) -> None:
        """Complete the handshake."""
        self.greet()
        self.ok()

    def ok(self) -> None:
        self.send(b"\0\0\0\x02\0\0\0")

    def statement(self) -> bytes:
        """Return the next statement, without those that configure the session."""
        while True:
            text = self.receive()[1:]
            if not text.upper().startswith((b"SET ", b"ROLLBACK", b"COMMIT")):
                return text
            self.ok()

    def columns(self, count: int = 1) -> None:
        """A result's head."""
        self.send(bytes([count]))
        for _ in range(count):
            self.definition()
        self.send(b"\xfe\0\0\x02\0")

    def definition(self) -> None:
        name = b"\x01c"
        self.send(b"\x03def\0\0\0" + name + name + b"\x0c\x2d\0\xff\xff\0\0\xfd\0\0\0\0\0")


def local_infile(client: Client) -> None:
    """Asks for a file of the client's machine."""
    client.accept()
    client.statement()
    client.send(b"\xfb/etc/passwd")
    client.receive()


def endless_packet(client: Client) -> None:
    """One row without an end: 16 MB packets, each marked as continued."""
    client.accept()
    client.statement()
    client.columns()
    block = bytes(_FULL)
    while True:
        client.send(block)


def endless_handshake(client: Client) -> None:
    """The same before authentication."""
    block = b"\x0a" + b"9" * (_FULL - 1)
    while True:
        client.send(block)


def endless_rows(client: Client) -> None:
    """A result that does not end."""
    client.accept()
    client.statement()
    client.columns()
    row = b"\xfd\0\0\x04" + b"x" * (4 << 16)
    while True:
        client.send(row)


def endless_small_rows(client: Client) -> None:
    """The same of rows that are small on the wire and large in memory."""
    client.accept()
    client.statement()
    client.columns(250)
    row = bytes([1, 120]) * 250
    while True:
        client.send(row)


def huge_column_count(client: Client) -> None:
    """A result of 2^63 columns, and definitions without an end."""
    client.accept()
    client.statement()
    client.send(b"\xfe" + struct.pack("<Q", 1 << 63))
    while True:
        client.definition()


def huge_length(client: Client) -> None:
    """A value whose length exceeds its packet."""
    client.accept()
    client.statement()
    client.columns()
    client.send(b"\xfe" + struct.pack("<Q", (1 << 64) - 1) + b"x")
    client.send(b"\xfe\0\0\x02\0")
    client.receive()


def truncated_handshake(client: Client) -> None:
    """A handshake that stops after its version."""
    client.send(b"\x0a9.7.0\0")
    client.receive()


def empty_handshake(client: Client) -> None:
    """A packet without content."""
    client.send(b"")
    client.receive()


def slow_handshake(client: Client) -> None:
    """A byte now and then, always before a single read would time out."""
    client.send_raw(struct.pack("<I", 4000))
    while True:
        client.send_raw(b"\x0a")
        time.sleep(0.3)


def slow_rows(client: Client) -> None:
    """A small row now and then, without an end."""
    client.accept()
    client.statement()
    client.columns()
    while True:
        client.send(b"\x01x")
        time.sleep(0.3)


def wrong_sequence(client: Client) -> None:
    """Packets that are numbered wrongly."""
    client.accept()
    client.statement()
    client.send(b"\x01", number=77)
    client.receive()


def switch_loop(client: Client) -> None:
    """Switches the authentication method again and again."""
    client.greet()
    while True:
        client.send(b"\xfemysql_native_password\0" + b"12345678901234567890\0")
        client.receive()


def clear_password(client: Client) -> None:
    """Requests the password in clear text over an unencrypted connection."""
    client.greet()
    client.send(b"\xfemysql_clear_password\0")
    if b"s3cr3t" in client.receive():
        STOLEN.append("mysql_clear_password")
    client.ok()
    client.receive()


def dialog(client: Client) -> None:
    """Asks for the password again and again."""
    client.greet()
    client.send(b"\xfedialog\0\x04Password: ")
    while True:
        if b"s3cr3t" in client.receive():
            STOLEN.append("dialog")
        client.send(b"\x04Password: ")


def odd_error(client: Client) -> None:
    """An error without its number."""
    client.accept()
    client.statement()
    client.send(b"\xff")
    client.receive()


def many_results(client: Client) -> None:
    """Every result announces another one."""
    client.accept()
    client.statement()
    while True:
        client.send(b"\0\0\0\x0a\0\0\0")


STOLEN: list[str] = []
"""Attacks that request the password."""
ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        local_infile,
        endless_packet,
        endless_handshake,
        endless_rows,
        endless_small_rows,
        huge_column_count,
        huge_length,
        truncated_handshake,
        empty_handshake,
        slow_handshake,
        slow_rows,
        wrong_sequence,
        switch_loop,
        clear_password,
        dialog,
        odd_error,
        many_results,
    )
}


@contextlib.contextmanager
def hostile_server(attack: Attack) -> Iterator[int]:
    """The port of a server that does this to every client."""
    STOLEN.clear()
    with hostile_port(lambda connection: attack(Client(connection))) as port:
        yield port
