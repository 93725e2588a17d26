"""Content encodings of requests and responses.

Requests are decoded here in pieces of bounded size, so memory does not depend on the client. A body that expands too much is rejected,
because its rows are spooled to disk. A truncated stream is an error, never a shorter body. The engine itself encodes responses while it
writes them, so no result is compressed twice or buffered for compression.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from headrace.embedded.engine.errors import CANNOT_DECOMPRESS, UNKNOWN_COMPRESSION_METHOD, QueryFailure, clickhouse_error
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
    """Return `body` without its content encoding."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in _ARROW_CODECS:
        return bounded(body, lambda source: _ArrowDecoder(source, _ARROW_CODECS[name]))
    if name == "deflate":
        return bounded(body, _DeflateDecoder)
    if name == "xz":
        return bounded(body, _XzDecoder)
    raise clickhouse_error(UNKNOWN_COMPRESSION_METHOD, f"Unknown compression method: {coding}")


def bounded(body: Readable, decoder: Callable[[Readable], Readable]) -> Readable:
    """Return `body` through a decoder whose output must stay in proportion to its input."""
    counted = _CountedBody(body)
    return _Bounded(decoder(counted), counted)


class _CountedBody:
    """Counts the bytes read from a body."""

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
            raise clickhouse_error(
                CANNOT_DECOMPRESS, f"The request body grows more than {_GROWTH} times; send it without compression, or in parts"
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
    return clickhouse_error(CANNOT_DECOMPRESS, "Cannot decompress the request body: it is cut off")


def _broken(error: Exception) -> QueryFailure:
    return clickhouse_error(CANNOT_DECOMPRESS, f"Cannot decompress the request body: {error}")
