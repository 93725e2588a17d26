"""Encodings of requests and responses: HTTP's content encodings, and ClickHouse's own blocks (`compress=1`, `decompress=1`).

Requests are decoded here in pieces of bounded size, so memory does not depend on the client. A body that expands too much is rejected,
because its rows are spooled to disk. A truncated stream is an error, never a shorter body. The engine itself writes content encodings of
responses, so no result is compressed twice or buffered for compression.

A block of ClickHouse is: 16 bytes of CityHash128 over the rest, one byte of method, the compressed size (including the 9 header bytes) and
the plain size, both 32 bit little-endian, then the data.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from clickhouse_cityhash.cityhash import CityHash128

from headrace.embedded.engine.errors import ErrorCode, QueryFailure
from headrace.http.request import PIECE, Readable

# Encodings that the engine can write (it only reads bz2), cheapest first.
_ANSWER_CODINGS: Final = ("lz4", "zstd", "gzip", "deflate", "br", "xz")
_XZ_MEMORY: Final = 128 << 20
"""Limit of a decoder's dictionary; the strongest preset of xz needs 65 MiB."""
_GROWTH: Final = 1000
_FREE_BYTES: Final = 256 << 20
"""A body may always expand to this size; beyond it, to at most `_GROWTH` times the compressed size."""
_ARROW_CODECS: Final = {"gzip": "gzip", "x-gzip": "gzip", "br": "brotli", "lz4": "lz4", "zstd": "zstd", "bz2": "bz2"}


def choose_coding(accept_encoding: str) -> str:
    """Return the encoding of the response, among those the client accepts; empty for none."""
    accepted = set()
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip())
    return next((name for name in _ANSWER_CODINGS if name in accepted), "")


def decode(body: Readable, coding: str) -> Readable:
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in _ARROW_CODECS:
        return bounded(body, lambda source: _ArrowDecoder(source, _ARROW_CODECS[name]))
    if name == "deflate":
        return bounded(body, _DeflateDecoder)
    if name == "xz":
        return bounded(body, _XzDecoder)
    raise ErrorCode.UNKNOWN_COMPRESSION_METHOD.failure(f"Unknown compression method: {coding}")


def bounded(body: Readable, decoder: Callable[[Readable], Readable]) -> Readable:
    """Return `body` through a decoder whose output must stay in proportion to its input."""
    counted = _CountedBody(body)
    return _Bounded(decoder(counted), counted)


class _CountedBody:
    def __init__(self, body: Readable) -> None:
        self._body = body
        self.total = 0

    def read(self, size: int) -> bytes:
        piece = self._body.read(size)
        self.total += len(piece)
        return piece


class _Bounded:
    def __init__(self, decoder: Readable, source: _CountedBody) -> None:
        self._decoder = decoder
        self._source = source
        self._total = 0

    def read(self, size: int) -> bytes:
        piece = self._decoder.read(min(size, PIECE))
        self._total += len(piece)
        if self._total > max(_FREE_BYTES, self._source.total * _GROWTH):
            raise ErrorCode.CANNOT_DECOMPRESS.failure(
                f"The request body grows more than {_GROWTH} times; send it without compression, or in parts"
            )
        return piece


class _Source:
    """A body as a file object for pyarrow."""

    closed = False

    def __init__(self, body: Readable) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        return self._body.read(size)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class _ArrowDecoder:
    def __init__(self, body: Readable, codec: str) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(_Source(body), mode="r"), codec)

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except pa.ArrowException as error:
            raise _broken(error) from error
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise _broken(error) from error


class _DeflateDecoder:
    def __init__(self, body: Readable) -> None:
        self._body = body
        self._step = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        while not self._step.eof:
            piece = self._step.unconsumed_tail or self._body.read(size)
            if not piece:
                raise _cut_off()
            try:
                out = self._step.decompress(piece, size)
            except zlib.error as error:
                raise _broken(error) from error
            if out:
                return out
        return b""


class _XzDecoder:
    def __init__(self, body: Readable) -> None:
        self._body = body
        self._step = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        while not self._step.eof:
            piece = self._body.read(size) if self._step.needs_input else b""
            if not piece and self._step.needs_input:
                raise _cut_off()
            try:
                out = self._step.decompress(piece, size)
            except lzma.LZMAError as error:
                raise _broken(error) from error
            if out:
                return out
        return b""


def _cut_off() -> QueryFailure:
    return ErrorCode.CANNOT_DECOMPRESS.failure("Cannot decompress the request body: it is cut off")


def _broken(error: Exception) -> QueryFailure:
    return ErrorCode.CANNOT_DECOMPRESS.failure(f"Cannot decompress the request body: {error}")


_HEADER: Final = struct.Struct("<BII")
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90
_MAX_BLOCK: Final = 64 << 20
"""Clients send blocks of about 1 MiB; each is held twice while it is decompressed."""
_LZ4_GROWTH: Final = 256
_BLOCK: Final = 1 << 20


class FrameReader:
    def __init__(self, body: Readable, verify: bool) -> None:
        self._body = body
        self._verify = verify
        self._plain = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._plain:
            checksum = self._take(16, at_boundary=True)
            if not checksum:
                return b""
            self._plain = memoryview(self._block(checksum))
        piece, self._plain = bytes(self._plain[:size]), self._plain[size:]
        return piece

    def _block(self, checksum: bytes) -> bytes:
        head = self._take(_HEADER.size)
        method, packed_size, plain_size = _HEADER.unpack(head)
        if not _HEADER.size <= packed_size <= _MAX_BLOCK or plain_size > _MAX_BLOCK:
            raise ErrorCode.CANNOT_DECOMPRESS.failure(f"Impossible block sizes {packed_size} and {plain_size} in the request body")
        if method == _LZ4 and plain_size > packed_size * _LZ4_GROWTH:
            raise ErrorCode.CANNOT_DECOMPRESS.failure(f"A block of {packed_size} bytes cannot hold {plain_size} in the request body")
        data = self._take(packed_size - _HEADER.size)
        if self._verify and cityhash128(head + data) != checksum:
            raise ErrorCode.CHECKSUM_DOESNT_MATCH.failure("Checksum doesn't match: corrupted data in the request body")
        return _unpack(method, data, plain_size)

    def _take(self, size: int, at_boundary: bool = False) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            piece = self._body.read(size - len(taken))
            if not piece:
                if at_boundary and not taken:
                    return b""
                raise ErrorCode.CANNOT_DECOMPRESS.failure("The compressed request body is cut off")
            taken += piece
        return bytes(taken)


class FrameWriter:
    def __init__(self, source: Readable) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        plain = self._source.read(min(size, _BLOCK))
        if not plain:
            return b""
        data: bytes = pa.compress(plain, codec="lz4_raw", asbytes=True)
        block = _HEADER.pack(_LZ4, len(data) + _HEADER.size, len(plain)) + data
        return cityhash128(block) + block


def cityhash128(data: bytes) -> bytes:
    """Return the checksum as ClickHouse writes it: two words, little-endian."""
    return struct.pack("<QQ", *divmod(CityHash128(data), 1 << 64))


def _unpack(method: int, data: bytes, plain_size: int) -> bytes:
    if method == _NONE:
        return data
    codec = {_LZ4: "lz4_raw", _ZSTD: "zstd"}.get(method)
    if codec is None:
        raise ErrorCode.UNKNOWN_COMPRESSION_METHOD.failure(f"Unknown compression method 0x{method:02x} of a block in the request body")
    try:
        return bytes(pa.decompress(data, decompressed_size=plain_size, codec=codec, asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise ErrorCode.CANNOT_DECOMPRESS.failure(f"Cannot decompress a block of the request body: {error}") from error
