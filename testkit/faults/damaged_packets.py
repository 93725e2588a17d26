"""Damaged packets: the replication stream into the relay, and query results into batches, both as a socket delivers them.

The bytes are a server's; what delivers them here is not a socket, and breaks them up at random. A network's damage may also be answered
with trying again (a transient error): then nothing wrong may have been published before.
"""

from __future__ import annotations

import random
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableSchema, ZeroDates
from headrace.sources.mysql.binlog import relay as relay_module
from headrace.sources.mysql.binlog.relay import Relay
from headrace.sources.mysql.binlog.replication_client import ReplicationStream
from headrace.sources.mysql.kernels.arrow_arena import Arena, Slot
from headrace.sources.mysql.server.connection import MySQLAddress, server_errors
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot import table_scan
from testkit.faults.damage import event_starts
from testkit.faults.fences import Fenced
from testkit.generators.plausible import check_batch
from testkit.oracles.chain import FIRST
from testkit.recordings.recordings import Recording

_ADDRESS = MySQLAddress("127.0.0.1", 1, "nobody", "", "")
_BYTES = (0, 1, 2, 4, 15, 27, 250, 251, 252, 253, 254, 255)


def wound(data: bytes, draw: random.Random) -> bytes:
    """Damage one to three places, or cut the end."""
    damaged = bytearray(data)
    match draw.randrange(6):
        case 0:
            return data[: draw.randrange(len(data))]
        case 1:
            at, size = draw.randrange(len(data)), draw.randint(1, 30)
            if draw.random() < 0.5:
                del damaged[at : at + size]
            else:
                damaged[at:at] = draw.randbytes(size)
        case _:
            for _ in range(draw.randint(1, 3)):
                at = draw.randrange(len(data))
                damaged[at] = damaged[at] ^ 1 << draw.randrange(8) if draw.random() < 0.5 else draw.choice(_BYTES)
    return bytes(damaged)


class _Delivery:
    """Returns bytes in pieces of random sizes."""

    def __init__(self, data: bytes, draw: random.Random) -> None:
        self._data, self._draw, self._at = data, draw, 0

    def readinto(self, room: memoryview) -> int:
        size = min(self._draw.choice((1, 7, 100, 5_000, 100_000)), len(room), len(self._data) - self._at)
        room[:size] = self._data[self._at : self._at + size]
        self._at += size
        return size

    recv_into = readinto

    def read1(self, size: int) -> bytes:
        found = bytearray(min(size, 50))
        return bytes(found[: self.readinto(memoryview(found))])


class DamagedStream:
    """A recording that a relay reads as from a server."""

    def __init__(self, recording: Recording, directory: Path) -> None:
        self._recording = recording
        self._directory = directory / f"relay-{recording.name}"
        self._frames = _frames(recording)
        whole, error = self._follow(self._frames, random.Random(0))
        assert isinstance(error, TransientError), error
        assert whole == recording.log, "the undamaged stream is not mirrored whole"

    def try_damage(self, seed: int) -> str:
        draw = random.Random(seed)
        mirrored, error = self._follow(wound(self._frames, draw), draw)
        if self._recording.checksum:
            # Only the mark of a file in use may differ: servers change it without renewing the checksum.
            flags = FIRST + 17
            pairs = zip(mirrored, self._recording.log, strict=False)
            assert all(a == b or i == flags for i, (a, b) in enumerate(pairs)), "other bytes were published"
        return "definite" if isinstance(error, DefiniteError) else "transient"

    def _follow(self, frames: bytes, draw: random.Random) -> tuple[bytes, Exception]:
        """Return the bytes that the relay publishes, and the error that ended it."""
        stream = _stream(_Delivery(frames, draw), self._recording.checksum)
        relay = Relay(_ADDRESS, self._directory, 1 << 40, lambda _: None)
        relay._begin(BinlogPosition(self._recording.file, FIRST))
        made, relay_module.ReplicationStream = relay_module.ReplicationStream, cast(Any, lambda *_, **__: stream)
        try:
            relay._follow()
        except (DefiniteError, TransientError) as error:
            mirror = relay.files[0]
            return mirror.path.read_bytes()[: max(mirror.safe_end, FIRST)], error
        finally:
            relay_module.ReplicationStream = cast(Any, made)
        # The server sent the end of the stream.
        mirror = relay.files[0]
        return mirror.path.read_bytes()[: max(mirror.safe_end, FIRST)], TransientError("the end")


def _frames(recording: Recording) -> bytes:
    """The packets that a server sends to a replica that asks for a whole file."""
    name = recording.file.encode()
    size = 19 + 8 + len(name) + (4 if recording.checksum else 0)
    rotate = struct.pack("<IBIIIH", 0, 4, 7, size, 0, 0x20) + struct.pack("<Q", FIRST) + name
    events = [rotate + (struct.pack("<I", zlib.crc32(rotate)) if recording.checksum else b"")]
    starts = [*event_starts(recording.log), len(recording.log)]
    events += [recording.log[start:end] for start, end in pairwise(starts)]
    return b"".join(struct.pack("<I", len(event) + 1)[:3] + bytes([number & 255, 0]) + event for number, event in enumerate(events, 1))


def _stream(delivery: _Delivery, checksum: bool) -> ReplicationStream:
    """A stream whose requests were sent already."""
    stream: Any = object.__new__(ReplicationStream)
    stream.address, stream._checksum = _ADDRESS, checksum
    stream._file_begins = stream._format_comes = False
    stream._connection = SimpleNamespace(_force_close=lambda: None)
    stream._socket = delivery
    stream._raw, stream._filled = np.empty(1 << 15, dtype=np.uint8), 0
    stream._events = np.empty(1 << 15, dtype=np.uint8)
    stream._state = np.array([0, 0, 0, 1], dtype=np.int64)
    # Nothing waits for more of a recording.
    stream._blocking, stream._next_receipt_s = False, 0.0
    stream.close = lambda: None
    return cast(ReplicationStream, stream)


class _FencedArena(Arena):
    def __init__(self, slots: list[Slot], rows: int, data_bytes: int) -> None:
        super().__init__(slots, rows, min(data_bytes, 1 << 16))
        self.a1 = Fenced(len(self.a1)).before_end(self.a1.tobytes())
        self.a2, self.a4, self.a8 = self.a1.view(np.int16), self.a1.view(np.int32), self.a1.view(np.int64)


class DamagedResult:
    """The rows of a table as a server answers a prepared SELECT."""

    def __init__(self, schema: TableSchema, recording: Recording) -> None:
        self._schema, self._packets = schema, recording.packets[schema.name.table]
        rows = self._read(self._packets, random.Random(0))
        self._rows = sum(batch.num_rows for batch in rows)
        assert self._rows == sum(1 for _ in _packet_sizes(self._packets)) - 1

    def try_damage(self, seed: int) -> str:
        draw = random.Random(seed)
        try:
            batches = self._read(wound(self._packets, draw), draw)
        except DefiniteError:
            return "definite"
        except TransientError:
            return "transient"
        for batch in batches:
            check_batch(self._schema, batch)
        return "rows"

    def _read(self, packets: bytes, draw: random.Random) -> list[Any]:
        delivery = _Delivery(packets, draw)
        connection = SimpleNamespace(_rfile=SimpleNamespace(read1=delivery.read1, raw=delivery))
        made, table_scan.Arena = table_scan.Arena, cast(Any, _FencedArena)
        try:
            with server_errors(_ADDRESS):
                result = table_scan._Result(cast(Any, connection), _ADDRESS, self._schema, ZeroDates.HALT, draw.choice((1, 2, 64)))
                return list(result._rows())
        finally:
            table_scan.Arena = cast(Any, made)


def _packet_sizes(packets: bytes) -> Any:
    at = 0
    while at < len(packets):
        size = int.from_bytes(packets[at : at + 3], "little")
        yield size
        at += 4 + size
