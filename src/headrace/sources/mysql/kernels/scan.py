"""Compiled walks over raw log bytes: where transactions end, and which row events belong to which table.

`scan_groups` reads event headers as they arrive and reports *groups* (a transaction, or a statement outside one), so that the planner can
cut batches on group bounds without reading rows. `index_rows` is its counterpart in a task: it lists the row events of a range and the
distinct table maps they refer to. `list_marks` lists the events that name their transactions and statements. All check every size before
use; anything unknown returns an error code with its offset.

Compressed events are not decompressed here: their headers hold the plain length. The difference (the group's *growth*) is all that
addresses need (see `event_expander`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import byteswap, load_2, load_4, same_bytes
from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, load_word, pointer_to
from headrace.sources.mysql.kernels.crc32 import crc32_at
from headrace.sources.mysql.kernels.event_headers import commit_time, growth_of
from headrace.sources.mysql.kernels.row_images import DELETE, UPDATE, WRITE

# Cells of the state of `scan_groups`: of the walk, then of the open group.
(POS, GROUPS, SPLITS, ERROR_AT) = range(4)
(IN_GROUP, STARTED, HAS_ROWS, HAS_QUERY, SINCE_SPLIT, GROWN, HAS_PACKED, G0, G1, G2, TAGGED, COMMIT_TIME, HAS_UNDONE) = range(4, 17)
STATE_CELLS = 17

# Columns of a group: bounds, kind, GTID (with its tag's number, see `gtid`), time of the last event, whether it holds rows.
(END, KIND, GTID0, GTID1, GTID2, TAG, TIME, ROWS) = range(8)
# Start of the group, start of its last event, whether it holds statements, whether its events must be expanded and their growth, commit
# time in microseconds (0: unknown), and whether parts were rolled back to a savepoint.
(START, LAST_AT, STATEMENTS, PACKED, GROWTH, COMMITTED, UNDONE) = range(8, 15)
GROUP_COLUMNS = 15
GTID = slice(GTID0, TAG + 1)
"""The columns that name a group's transaction. The scan leaves a tagged GTID's offset in TAG; `group_gtids.complete` resolves it."""

# Columns of a split: its offset, and the growth of its group before it.
SPLIT_AT, SPLIT_GROWTH = range(2)
SPLIT_COLUMNS = 2

# Kinds of group. PREPARED: the first half of an XA transaction. SKIPPED: already applied. ROLLED_BACK: no row of it remains.
DATA, STATEMENT, FILE_END, PREPARED, XA_COMMIT, XA_ROLLBACK, SKIPPED, ROLLED_BACK = range(8)

# Why a scan stopped.
OK, NO_ROOM, BAD_CHECKSUM, BAD_SIZE, UNKNOWN_EVENT, BAD_POSITION = range(6)

# Values of state[IN_GROUP]: a GTID event has announced a group; its transaction is open; it was opened by MariaDB's GTID event.
_ANNOUNCED, _OPEN, _OPEN_MARIADB = 1, 2, 3

# Kinds of query event, as far as grouping needs them.
_BEGIN, _END, _ROLLBACK, _UNDO, _INERT, _COMMIT_XA, _ROLLBACK_XA, _OTHER = range(8)


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
_W_XA_START = np.frombuffer(b"XA START ", dtype=np.uint8).copy()
_W_XA_END = np.frombuffer(b"XA END ", dtype=np.uint8).copy()
_W_XA_COMMIT = np.frombuffer(b"XA COMMIT ", dtype=np.uint8).copy()
_W_XA_ROLLBACK = np.frombuffer(b"XA ROLLBACK ", dtype=np.uint8).copy()


@compiled("int64(CPointer(uint8), int64, int64)")
def _query_kind(buf: Pointer, body: int, end: int) -> int:
    """Return the kind of a query event, as far as grouping needs it."""
    if body + 13 > end:
        return _OTHER
    text = body + 13 + load_2(buf, body + 11) + byte_at(buf, body + 8) + 1
    if text > end:
        return _OTHER
    if end - text == 5 and _starts_with(buf, text, end, pointer_to(_W_BEGIN), 5):
        return _BEGIN
    if end - text == 6 and _starts_with(buf, text, end, pointer_to(_W_COMMIT), 6):
        return _END
    if _starts_with(buf, text, end, pointer_to(_W_SAVEPOINT), 9):
        return _INERT
    if _starts_with(buf, text, end, pointer_to(_W_ROLLBACK_TO), 11):
        return _UNDO
    if end - text == 8 and _starts_with(buf, text, end, pointer_to(_W_ROLLBACK), 8):
        return _ROLLBACK
    if _starts_with(buf, text, end, pointer_to(_W_XA_START), 9):
        return _BEGIN
    if _starts_with(buf, text, end, pointer_to(_W_XA_END), 7):
        return _INERT
    if _starts_with(buf, text, end, pointer_to(_W_XA_COMMIT), 10):
        return _COMMIT_XA
    if _starts_with(buf, text, end, pointer_to(_W_XA_ROLLBACK), 12):
        return _ROLLBACK_XA
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


@compiled("boolean(int64)", inlined=True)
def _is_between(kind: int) -> bool:
    """Whether events of a kind concern no changes: those of the file itself, and of the servers' internals."""
    return kind == 15 or kind == 35 or kind == 36 or kind == 37 or kind == 28 or kind == 161 or kind == 163


@compiled("int64(int64)", inlined=True)
def _closing_kind(has_query: int) -> int:
    return STATEMENT if has_query else DATA


@compiled("int64(uint8[::1], int64, int64, boolean, int64, int64[:,::1], int64[:,::1], int64[::1])")
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

    Append to `groups` (see the group columns) and to `splits`: log offsets of statement ends inside a transaction, at least `split_bytes`
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
        position = load_4(buf, pos + 13)
        # MariaDB 11.7 and later write 0 inside transactions, unless binlog_legacy_event_pos is set.
        if (base + pos + size) & 0xFFFFFFFF != position and (position or state[IN_GROUP] != _OPEN_MARIADB):
            return BAD_POSITION
        kind = byte_at(buf, pos + 4)
        if checksum and as_signed(crc32_at(buf, pos, stop)) != load_4(buf, stop):
            # The server marks the first event of the file it is writing as in use, without updating the checksum.
            if kind != 15 or not byte_at(buf, pos + 17) & 1 or _crc32_not_in_use(log, pos, stop) != load_4(buf, stop):
                return BAD_CHECKSUM
        body = pos + 19
        ends = -1
        state[SINCE_SPLIT] += size
        if not state[IN_GROUP] and not state[STARTED] and not _is_between(kind):
            state[STARTED] = base + pos
        if kind == 40 or 165 <= kind <= 171:
            growth = growth_of(buf, kind, pos, stop, tail)
            if growth < 0:
                return BAD_SIZE
            state[GROWN] += growth
            state[HAS_PACKED] = 1
        if 23 <= kind <= 25 or 30 <= kind <= 32 or kind == 39 or 166 <= kind <= 171:
            state[HAS_ROWS] = 1
            if kind == 39:
                state[HAS_PACKED] = 1
            if size < 19 + 8 + tail:
                return BAD_SIZE
            if load_2(buf, body + 6) & 1 and state[SINCE_SPLIT] >= split_bytes:
                splits[state[SPLITS], SPLIT_AT], splits[state[SPLITS], SPLIT_GROWTH] = base + pos + size, state[GROWN]
                state[SPLITS] += 1
                state[SINCE_SPLIT] = 0
        elif kind == 19 or kind == 29 or kind == 160:
            pass
        elif kind == 16:
            ends = _closing_kind(state[HAS_QUERY])
        elif kind == 2:
            query = _query_kind(buf, body, stop)
            if query == _BEGIN:
                state[IN_GROUP] = max(state[IN_GROUP], _OPEN)
            elif query == _END:
                ends = _closing_kind(state[HAS_QUERY])
            elif query == _ROLLBACK:
                ends = ROLLED_BACK if state[HAS_ROWS] else _closing_kind(state[HAS_QUERY])
            elif query == _UNDO:
                state[HAS_UNDONE] = 1
            elif query == _COMMIT_XA:
                ends = XA_COMMIT
            elif query == _ROLLBACK_XA:
                ends = XA_ROLLBACK
            elif query == _OTHER:
                state[HAS_QUERY] = 1
                if state[IN_GROUP] < _OPEN:
                    ends = STATEMENT
        elif kind == 165 or kind == 18:
            state[HAS_QUERY] = 1
            if state[IN_GROUP] < _OPEN:
                ends = STATEMENT
        elif kind == 40:
            # One event holds the whole transaction. Decompressing it shows whether it is the first half of an XA transaction.
            state[HAS_ROWS] = 1
            ends = _closing_kind(state[HAS_QUERY])
        elif kind == 38:
            if size < 19 + 13 + tail:
                return BAD_SIZE
            # An XA transaction committed in one phase is an ordinary transaction.
            ends = _closing_kind(state[HAS_QUERY]) if byte_at(buf, body) else PREPARED
        elif kind == 33 or kind == 34:
            if size < 19 + 25 + tail:
                return BAD_SIZE
            state[IN_GROUP] = _ANNOUNCED
            state[COMMIT_TIME] = commit_time(buf, body, stop)
            if kind == 33:
                state[G0], state[G1], state[G2] = _load_8_be(buf, body + 1), _load_8_be(buf, body + 9), _load_8(buf, body + 17)
        elif kind == 42:
            state[IN_GROUP] = _ANNOUNCED
            state[TAGGED] = base + pos
        elif kind == 162:
            if size < 19 + 13 + tail:
                return BAD_SIZE
            state[G0], state[G1], state[G2] = load_4(buf, body + 8), load_4(buf, pos + 5), _load_8(buf, body)
            # A group that is not standalone starts here: MariaDB writes no BEGIN of its own.
            state[IN_GROUP] = _ANNOUNCED if byte_at(buf, body + 12) & 1 else _OPEN_MARIADB
        elif kind == 4 or kind == 3:
            ends = FILE_END
        elif not (_is_between(kind) or kind == 5 or kind == 13 or kind == 14 or kind == 9 or kind == 17):
            if kind == 26 or not load_2(buf, pos + 17) & 0x80:
                return UNKNOWN_EVENT
        if ends >= 0:
            g = state[GROUPS]
            groups[g, END], groups[g, KIND] = base + pos + size, ends
            groups[g, GTID0], groups[g, GTID1], groups[g, GTID2], groups[g, TAG] = state[G0], state[G1], state[G2], state[TAGGED]
            groups[g, TIME], groups[g, ROWS] = load_4(buf, pos), state[HAS_ROWS]
            groups[g, START], groups[g, LAST_AT], groups[g, STATEMENTS] = state[STARTED], base + pos, state[HAS_QUERY]
            groups[g, PACKED], groups[g, GROWTH], groups[g, COMMITTED] = state[HAS_PACKED], state[GROWN], state[COMMIT_TIME]
            groups[g, UNDONE] = state[HAS_UNDONE]
            state[GROUPS] = g + 1
            for cell in range(IN_GROUP, STATE_CELLS):
                state[cell] = 0
        state[POS] = pos + size
    return OK


# Columns of a row event in an index.
(COUNT_AT, IMAGES_END, CHANGE, EVENT_TIME, EVENT_AT, MAP, PLACE) = range(7)
INDEX_COLUMNS = 7
"""EVENT_AT is the event's address, from which versions are made; PLACE is its offset in the file, for messages. They differ, see
`event_expander`.
"""

# Cells of the state of `index_rows`.
I_POS, I_EVENTS, I_MAPS, I_ERROR_AT, I_COMMITTED = range(5)
INDEX_CELLS = 5
NO_MAP, TOO_MANY_MAPS, NOT_EXPANDED = 10, 11, 12


@compiled("int64(int64, int64[:,::1])", inlined=True)
def _find_slot(table_id: int, ids: npt.NDArray[np.int64]) -> int:
    """Return the line of a table id in the open hash, or a free line for it; -1 if there is neither."""
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

    maps: body start and body size of each distinct table map seen so far. ids: an open hash of table ids to lines of `maps`. Both persist
    between calls over the same buffer.
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
            # Without flags and table id: the same table opened again is the same map.
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
                # A dummy event that only ends a statement. It has no table and no rows.
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
            events[e, EVENT_TIME] = state[I_COMMITTED] or load_4(buf, pos) * 1_000_000
            events[e, EVENT_AT], events[e, MAP], events[e, PLACE] = base + pos, ids[slot, 1], base + pos
            state[I_EVENTS] = e + 1
        elif kind == 33 or kind == 34:
            state[I_COMMITTED] = commit_time(buf, body, stop)
        elif kind == 42 or kind == 162:
            state[I_COMMITTED] = 0
        elif kind == 39 or kind == 40 or 165 <= kind <= 171:
            return NOT_EXPANDED
        state[I_POS] = pos + size
    if state[I_POS] != end:
        state[I_ERROR_AT] = base + state[I_POS]
        return BAD_SIZE
    return OK


# Columns of a mark: position in the buffer, kind of the event.
MARK_POS, MARK_KIND = range(2)
MARK_COLUMNS = 2


@compiled("int64(uint8[::1], int64, int64, boolean, int64[:,::1])")
def list_marks(log: Bytes, start: int, end: int, checksum: bool, marks: npt.NDArray[np.int64]) -> int:
    """List the events in log[start:end) that start a transaction (GTID, else BEGIN) or hold a statement; return their number.

    `index_rows` has walked the events, so their sizes are right. More marks than fit return -1.
    """
    tail = 4 if checksum else 0
    buf, pos, found = pointer_to(log), start, 0
    announced = False
    while pos + 19 <= end:
        size = load_4(buf, pos + 9)
        kind = byte_at(buf, pos + 4)
        if size < 19 + tail or pos + size > end:
            return -1
        marked = kind == 33 or kind == 34 or kind == 42 or kind == 162 or kind == 29 or kind == 160
        if kind == 2:
            query = _query_kind(buf, pos + 19, pos + size - tail)
            marked = query == _BEGIN and not announced
        announced = kind == 33 or kind == 34 or kind == 42 or kind == 162
        if marked:
            if found >= marks.shape[0]:
                return -1
            marks[found, MARK_POS], marks[found, MARK_KIND] = pos, kind
            found += 1
        pos += size
    return found
