"""Damaged row events and result packets end in a definite error, or in rows; never in an access outside the buffers.

`row_events.json` holds what servers wrote, beside the SQL and the server version that made it: a stretch of binary log and the packets of
a prepared SELECT. The kernels run on memory between fences, so that reading or writing beside it would end the process.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sources.mysql import decoder, framing, resultset, scan
from headrace.sources.mysql.arena import Arena, Slot, slot_for
from headrace.sources.mysql.decoder import ReadOptions
from headrace.sources.mysql.expand import Piece
from headrace.sources.mysql.reader import Catalog, Segment, _Walk
from headrace.sources.mysql.tablescan import _describe
from testkit.fences import Fenced

FIXTURE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("row_events.json").read_text())
ROW_EVENTS = frozenset({23, 24, 25, 30, 31, 32})
MUTATIONS = 1_500
Image = tuple[int, int, str]


class FencedArena(Arena):
    """An arena that ends at a fence."""

    def __init__(self, slots: list[Slot], rows: int, data_bytes: int) -> None:
        super().__init__(slots, rows, data_bytes)
        self.a1 = Fenced(len(self.a1)).before_end(self.a1.tobytes())
        self.a2, self.a4, self.a8 = self.a1.view(np.int16), self.a1.view(np.int32), self.a1.view(np.int64)


class Case:
    """One server's log and packets."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.log, self.packets = bytes.fromhex(raw["log"]), bytes.fromhex(raw["packets"])
        self.start, self.checksum = int(raw["start"]), bool(raw["checksum"])
        self.images, self.rows = int(raw["images"]), int(raw["rows"])
        self.schema = TableSchema.from_json(raw["schema"])

    def events(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and kind of every event of the log."""
        at = 0
        while at < len(self.log):
            size = struct.unpack_from("<I", self.log, at + 9)[0]
            yield at, at + size, self.log[at + 4]
            at += size

    def decode(self, log: bytes, *, every_before: bool = False) -> list[Image]:
        """Everything decoded from a log as comparable values: op, version, and the row as text."""
        name = self.schema.name
        options = ReadOptions(every_before=every_before)
        catalog = Catalog({name: self.schema}, {name: self.schema.primary_key}, lambda found: found == name, options)
        # The walk starts on a page in the file; here the buffer starts with the segment.
        segment = Segment("", "binlog.000001", self.start, self.start + len(log), 0, self.checksum)
        images: list[Image] = []
        none = np.zeros(1, dtype=np.int64)
        piece = Piece(Fenced(len(log)).before_end(log), 0, len(log), self.checksum, None, none, none, self.start)
        for block in _Walk(segment, catalog).blocks(piece):
            heads = zip(block.op.to_pylist(), block.version.to_pylist(), strict=True)
            images += [(op, version, _cells(block.images, i)) for i, (op, version) in enumerate(heads)]
        return images


def _cells(batch: Any, row: int) -> str:
    """A row as bytes in text, whatever is in it: damaged text need not be UTF-8, nor a damaged number a date."""
    cells = []
    for column in batch.columns:
        array = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
        validity, *rest = array.buffers()
        valid = validity is None or validity.to_pybytes()[row >> 3] >> (row & 7) & 1
        if not valid:
            cells.append("NULL")
        elif len(rest) == 2:
            first, last = struct.unpack_from("<ii", rest[0], 4 * row)
            cells.append(rest[1].to_pybytes()[first:last].hex())
        else:
            width = array.type.bit_width // 8
            cells.append(rest[0].to_pybytes()[row * width : (row + 1) * width].hex())
    return " ".join(cells)


@pytest.fixture(params=sorted(FIXTURE))
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(decoder, "Arena", FencedArena)
    return Case(FIXTURE[request.param])


def test_undamaged_events_give_every_image(case: Case) -> None:
    images = case.decode(case.log)
    assert len(images) == case.images
    assert len(case.decode(case.log, every_before=True)) == case.images + 1
    assert case.decode(case.log) == images


@pytest.mark.parametrize("every_before", [False, True])
def test_every_truncation_of_a_row_event_is_an_error_or_fewer_rows(case: Case, every_before: bool) -> None:
    whole = case.decode(case.log, every_before=every_before)
    tail = 4 if case.checksum else 0
    errors = 0
    for start, end, kind in case.events():
        if kind not in ROW_EVENTS:
            continue
        for cut in range(1, end - tail - start - 19 + 1):
            event = bytearray(case.log[start : end - tail - cut] + case.log[end - tail : end])
            struct.pack_into("<I", event, 9, len(event))
            try:
                images = case.decode(case.log[:start] + bytes(event), every_before=every_before)
            except DefiniteError:
                errors += 1
            else:
                assert images == whole[: len(images)]
    assert errors > 1_000


@pytest.mark.parametrize("every_before", [False, True])
def test_any_mutation_of_row_events_is_an_error_or_rows(case: Case, every_before: bool) -> None:
    draw = random.Random(7)
    places = [at for start, end, kind in case.events() if kind in ROW_EVENTS for at in range(start + 19, end)]
    errors = survivors = 0
    for _ in range(MUTATIONS):
        damaged = bytearray(case.log)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.choice(places)] = draw.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, draw.randrange(256)))
        try:
            case.decode(bytes(damaged), every_before=every_before)
        except DefiniteError:
            errors += 1
        else:
            survivors += 1
    assert errors > 100
    assert survivors > 100


def test_scans_of_damaged_logs_stop_in_order(case: Case) -> None:
    draw = random.Random(11)
    for round_ in range(MUTATIONS):
        damaged = bytearray(case.log[: draw.randint(0, len(case.log))] if round_ % 2 else case.log)
        for _ in range(draw.randint(0, 3) if damaged else 0):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        log = Fenced(len(damaged) + 1).before_end(bytes(damaged))
        groups, splits = np.zeros((64, scan.GROUP_COLUMNS), np.int64), np.zeros((64, scan.SPLIT_COLUMNS), np.int64)
        state = np.zeros(scan.STATE_CELLS, np.int64)
        # Without checksums, so that damage gets past the first look.
        scan.scan_groups(log, len(log), case.start, False, 1, groups, splits, state)
        assert 0 <= state[scan.POS] <= len(log)
        index = np.zeros(scan.INDEX_CELLS, np.int64)
        scan.index_rows(
            log,
            len(log),
            case.start,
            case.checksum,
            np.zeros((64, scan.INDEX_COLUMNS), np.int64),
            np.zeros((8, 2), np.int64),
            np.zeros((16, 2), np.int64),
            index,
        )
        assert 0 <= index[scan.I_POS] <= len(log)


def test_one_flipped_bit_anywhere_fails_the_checksum_or_the_header(case: Case) -> None:
    if not case.checksum:
        pytest.skip("this log has no checksums")
    for bit in range(0, 8 * len(case.log), 37):
        damaged = bytearray(case.log)
        damaged[bit // 8] ^= 1 << bit % 8
        log = np.frombuffer(damaged, np.uint8)
        state = np.zeros(scan.STATE_CELLS, np.int64)
        groups, splits = np.zeros((64, scan.GROUP_COLUMNS), np.int64), np.zeros((64, scan.SPLIT_COLUMNS), np.int64)
        status = scan.scan_groups(log, len(log), case.start, True, 1 << 30, groups, splits, state)
        assert status != scan.OK or state[scan.POS] < len(log)


def test_damaged_packets_of_the_stream_stop_in_order(case: Case) -> None:
    frames = b"".join(
        struct.pack("<I", end - start + 1)[:3] + bytes([number & 255, 0]) + case.log[start:end]
        for number, (start, end, _) in enumerate(case.events())
    )
    draw = random.Random(13)
    for round_ in range(MUTATIONS):
        damaged = bytearray(frames)
        for _ in range(min(round_, draw.randint(0, 3))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        end = len(damaged) if round_ % 3 == 0 else draw.randint(0, len(damaged))
        raw = Fenced(len(damaged)).before_end(bytes(damaged[:end]) or b"\0")
        out = Fenced(len(case.log)).before_end(bytes(len(case.log) if round_ % 2 == 0 else draw.randint(1, len(case.log))))
        state = np.zeros(4, np.int64)
        framing.deframe(raw, end, out, state)
        assert 0 <= state[framing.IN] <= end
        assert 0 <= state[framing.OUT] <= len(out)
        if round_ == 0:
            assert out.tobytes() == case.log


def decode_packets(case: Case, packets: bytes, rows: int, data_bytes: int) -> tuple[int, int]:
    """How many rows the kernel made of the packets, and why it stopped."""
    slots = [slot_for(column, names_as_text=True) for column in case.schema.columns]
    arena = FencedArena(slots, rows, data_bytes)
    state = np.zeros(4, np.int64)
    raw = Fenced(len(packets) + 1).before_end(packets or b"\0")
    resultset.decode_rows(
        raw, len(packets), _describe(case.schema.columns), rows, arena.a1, arena.a2, arena.a4, arena.a8, arena.layout, False, state
    )
    return int(state[resultset.ROWS]), int(state[resultset.STATUS])


def test_undamaged_packets_give_every_row(case: Case) -> None:
    assert decode_packets(case, case.packets, 16, 4_096) == (case.rows, resultset.MORE)
    assert decode_packets(case, case.packets, 1, 4_096) == (1, resultset.FULL)
    assert decode_packets(case, case.packets, 16, 40)[1] == resultset.FULL


def test_any_damage_to_result_packets_stops_in_order(case: Case) -> None:
    draw = random.Random(17)
    known = {resultset.MORE, resultset.FULL, resultset.NOT_A_ROW, resultset.SPLIT, resultset.MALFORMED, resultset.ZERO_DATE}
    seen = set()
    for size in range(len(case.packets)):
        rows, status = decode_packets(case, case.packets[:size], 16, 4_096)
        assert status == resultset.MORE
        assert rows < case.rows
    for _ in range(MUTATIONS):
        damaged = bytearray(case.packets)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.choice((0, 250, 251, 252, 253, 254, 255, draw.randrange(256)))
        seen.add(decode_packets(case, bytes(damaged), 16, draw.choice((64, 400, 4_096)))[1])
    assert seen <= known
    assert resultset.MALFORMED in seen
