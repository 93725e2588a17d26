"""ClickHouse's compression of HTTP bodies (`compress=1`, `decompress=1`): LZ4 or ZSTD blocks with a CityHash128 checksum.

A block is: 16 bytes of checksum over the rest, one byte of method, the compressed size (including the 9 header bytes) and the plain size,
both 32 bit little-endian, then the data.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
from clickhouse_cityhash.cityhash import CityHash128

from headrace.embedded.engine.errors import CANNOT_DECOMPRESS, CHECKSUM_DOESNT_MATCH, UNKNOWN_COMPRESSION_METHOD, clickhouse_error
from headrace.http.request import Readable

_HEADER: Final = struct.Struct("<BII")
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90
_MAX_BLOCK: Final = 64 << 20
"""Clients send blocks of about 1 MiB; each is held twice while it is decompressed."""
_LZ4_GROWTH: Final = 256
_BLOCK: Final = 1 << 20


class FrameReader:
    """Decompresses a body of blocks."""

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
            raise clickhouse_error(CANNOT_DECOMPRESS, f"Impossible block sizes {packed_size} and {plain_size} in the request body")
        if method == _LZ4 and plain_size > packed_size * _LZ4_GROWTH:
            raise clickhouse_error(CANNOT_DECOMPRESS, f"A block of {packed_size} bytes cannot hold {plain_size} in the request body")
        data = self._take(packed_size - _HEADER.size)
        if self._verify and cityhash128(head + data) != checksum:
            raise clickhouse_error(CHECKSUM_DOESNT_MATCH, "Checksum doesn't match: corrupted data in the request body")
        return _unpack(method, data, plain_size)

    def _take(self, size: int, at_boundary: bool = False) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            piece = self._body.read(size - len(taken))
            if not piece:
                if at_boundary and not taken:
                    return b""
                raise clickhouse_error(CANNOT_DECOMPRESS, "The compressed request body is cut off")
            taken += piece
        return bytes(taken)


class FrameWriter:
    """Compresses plain bytes to blocks."""

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
        raise clickhouse_error(UNKNOWN_COMPRESSION_METHOD, f"Unknown compression method 0x{method:02x} of a block in the request body")
    try:
        return bytes(pa.decompress(data, decompressed_size=plain_size, codec=codec, asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise clickhouse_error(CANNOT_DECOMPRESS, f"Cannot decompress a block of the request body: {error}") from error
