"""Sends lines from tasks to the driver, which prints them.

Tasks run in other processes, on a cluster on other machines. They send their lines over a socket and wait for the driver's acknowledgement.
The driver keeps the lines of a batch in a file until the batch is complete, then prints them in the order of the log, each once. Lines of a
snapshot have no order and are printed when they arrive.

Invariants: acknowledged lines are in the driver's file or printed; a batch counts after its lines are printed; memory is bounded by one
message, the file by the batch. The driver accepts only connections with the token.
"""

from __future__ import annotations

import hmac
import logging
import mmap
import secrets
import socket
import struct
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError, TransientError
from headrace.sinks.stdout.encoder import Lines
from headrace.sinks.stdout.output import NO_FRAME, Output, OutputFrame, reader_left

log = logging.getLogger("headrace")

_TOKEN_BYTES: Final = 32
_HEAD: Final = struct.Struct("<BIQ")
"""Whether the lines wait for their batch and have transactions (`_WAITS`, `_GROUPED`), how many, and how many bytes."""
_WAITS, _GROUPED = 1, 2
_TAKEN, _LEFT, _FAILED = b"\x01", b"\x02", b"\x03"
_MOST_BYTES: Final = 8 << 20
"""Handed over at once; a single line may be longer."""
_PRINTED: Final = 4 << 20
_PATIENCE_S: Final = 600.0
"""How long a task waits for the driver; the reader of stdout may be slow."""

_receivers: dict[str, Receiver] = {}
"""Those of this process, by token."""


class Receiver:
    """The driver's end."""

    def __init__(self, output: Output, directory: Path, host: str = "127.0.0.1", frame: OutputFrame = NO_FRAME) -> None:
        self._output, self._token, self._frame = output, secrets.token_bytes(_TOKEN_BYTES), frame
        self._begun, self._beginning = not frame.preface, threading.Lock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed in `close`)
        self._turn = threading.Lock()
        self._versions: list[npt.NDArray[np.uint64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self._transactions: list[npt.NDArray[np.uint64]] = []
        self._size = 0
        self._socket = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="headrace-lines", daemon=True).start()
        _receivers[self.token] = self

    @property
    def token(self) -> str:
        return self._token.hex()

    def close(self) -> None:
        """Accept no more lines. The next run replays batches that were not printed."""
        _receivers.pop(self.token, None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._turn:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._file.close()

    def print_batch(self) -> None:
        """Print the lines that wait, in the order of the log; one that came twice, from a task that ran twice, once."""
        with self._turn:
            if not self._versions:
                return
            versions, ends = np.concatenate(self._versions), np.concatenate([np.zeros(1, np.int64), *self._ends])
            order = np.argsort(versions, kind="stable")
            order = order[np.concatenate(([True], np.diff(versions[order]) != 0))]
            self._file.flush()
            groups = np.concatenate(self._transactions)[order] if self._transactions else None
            with mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ) as content:
                self._print(content, ends, order, groups)
            self._versions.clear()
            self._ends.clear()
            self._transactions.clear()
            self._file.seek(0)
            self._file.truncate()
            self._size = 0

    def write(self, lines: bytes | memoryview) -> None:
        """Print lines, after the preface of the output."""
        with self._beginning:
            if not self._begun:
                self._output.write(self._frame.preface)
                self._begun = True
        self._output.write(lines)

    def _print(
        self,
        content: mmap.mmap,
        ends: npt.NDArray[np.int64],
        order: npt.NDArray[np.int64],
        groups: npt.NDArray[np.uint64] | None,
    ) -> None:
        lines = pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(content)])
        sizes = np.cumsum(np.diff(ends)[order])
        start = 0
        while start < len(order):
            done = int(sizes[start - 1]) if start else 0
            stop = max(int(np.searchsorted(sizes, done + _PRINTED, side="right")), start + 1)
            piece = lines.take(pa.array(order[start:stop]))
            if groups is not None:
                piece = self._framed(piece, groups, start, stop)
            offsets = np.frombuffer(piece.buffers()[1], dtype=np.int64, count=len(piece) + 1 + piece.offset)[piece.offset :]
            self.write(memoryview(piece.buffers()[2])[offsets[0] : offsets[-1]])
            del piece
            start = stop
        # (The map cannot be closed while an array looks at it.)
        del lines

    def _framed(self, piece: Any, groups: npt.NDArray[np.uint64], start: int, stop: int) -> Any:
        changes = np.concatenate(([True], np.diff(groups) != 0, [True]))
        nothing, kind = pa.scalar(b"", pa.large_binary()), pa.large_binary()
        before = pc.if_else(pa.array(changes[start:stop]), pa.scalar(self._frame.before_transaction, kind), nothing)
        after = pc.if_else(pa.array(changes[start + 1 : stop + 1]), pa.scalar(self._frame.after_transaction, kind), nothing)
        return pc.binary_join_element_wise(before, piece, after, nothing)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with self._turn:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="headrace-lines", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb", buffering=1 << 20) as stream:
                if not hmac.compare_digest(stream.read(_TOKEN_BYTES), self._token):
                    log.warning("a client without the token connected to the port where tasks deliver their lines")
                    return
                while head := stream.read(_HEAD.size):
                    connection.sendall(self._take(stream, *_HEAD.unpack(head)))
        except (OSError, EOFError, struct.error) as error:
            # The task was killed: its batch is replayed.
            log.debug("a task left while it handed over lines: %s", error)
        finally:
            with self._turn:
                self._open.discard(connection)

    def _take(self, stream: Any, flags: int, count: int, size: int) -> bytes:
        versions = np.frombuffer(_exactly(stream, count * 8), np.uint64)
        ends = np.frombuffer(_exactly(stream, count * 8), np.int64)
        transactions = np.frombuffer(_exactly(stream, count * 8), np.uint64) if flags & _GROUPED else None
        text = _exactly(stream, size)
        if self._output.left:
            return _LEFT
        if not flags & _WAITS:
            try:
                self.write(self._frame.before_transaction + text + self._frame.after_transaction)
            except DefiniteError as error:
                if self._output.left:
                    return _LEFT
                log.error("%s", error.message)
                return _FAILED
            return _TAKEN
        with self._turn:
            self._file.seek(self._size)
            self._file.write(text)
            self._versions.append(versions)
            if transactions is not None:
                self._transactions.append(transactions)
            self._ends.append(ends + self._size)
            self._size += size
        return _TAKEN


def print_batch(token: str) -> None:
    """Print what tasks have handed over for the batch that is done."""
    _receivers[token].print_batch()


def print_line(token: str, line: bytes) -> None:
    _receivers[token].write(line)


class Sender:
    """A task's end."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address, self._token = address, bytes.fromhex(token)
        self._socket: socket.socket | None = None

    def send(self, lines: Lines, *, waits: bool) -> None:
        """Hand lines over; when it returns, the driver has them."""
        for part, versions, transactions in _parts(lines):
            offsets = np.frombuffer(part.buffers()[1], dtype=np.int64, count=len(part) + 1 + part.offset)[part.offset :]
            text = memoryview(part.buffers()[2])[offsets[0] : offsets[-1]]
            ends = np.ascontiguousarray(offsets[1:] - offsets[0])
            flags = _WAITS * waits | _GROUPED * (transactions is not None)
            grouped = () if transactions is None else (transactions,)
            self._hand_over(_HEAD.pack(flags, len(part), len(text)), versions, ends, *grouped, text)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _hand_over(self, *parts: Any) -> None:
        try:
            connection = self._connected()
            for part in parts:
                connection.sendall(part)
            answer = connection.recv(1)
        except OSError as error:
            self.close()
            raise TransientError(f"the driver does not take lines: {error}", place="stdout") from error
        if answer == _LEFT:
            raise reader_left()
        if answer == _FAILED:
            raise DefiniteError("the output cannot be written", place="stdout", hint="see the line before this one; give it more room")
        if answer != _TAKEN:
            self.close()
            raise TransientError("the driver does not take lines any more", place="stdout")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_PATIENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(self._token)
        return self._socket


def _parts(lines: Lines) -> Any:
    text = lines.text.cast(pa.large_binary())
    sizes = np.cumsum(pc.binary_length(text).to_numpy(zero_copy_only=False))
    versions = np.ascontiguousarray(lines.version.to_numpy())
    start = 0
    while start < len(text):
        done = int(sizes[start - 1]) if start else 0
        stop = max(int(np.searchsorted(sizes, done + _MOST_BYTES, side="right")), start + 1)
        transactions = None if lines.transaction is None else np.ascontiguousarray(lines.transaction[start:stop])
        yield text.slice(start, stop - start), versions[start:stop], transactions
        start = stop


def _exactly(stream: Any, size: int) -> bytes:
    found: bytes = stream.read(size)
    if len(found) != size:
        raise EOFError("the connection ended")
    return found
