"""Compiled walks over raw log bytes: where transactions end, and which row events belong to which table.

`scan_groups` reads event headers as they arrive and reports *groups* (a transaction, or a statement outside one), so that the planner can
cut batches on group bounds without looking at rows. `index_rows` is its counterpart in a task: it lists the row events of a range and the
distinct table maps they refer to. Both check every size before they use it; anything they do not know is an error code with its offset.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.sources.mysql.framing import crc32
from headrace.sources.mysql.images import DELETE, UPDATE, WRITE
from headrace.sources.mysql.values import read_be, read_le

# Cells of scan_groups' state.
POS, IN_GROUP, GROUPS, SPLITS, HAS_ROWS, HAS_QUERY, SINCE_SPLIT, G0, G1, G2, ERROR_AT = range(11)
STATE_CELLS = 11

# Columns of a group: end offset, kind, GTID in three parts, time, whether it holds rows.
END, KIND, GTID0, GTID1, GTID2, TIME, ROWS = range(7)
GROUP_COLUMNS = 7

# Kinds of group.
DATA, STATEMENT, FILE_END = range(3)

# Why a scan stopped.
OK, NO_ROOM, BAD_CHECKSUM, BAD_SIZE, UNKNOWN_EVENT, ROLLED_BACK_ROWS, BAD_POSITION = range(7)

# Values of state[IN_GROUP]: a GTID has announced a group; its transaction is open.
_ANNOUNCED, _OPEN = 1, 2

# What a query event's text says, as far as grouping goes.
_BEGIN, _END, _ROLLBACK, _INERT, _OTHER = range(5)


@njit(cache=True)
def _starts_with(buf, pos, end, word):  # type: ignore[no-untyped-def]
    if pos + word.shape[0] > end:
        return False
    for i in range(word.shape[0]):
        char = buf[pos + i]
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


@njit("i8(u1[::1], i8, i8)", cache=True)
def _query_kind(buf, body, end):  # type: ignore[no-untyped-def]
    if body + 13 > end:
        return _OTHER
    text = body + 13 + read_le(buf, body + 11, 2) + np.int64(buf[body + 8]) + 1
    if text > end:
        return _OTHER
    if end - text == 5 and _starts_with(buf, text, end, _W_BEGIN):
        return _BEGIN
    if end - text == 6 and _starts_with(buf, text, end, _W_COMMIT):
        return _END
    if _starts_with(buf, text, end, _W_SAVEPOINT) or _starts_with(buf, text, end, _W_ROLLBACK_TO):
        return _INERT
    if end - text == 8 and _starts_with(buf, text, end, _W_ROLLBACK):
        return _ROLLBACK
    return _OTHER


@njit("i8(u1[::1], i8, i8, b1, i8, i8[:,::1], i8[::1], i8[::1])", cache=True)
def scan_groups(buf, end, base, checksum, split_bytes, groups, splits, state):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Walk complete events buf[state[POS]:end); `base` is the log offset of buf[0].

    Appends to `groups` (see GROUP columns) and to `splits`: log offsets of statement ends inside a transaction, at least `split_bytes` apart.
    """
    tail = 4 if checksum else 0
    while state[POS] + 19 <= end:
        pos = state[POS]
        size = read_le(buf, pos + 9, 4)
        if size < 19 + tail or size > 1 << 31:
            state[ERROR_AT] = base + pos
            return BAD_SIZE
        if pos + size > end:
            break
        if state[GROUPS] >= groups.shape[0] or state[SPLITS] >= splits.shape[0]:
            return NO_ROOM
        stop = pos + size - tail
        state[ERROR_AT] = base + pos
        if (base + pos + size) & 0xFFFFFFFF != read_le(buf, pos + 13, 4):
            return BAD_POSITION
        if checksum and np.int64(crc32(buf, pos, stop)) != read_le(buf, stop, 4):
            return BAD_CHECKSUM
        kind = np.int64(buf[pos + 4])
        body = pos + 19
        ends = np.int64(-1)
        state[SINCE_SPLIT] += size
        if kind == 30 or kind == 31 or kind == 32 or kind == 23 or kind == 24 or kind == 25:
            state[HAS_ROWS] = 1
            if size < 19 + 8 + tail:
                return BAD_SIZE
            if read_le(buf, body + 6, 2) & 1 and state[SINCE_SPLIT] >= split_bytes:
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
                state[G0], state[G1], state[G2] = read_be(buf, body + 1, 8), read_be(buf, body + 9, 8), read_le(buf, body + 17, 8)
        elif kind == 162:
            if size < 19 + 13 + tail:
                return BAD_SIZE
            state[G0], state[G1], state[G2] = read_le(buf, body + 8, 4), read_le(buf, pos + 5, 4), read_le(buf, body, 8)
            # A group that is not standalone starts here: MariaDB writes no BEGIN of its own.
            state[IN_GROUP] = _ANNOUNCED if buf[body + 12] & 1 else _OPEN
        elif kind == 4 or kind == 3:
            ends = FILE_END
        elif not (kind == 15 or kind == 35 or kind == 36 or kind == 37 or kind == 28 or kind == 161 or kind == 163):
            if not read_le(buf, pos + 17, 2) & 0x80:
                return UNKNOWN_EVENT
        if ends >= 0:
            g = state[GROUPS]
            groups[g, END], groups[g, KIND] = base + pos + size, ends
            groups[g, GTID0], groups[g, GTID1], groups[g, GTID2] = state[G0], state[G1], state[G2]
            groups[g, TIME], groups[g, ROWS] = read_le(buf, pos, 4), state[HAS_ROWS]
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


@njit("b1(u1[::1], i8, i8, i8)", cache=True)
def _same_bytes(buf, one, other, size):  # type: ignore[no-untyped-def]
    for i in range(size):
        if buf[one + i] != buf[other + i]:
            return False
    return True


@njit("i8(i8, i8[:,::1])", cache=True)
def _find_slot(table_id, ids):  # type: ignore[no-untyped-def]
    mask = ids.shape[0] - 1
    slot = (table_id * 0x9E3779B1) & mask
    for _ in range(ids.shape[0]):
        if ids[slot, 0] == table_id + 1 or ids[slot, 0] == 0:
            return slot
        slot = (slot + 1) & mask
    return -1


@njit("i8(u1[::1], i8, i8, b1, i8[:,::1], i8[:,::1], i8[:,::1], i8[::1])", cache=True)
def index_rows(buf, end, base, checksum, events, maps, ids, state):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """List the row events in buf[state[I_POS]:end) until `events` is full.

    maps: body start and body size of each distinct table map seen so far. ids: an open hash of table ids to lines of `maps`. Both live
    on between calls over the same buffer.
    """
    tail = 4 if checksum else 0
    while state[I_POS] + 19 <= end:
        pos = state[I_POS]
        state[I_ERROR_AT] = base + pos
        size = read_le(buf, pos + 9, 4)
        if size < 19 + tail or pos + size > end:
            return BAD_SIZE
        kind = np.int64(buf[pos + 4])
        body = pos + 19
        stop = pos + size - tail
        if kind == 19:
            if body + 8 > stop:
                return BAD_SIZE
            table_id = read_le(buf, body, 6)
            slot = _find_slot(table_id, ids)
            if slot < 0:
                return TOO_MANY_MAPS
            # Flags and table id are left out: the same table opened again is the same map.
            start, length = body + 8, stop - body - 8
            known = ids[slot, 1] if ids[slot, 0] else np.int64(-1)
            if known < 0 or maps[known, 1] != length or not _same_bytes(buf, maps[known, 0], start, length):
                known = np.int64(-1)
                for m in range(state[I_MAPS]):
                    if maps[m, 1] == length and _same_bytes(buf, maps[m, 0], start, length):
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
                at += read_le(buf, at, 2)
            if at > stop:
                return BAD_SIZE
            table_id = read_le(buf, body, 6)
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
            events[e, EVENT_TIME] = read_le(buf, pos, 4) * 1_000_000
            events[e, EVENT_AT], events[e, MAP] = base + pos, ids[slot, 1]
            state[I_EVENTS] = e + 1
        state[I_POS] = pos + size
    if state[I_POS] != end:
        state[I_ERROR_AT] = base + state[I_POS]
        return BAD_SIZE
    return OK
