"""Content codings: what clients may send, and what the engine may answer with.

Requests are decoded here, in pieces; a stream that ends in the middle of a coding unit is an error, never a shorter body. Responses are
coded by the engine itself while it writes, so no result is compressed twice or held for compressing.
"""

from __future__ import annotations

import lzma
import zlib
from typing import Final, Protocol

import pyarrow as pa

from headrace.embedded.failures import CANNOT_DECOMPRESS, UNKNOWN_COMPRESSION_METHOD, refuse
from headrace.embedded.wire import Readable

# What this engine can write (bz2 it only reads), cheap first; its names for them are HTTP's.
_ANSWER_CODINGS: Final = ("lz4", "zstd", "gzip", "deflate", "br", "xz")
_ARROW_CODECS: Final = {"gzip": "gzip", "x-gzip": "gzip", "br": "brotli", "lz4": "lz4", "zstd": "zstd", "bz2": "bz2"}


def choose_coding(accept_encoding: str) -> str:
    """The coding to answer in, of those the client accepts; empty for none."""
    accepted = set()
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.add(name.strip())
    return next((name for name in _ANSWER_CODINGS if name in accepted), "")


def decode(body: Readable, coding: str) -> Readable:
    """`body` without its content coding."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in _ARROW_CODECS:
        return _ArrowDecoder(body, _ARROW_CODECS[name])
    if name == "deflate":
        return _StepDecoder(body, zlib.decompressobj())
    if name == "xz":
        return _StepDecoder(body, lzma.LZMADecompressor())
    raise refuse(UNKNOWN_COMPRESSION_METHOD, f"Unknown compression method: {coding}")


class _Source:
    """A body in the shape of a file, for pyarrow."""

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
            raise refuse(CANNOT_DECOMPRESS, f"Cannot decompress the request body: {error}") from error
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise refuse(CANNOT_DECOMPRESS, f"Cannot decompress the request body: {error}") from error


class _Step(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _StepDecoder:
    def __init__(self, body: Readable, step: _Step) -> None:
        self._body = body
        self._step = step

    def read(self, size: int) -> bytes:
        while not self._step.eof:
            piece = self._body.read(size)
            if not piece:
                raise refuse(CANNOT_DECOMPRESS, "Cannot decompress the request body: it is cut off")
            try:
                out = self._step.decompress(piece)
            except (zlib.error, lzma.LZMAError) as error:
                raise refuse(CANNOT_DECOMPRESS, f"Cannot decompress the request body: {error}") from error
            if out:
                return out
        return b""
