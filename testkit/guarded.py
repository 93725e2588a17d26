"""Run the compiled readers on memory that ends where their input ends: `python -m testkit.guarded RECORDING`.

Kernels on raw pointers must not touch a byte past the end they are given. Here the page after the input cannot be read, so a kernel that
does so ends the process, which is why this is a process of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.sources.mysql import reader, resultset, scan
from headrace.sources.mysql.arena import Arena, slot_for
from headrace.sources.mysql.expand import Piece
from headrace.sources.mysql.reader import Segment
from headrace.sources.mysql.tablescan import _describe
from testkit.recordings import Recording, load_recording

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0


class GuardedMemory:
    """Bytes that lie directly before a page which nobody may touch."""

    def __init__(self, room: int) -> None:
        pages = (room + _PAGE - 1) // _PAGE
        self._map = mmap.mmap(-1, (pages + 1) * _PAGE)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)[: pages * _PAGE]
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(self._bytes.ctypes.data + pages * _PAGE)
        if libc.mprotect(guard, ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")

    def hold(self, data: bytes) -> npt.NDArray[np.uint8]:
        """An array of exactly these bytes, the last one directly before the guard."""
        held = self._bytes[len(self._bytes) - len(data) :]
        held[:] = np.frombuffer(data, dtype=np.uint8)
        return held


def read_log(memory: GuardedMemory, recording: Recording, data: bytes) -> str:
    """Scan and decode log bytes; what came of it."""
    held = memory.hold(data)
    groups, splits = np.zeros((1000, scan.GROUP_COLUMNS), dtype=np.int64), np.zeros((1000, scan.SPLIT_COLUMNS), dtype=np.int64)
    for checksum in (True, False):
        scan.scan_groups(held, len(held), recording.start, checksum, 1, groups, splits, np.zeros(scan.STATE_CELLS, dtype=np.int64))
    segment = Segment("", recording.file, recording.start, recording.start + len(data), 0, checksum=True)
    try:
        none = np.zeros(1, dtype=np.int64)
        piece = Piece(held, 0, len(held), True, None, none, none, recording.start)
        images = sum(block.rows for block in reader._Walk(segment, recording.catalog()).blocks(piece))
    except DefiniteError:
        return "error"
    return f"{images} images"


def event_ends(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
        yield at


def check_log(recording: Recording) -> None:
    data = recording.data
    memory = GuardedMemory(len(data))
    assert read_log(memory, recording, data) == f"{len(recording.images)} images"
    ends = {0, *event_ends(data)}
    for end in range(len(data)):
        assert (read_log(memory, recording, data[:end]) != "error") == (end in ends), f"cut at byte {end}"
    chooser = random.Random(3)
    for _ in range(1500):
        broken = bytearray(data)
        for _ in range(chooser.choice((1, 2, 5))):
            broken[chooser.randrange(len(data))] = chooser.choice((0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFF, chooser.randrange(256)))
        read_log(memory, recording, bytes(broken[: chooser.choice((len(data), chooser.randrange(len(data))))]))


_ROWS: dict[Kind, tuple[bytes, ...]] = {
    Kind.INT8: (b"\xff",),
    Kind.INT16: (b"\xff\x7f",),
    Kind.UINT32: (b"\xff\xff\xff\xff",),
    Kind.INT64: (b"\x01\x02\x03\x04\x05\x06\x07\x80",),
    Kind.FLOAT32: (b"\0\0\x80\x3f",),
    Kind.STRING: (b"\0", b"\x01x", b"\x07abcdefg", b"\x28" + b"y" * 40, b"\xfc\x2c\x01" + b"z" * 300),
    Kind.BYTES: (b"\x03\0\xff\0",),
    Kind.DECIMAL: (b"\x05-1.25", b"\x050.001", b"\x0f99999999999.999"),
    Kind.BIT: (b"\x01\x01", b"\x08" + b"\xff" * 8),
    Kind.DATE: (b"\x04\xe8\x07\x02\x1d",),
    Kind.DATETIME: (b"\x04\xe8\x07\x02\x1d", b"\x07\xe8\x07\x02\x1d\x0c\x22\x38", b"\x0b\xe8\x07\x02\x1d\x0c\x22\x38\x01\0\0\0"),
    Kind.TIME: (b"\0", b"\x08\x01\x22\0\0\0\x16\x3b\x3b", b"\x0c\0\0\0\0\0\x16\x3b\x3b\x3f\x42\x0f\0"),
    Kind.ENUM: (b"\x01a",),
}


def check_rows() -> None:
    """Protocol rows whose last value ends at the guard, whole, cut and damaged."""
    chooser = random.Random(5)
    for kind, values in _ROWS.items():
        columns = [
            Column("a", Kind.INT8),
            Column("b", kind, precision=30, scale=3, members=("a",)),
            Column("c", kind, precision=30, scale=3),
        ]
        slots = [slot_for(column, names_as_text=True) for column in columns]
        for value in values:
            payload = b"\0\0\x07" + value + value
            packet = len(payload).to_bytes(3, "little") + b"\0" + payload
            memory = GuardedMemory(len(packet))
            assert read_packet(memory, packet, columns, slots) == (resultset.MORE, 1), kind
            for end in range(len(packet)):
                assert read_packet(memory, packet[:end], columns, slots) == (resultset.MORE, 0), kind
                short = (end - 4).to_bytes(3, "little") + packet[3:end] if end > 4 else b""
                assert read_packet(memory, short, columns, slots)[1] == 0, kind
            for _ in range(200):
                broken = bytearray(packet)
                broken[chooser.randrange(len(packet))] = chooser.choice((0, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF, chooser.randrange(256)))
                read_packet(memory, bytes(broken), columns, slots)


def read_packet(memory: GuardedMemory, packet: bytes, columns: list[Column], slots: list[object]) -> tuple[int, int]:
    arena = Arena(slots, 4, 1024)  # type: ignore[arg-type]
    state = np.zeros(4, dtype=np.int64)
    held = memory.hold(packet)
    resultset.decode_rows(
        held, len(held), _describe(columns), arena.rows, arena.a1, arena.a2, arena.a4, arena.a8, arena.layout, True, state
    )
    return int(state[resultset.STATUS]), int(state[resultset.ROWS])


def main(name: str) -> None:
    recording = load_recording(name)
    check_log(recording)
    check_rows()
    print("guarded: ok")


if __name__ == "__main__":
    main(sys.argv[1])
