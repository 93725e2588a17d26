"""Compiled walks over raw log bytes: where transactions end, and which row events belong to which table.

`scan_groups` reads event headers as they arrive and reports *groups* (a transaction, or a statement outside one), so that the planner can
cut batches on group bounds without looking at rows. `index_rows` is its counterpart in a task: it lists the row events of a range and the
distinct table maps they refer to. Both check every size before they use it; anything they do not know is an error code with its offset.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.sources.mysql.checksum import crc32_at
from headrace.sources.mysql.images import DELETE, UPDATE, WRITE
from headrace.sources.mysql.pointers import Bytes, Pointer, as_signed, byte_at, compiled, load_word, pointer_to
from headrace.sources.mysql.words import byteswap, load_2, load_4, same_bytes

# Cells of scan_groups' state.
POS, IN_GROUP, GROUPS, SPLITS, HAS_ROWS, HAS_QUERY, SINCE_SPLIT, G0, G1, G2, ERROR_AT = range(11)
STATE_CELLS = 11

# Columns of a group: end offset, kind, GTID in three parts, time, whether it holds rows.
END, KIND, GTID0, GTID1, GTID2, TIME, ROWS = range(7)
GROUP_COLUMNS = 7

# Kinds of group.
DATA, STATEMENT, FILE_END, PREPARED, XA_COMMIT, XA_ROLLBACK, SKIPPED = range(7)

# Why a scan stopped.
OK, NO_ROOM, BAD_CHECKSUM, BAD_SIZE, UNKNOWN_EVENT, ROLLED_BACK_ROWS, BAD_POSITION = range(7)

# Values of state[IN_GROUP]: a GTID has announced a group; its transaction is open.
_ANNOUNCED, _OPEN = 1, 2

# What a query event's text says, as far as grouping goes.
_BEGIN, _END, _ROLLBACK, _INERT, _OTHER = range(5)


@compiled("boolean(CPointer(uint8), int64, int64, CPointer(uint8), int64)")
def _starts_with(buf: Pointer, pos: int, end: int, word: Pointer, size: int) -> bool:
    if pos + size > end:
        return False
    for i in range(size):
        char = byte_at(buf, pos + i)
        if 97 <= char <= 122:
            char -= 32
        if char != word[i]:
            return False
    return True


_W_BEGIN = np.frombuffer(b"BEGIN", dtype=np.uint8).copy()
_W_COMMIT = np.frombuffer(b"COMMIT", dtype=np.uint8).copy()
_W_ROLLBACK = np.frombuffer(b"ROLLBACK", dtype=np.uint8).copy()
_W_ROLLBACK_TO = np.frombuffer(b"ROLLBACK TO", dtype=np.uint8).copy()
_W_SAVEPOINT = np.frombuffer(b"SAVEPOINT", dtype=np.uint8).copy()


@compiled("int64(CPointer(uint8), int64, int64)")
def _query_kind(buf: Pointer, body: int, end: int) -> int:
    """What a query event says, as far as grouping goes."""
    if body + 13 > end:
        return _OTHER
    text = body + 13 + load_2(buf, body + 11) + byte_at(buf, body + 8) + 1
    if text > end:
        return _OTHER
    if end - text == 5 and _starts_with(buf, text, end, pointer_to(_W_BEGIN), 5):
        return _BEGIN
    if end - text == 6 and _starts_with(buf, text, end, pointer_to(_W_COMMIT), 6):
        return _END
    if _starts_with(buf, text, end, pointer_to(_W_SAVEPOINT), 9) or _starts_with(buf, text, end, pointer_to(_W_ROLLBACK_TO), 11):
        return _INERT
    if end - text == 8 and _starts_with(buf, text, end, pointer_to(_W_ROLLBACK), 8):
        return _ROLLBACK
    return _OTHER


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def _load_8(buf: Pointer, at: int) -> int:
    return as_signed(load_word(buf, at))


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def _load_8_be(buf: Pointer, at: int) -> int:
    return as_signed(byteswap(load_word(buf, at)))


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def _load_6(buf: Pointer, at: int) -> int:
    return load_4(buf, at) | load_2(buf, at + 4) << 32


@compiled("int64(uint8[::1], int64, int64)")
def _crc32_not_in_use(log: Bytes, start: int, end: int) -> int:
    event = log[start:end].copy()
    event[17] &= np.uint8(0xFE)
    return as_signed(crc32_at(pointer_to(event), 0, end - start))


@compiled("int64(uint8[::1], int64, int64, boolean, int64, int64[:,::1], int64[::1], int64[::1])")
def scan_groups(
    log: Bytes,
    end: int,
    base: int,
    checksum: bool,
    split_bytes: int,
    groups: npt.NDArray[np.int64],
    splits: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Walk complete events log[state[POS]:end); `base` is the file offset of log[0].

    Appends to `groups` (see GROUP columns) and to `splits`: log offsets of statement ends inside a transaction, at least `split_bytes`
    apart.
    """
    tail = 4 if checksum else 0
    buf = pointer_to(log)
    while state[POS] + 19 <= end:
        pos = state[POS]
        size = load_4(buf, pos + 9)
        if size < 19 + tail or size > 1 << 31:
            state[ERROR_AT] = base + pos
            return BAD_SIZE
        if pos + size > end:
            break
        if state[GROUPS] >= groups.shape[0] or state[SPLITS] >= splits.shape[0]:
            return NO_ROOM
        stop = pos + size - tail
        state[ERROR_AT] = base + pos
        if (base + pos + size) & 0xFFFFFFFF != load_4(buf, pos + 13):
            return BAD_POSITION
        kind = byte_at(buf, pos + 4)
        if checksum and as_signed(crc32_at(buf, pos, stop)) != load_4(buf, stop):
            # The server marks the first event of the file it is writing as in use, without renewing the checksum.
            if kind != 15 or not byte_at(buf, pos + 17) & 1 or _crc32_not_in_use(log, pos, stop) != load_4(buf, stop):
                return BAD_CHECKSUM
        body = pos + 19
        ends = -1
        state[SINCE_SPLIT] += size
        if kind == 30 or kind == 31 or kind == 32 or kind == 23 or kind == 24 or kind == 25:
            state[HAS_ROWS] = 1
            if size < 19 + 8 + tail:
                return BAD_SIZE
            if load_2(buf, body + 6) & 1 and state[SINCE_SPLIT] >= split_bytes:
                splits[state[SPLITS]] = base + pos + size
                state[SPLITS] += 1
                state[SINCE_SPLIT] = 0
        elif kind == 19 or kind == 29 or kind == 160:
            pass
        elif kind == 16:
            ends = STATEMENT if state[HAS_QUERY] else DATA
        elif kind == 2:
            query = _query_kind(buf, body, stop)
            if query == _BEGIN:
                state[IN_GROUP] = _OPEN
            elif query == _END:
                ends = STATEMENT if state[HAS_QUERY] else DATA
            elif query == _ROLLBACK:
                if state[HAS_ROWS]:
                    return ROLLED_BACK_ROWS
                ends = STATEMENT if state[HAS_QUERY] else DATA
            elif query == _OTHER:
                state[HAS_QUERY] = 1
                if state[IN_GROUP] != _OPEN:
                    ends = STATEMENT
        elif kind == 33 or kind == 34:
            if size < 19 + 25 + tail:
                return BAD_SIZE
            state[IN_GROUP] = _ANNOUNCED
            if kind == 33:
                state[G0], state[G1], state[G2] = _load_8_be(buf, body + 1), _load_8_be(buf, body + 9), _load_8(buf, body + 17)
        elif kind == 162:
            if size < 19 + 13 + tail:
                return BAD_SIZE
            state[G0], state[G1], state[G2] = load_4(buf, body + 8), load_4(buf, pos + 5), _load_8(buf, body)
            # A group that is not standalone starts here: MariaDB writes no BEGIN of its own.
            state[IN_GROUP] = _ANNOUNCED if byte_at(buf, body + 12) & 1 else _OPEN
        elif kind == 4 or kind == 3:
            ends = FILE_END
        elif not (kind == 15 or kind == 35 or kind == 36 or kind == 37 or kind == 28 or kind == 161 or kind == 163):
            if not load_2(buf, pos + 17) & 0x80:
                return UNKNOWN_EVENT
        if ends >= 0:
            g = state[GROUPS]
            groups[g, END], groups[g, KIND] = base + pos + size, ends
            groups[g, GTID0], groups[g, GTID1], groups[g, GTID2] = state[G0], state[G1], state[G2]
            groups[g, TIME], groups[g, ROWS] = load_4(buf, pos), state[HAS_ROWS]
            state[GROUPS] = g + 1
            state[IN_GROUP] = state[HAS_ROWS] = state[HAS_QUERY] = state[SINCE_SPLIT] = 0
            state[G0] = state[G1] = state[G2] = 0
        state[POS] = pos + size
    return OK


# Columns of a row event in an index.
(COUNT_AT, IMAGES_END, CHANGE, EVENT_TIME, EVENT_AT, MAP) = range(6)
INDEX_COLUMNS = 6

# Cells of index_rows' state.
I_POS, I_EVENTS, I_MAPS, I_ERROR_AT = range(4)
NO_MAP, TOO_MANY_MAPS = 10, 11


@compiled("int64(int64, int64[:,::1])", inlined=True)
def _find_slot(table_id: int, ids: npt.NDArray[np.int64]) -> int:
    """The line of a table id in the open hash, or the free one for it; -1 if there is neither."""
    mask = len(ids) - 1
    slot = table_id * 0x9E3779B1 & mask
    for _ in range(ids.shape[0]):
        if ids[slot, 0] == table_id + 1 or ids[slot, 0] == 0:
            return slot
        slot = (slot + 1) & mask
    return -1


@compiled("int64(uint8[::1], int64, int64, boolean, int64[:,::1], int64[:,::1], int64[:,::1], int64[::1])")
def index_rows(
    log: Bytes,
    end: int,
    base: int,
    checksum: bool,
    events: npt.NDArray[np.int64],
    maps: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """List the row events in log[state[I_POS]:end) until `events` is full.

    maps: body start and body size of each distinct table map seen so far. ids: an open hash of table ids to lines of `maps`. Both live
    on between calls over the same buffer.
    """
    tail = 4 if checksum else 0
    buf, limit = pointer_to(log), len(log)
    while state[I_POS] + 19 <= end:
        pos = state[I_POS]
        state[I_ERROR_AT] = base + pos
        size = load_4(buf, pos + 9)
        if size < 19 + tail or pos + size > end:
            return BAD_SIZE
        kind = byte_at(buf, pos + 4)
        body = pos + 19
        stop = pos + size - tail
        if kind == 19:
            if body + 8 > stop:
                return BAD_SIZE
            table_id = _load_6(buf, body)
            slot = _find_slot(table_id, ids)
            if slot < 0:
                return TOO_MANY_MAPS
            # Flags and table id are left out: the same table opened again is the same map.
            start, length = body + 8, stop - body - 8
            known = ids[slot, 1] if ids[slot, 0] else -1
            if known < 0 or maps[known, 1] != length or not same_bytes(buf, maps[known, 0], start, length, limit):
                known = -1
                for m in range(state[I_MAPS]):
                    if maps[m, 1] == length and same_bytes(buf, maps[m, 0], start, length, limit):
                        known = m
                        break
                if known < 0:
                    if state[I_MAPS] >= maps.shape[0]:
                        return TOO_MANY_MAPS
                    known = state[I_MAPS]
                    maps[known, 0], maps[known, 1] = start, length
                    state[I_MAPS] = known + 1
                ids[slot, 0], ids[slot, 1] = table_id + 1, known
        elif (23 <= kind <= 25) or (30 <= kind <= 32):
            if state[I_EVENTS] >= events.shape[0]:
                return NO_ROOM
            at = body + 8
            if kind >= 30:
                if at + 2 > stop:
                    return BAD_SIZE
                at += load_2(buf, at)
            if at > stop:
                return BAD_SIZE
            table_id = _load_6(buf, body)
            if table_id == 0xFFFFFF:
                # The server's placeholder that only ends a statement; it has no table and no rows.
                state[I_POS] = pos + size
                continue
            slot = _find_slot(table_id, ids)
            if slot < 0 or ids[slot, 0] == 0:
                return NO_MAP
            e = state[I_EVENTS]
            events[e, COUNT_AT], events[e, IMAGES_END] = at, stop
            if kind == 23 or kind == 30:
                events[e, CHANGE] = WRITE
            elif kind == 24 or kind == 31:
                events[e, CHANGE] = UPDATE
            else:
                events[e, CHANGE] = DELETE
            events[e, EVENT_TIME] = load_4(buf, pos) * 1_000_000
            events[e, EVENT_AT], events[e, MAP] = base + pos, ids[slot, 1]
            state[I_EVENTS] = e + 1
        state[I_POS] = pos + size
    if state[I_POS] != end:
        state[I_ERROR_AT] = base + state[I_POS]
        return BAD_SIZE
    return OK
