"""HTTP servers that attack their client, for fault injection: a ClickHouse server or a schema registry that is hostile or broken.

Each attack is a function over one accepted connection. `before` lets the first requests through to a real server, so that an attack can
begin after the client has connected.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import lz4.frame
import pyarrow as pa

from testkit.faults.hostile_server import hostile_port

Attack = Callable[["Client"], None]

_BLOCK: Final = bytes(1 << 20)
_OK: Final = b"HTTP/1.1 200 OK\r\nX-ClickHouse-Format: Native\r\n"
_CLOSE: Final = b"Connection: close\r\n\r\n"


@dataclass
class Client:
    """The other end of one connection."""

    connection: socket.socket
    request: bytes = b""
    """The line, the headers and the body of the last request."""
    received: bytearray = field(default_factory=bytearray)

    def receive(self) -> bytes:
        """The next request."""
        while b"\r\n\r\n" not in self.received:
            self._more()
        head = bytes(self.received).partition(b"\r\n\r\n")[0]
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        size = int(lengths[0]) if lengths else 0
        while len(self.received) < len(head) + 4 + size:
            self._more()
        self.request = bytes(self.received[: len(head) + 4 + size])
        del self.received[: len(self.request)]
        return self.request

    def _more(self) -> None:
        piece = self.connection.recv(1 << 16)
        if not piece:
            raise ConnectionError
        self.received += piece

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def send_for_ever(self, data: bytes, pause_s: float = 0) -> None:
        while True:
            self.connection.sendall(data)
            if pause_s:
                time.sleep(pause_s)

    def answer(self, body: bytes, headers: bytes = b"", status: bytes = b"200 OK") -> None:
        self.send(b"HTTP/1.1 " + status + b"\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def forward(self, port: int) -> None:
        """Forward the request to the server on this port."""
        head, _, body = self.request.partition(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as real:
            real.request(method, target, body, headers | {"Host": f"127.0.0.1:{port}"})
            found = real.getresponse()
            kept = ("X-ClickHouse-Exception-Code", "X-ClickHouse-Format", "X-ClickHouse-Timezone", "Content-Type")
            lines = b"".join(f"{name}: {found.headers[name]}\r\n".encode() for name in kept if name in found.headers)
            self.answer(found.read(), lines, f"{found.status} {found.reason}".encode())


def endless_body(client: Client) -> None:
    """A body without a length and without an end."""
    client.send(_OK + _CLOSE)
    client.send_for_ever(_BLOCK)


def endless_chunk(client: Client) -> None:
    """One chunk of 2^60 bytes."""
    client.send(_OK + b"Transfer-Encoding: chunked\r\n\r\n1000000000000000\r\n")
    client.send_for_ever(_BLOCK)


def huge_length(client: Client) -> None:
    """A body with a declared length of 100 GB."""
    client.send(_OK + b"Content-Length: 107374182400\r\n\r\n")
    client.send_for_ever(_BLOCK)


def endless_headers(client: Client) -> None:
    """Headers without an end."""
    client.send(_OK)
    client.send_for_ever(b"X-ClickHouse-Progress: " + b"9" * 60_000 + b"\r\n")


def endless_header_line(client: Client) -> None:
    """One header without an end."""
    client.send(_OK + b"X-ClickHouse-Progress: ")
    client.send_for_ever(_BLOCK)


def endless_continue(client: Client) -> None:
    """Interim answers without an end."""
    client.send_for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def endless_error(client: Client) -> None:
    """An error whose text does not end."""
    client.send(b"HTTP/1.1 500 Error\r\nX-ClickHouse-Exception-Code: 62\r\n" + _CLOSE)
    client.send_for_ever(b"x" * (1 << 20))


def huge_error_code(client: Client) -> None:
    """An error's number with more digits than Python parses."""
    client.answer(b"Code: 62. DB::Exception: no", b"X-ClickHouse-Exception-Code: " + b"9" * 5000 + b"\r\n", b"500 Error")


def gzip_bomb(client: Client) -> None:
    client.answer(gzip_zeros(8 << 10), b"Content-Encoding: gzip\r\n")


def deflate_bomb(client: Client) -> None:
    client.answer(deflate_zeros(8 << 10), b"Content-Encoding: deflate\r\n")


def zstd_bomb(client: Client) -> None:
    client.answer(pa.compress(_BLOCK * 64, "zstd", asbytes=True) * 128, b"Content-Encoding: zstd\r\n")


def error_bomb(client: Client) -> None:
    """The text of an error, compressed."""
    client.answer(gzip_zeros(8 << 10), b"X-ClickHouse-Exception-Code: 62\r\nContent-Encoding: gzip\r\n", b"500 Error")


def lz4_bomb(client: Client) -> None:
    """LZ4, which clients request: a String of 8 GiB in 32 MB."""
    packed = lz4.frame.compress(bytes(16 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    client.send(_OK + b"Content-Encoding: lz4\r\nTransfer-Encoding: chunked\r\n\r\n")
    start = lz4.frame.compress(native_head(1, 1, "a", "String") + leb128(8 << 30))
    for piece in (start, *[packed] * 512):
        client.send(b"%x\r\n" % len(piece) + piece + b"\r\n")
    client.send(b"0\r\n\r\n")


def endless_redirect(client: Client) -> None:
    """Sends the client, with its password, to another address."""
    client.answer(b"", b"Location: http://localhost:1/?x\r\n", b"302 Found")


def slow_headers(client: Client) -> None:
    """A header now and then, always before a single read would time out."""
    client.send(_OK)
    client.send_for_ever(b"X-ClickHouse-Progress: {}\r\n", 0.2)


def slow_body(client: Client) -> None:
    """A byte now and then."""
    client.send(_OK + b"Content-Length: 1000000\r\n\r\n")
    client.send_for_ever(b"\x01", 0.2)


def negative_length(client: Client) -> None:
    client.send(_OK + b"Content-Length: -5\r\n" + _CLOSE)
    client.send_for_ever(_BLOCK)


def bad_chunks(client: Client) -> None:
    client.send(_OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    client.receive()


def not_http(client: Client) -> None:
    client.send(b"\x00\x01\x02 no HTTP at all\r\n\r\n")
    client.receive()


def not_text(client: Client) -> None:
    """Bytes that are not UTF-8 where text is expected."""
    client.answer(b"\xff\xfe\xfd\n")


def empty(client: Client) -> None:
    client.answer(b"")


def many_rows(client: Client) -> None:
    """A block of 2^40 rows that take no bytes."""
    client.answer(native_head(1, 1 << 40, "a", "FixedString(0)"))


def many_small_rows(client: Client) -> None:
    """Rows that are small on the wire and large in memory."""
    client.answer(native_head(1, 48 << 20, "a", "UInt8") + bytes(48 << 20))


def many_columns(client: Client) -> None:
    """A block of 2^60 columns."""
    client.send(_OK + _CLOSE + leb128(1 << 60) + leb128(0))
    client.send_for_ever(b"\x01a\x05UInt8" * 100_000)


def huge_string(client: Client) -> None:
    """A value of 2^62 bytes."""
    client.answer(native_head(1, 1, "a", "String") + leb128(1 << 62) + b"x")


def huge_array(client: Client) -> None:
    """An array of 2^62 elements."""
    client.answer(native_head(1, 1, "a", "Array(UInt8)") + struct.pack("<Q", 1 << 62))


def deep_type(client: Client) -> None:
    """A type within types within types."""
    client.answer(native_head(1, 1, "a", "Array(" * 50_000 + "UInt8" + ")" * 50_000))


def unknown_type(client: Client) -> None:
    client.answer(native_head(1, 1, "a", "Surprise(1)") + b"\x01")


def endless_number(client: Client) -> None:
    """A varint without an end."""
    client.send(_OK + _CLOSE)
    client.send_for_ever(b"\xff" * (1 << 16))


def leb128(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def native_head(columns: int, rows: int, name: str, kind: str) -> bytes:
    """A block of ClickHouse's format Native, up to the values of its first column."""
    sized = b"".join(leb128(len(part)) + part.encode() for part in (name, kind))
    return leb128(columns) + leb128(rows) + sized


def gzip_zeros(mib: int) -> bytes:
    """So many MiB of zeros, in members of 1 MiB."""
    return gzip.compress(_BLOCK, 9) * mib


def deflate_zeros(mib: int) -> bytes:
    """So many MiB of zeros in one stream."""
    packer = zlib.compressobj(9)
    first = packer.compress(_BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    # Every later piece is packed into the same bytes.
    return first + (packer.compress(_BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)) * (mib - 1)


HTTP_ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        endless_body,
        endless_chunk,
        huge_length,
        endless_headers,
        endless_header_line,
        endless_continue,
        endless_error,
        gzip_bomb,
        deflate_bomb,
        zstd_bomb,
        error_bomb,
        endless_redirect,
        slow_headers,
        slow_body,
        negative_length,
        bad_chunks,
        not_http,
        not_text,
        empty,
    )
}
"""Attacks by any HTTP server."""
NATIVE_ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        huge_error_code,
        lz4_bomb,
        many_rows,
        many_small_rows,
        many_columns,
        huge_string,
        huge_array,
        deep_type,
        unknown_type,
        endless_number,
    )
}
"""Attacks by a ClickHouse server: error numbers, and the Native format."""


@contextlib.contextmanager
def hostile_http(attack: Attack, *, real: int = 0, on: bytes = b"") -> Iterator[int]:
    """Return the port of a server that does this to every request whose text contains `on`; a real server responds to the others."""

    def serve(connection: socket.socket) -> None:
        client = Client(connection)
        while True:
            client.receive()
            if on in client.request:
                attack(client)
            else:
                client.forward(real)

    with hostile_port(serve) as port:
        yield port
