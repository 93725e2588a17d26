"""The compiled scan of JSON texts: each is read once and checked completely, and the positions of requested values are recorded.

The request is a *program*: a tree of objects whose members lead to a slot (record the value's position) and possibly to another object.
Members are expected in the program's order, in which a connector writes them; any other order, whitespace and escaped names also work, but
slower. A text that is not JSON is never read in part. Nothing is converted here; `json_values` does that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import Slots, slots_of
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, load_word, pointer_to, stack_slots
from headrace.sources.debezium.kernels.json_grammar import (
    ARRAY,
    CUT,
    ESCAPED,
    NO_OBJECT,
    NULL,
    OBJECT,
    OK,
    SYNTAX,
    TEXT,
    TRAILING,
    TWICE,
    after_space,
    after_value,
    same_name,
    text_end,
    unescape,
)

FIRST, COUNT, STRICT, NODE_COLUMNS = range(4)
"""Columns of a program's nodes: the first member, how many there are, and whether a member that is not listed is noted."""
NAME_AT, NAME_SIZE, PLAIN, CHILD, SLOT, MEMBER_COLUMNS = range(6)
"""Columns of a program's members: the name, whether it is written without escapes, the node below (or -1), the slot."""
SCHEMA_AT, SCHEMA_END, PAYLOAD_AT, PAYLOAD_END, UNLIKE, WRAP_COLUMNS = range(6)
"""Output of `unwrap`: the positions of schema and payload (zero if a text is not wrapped), and whether the schema differs from the
previous one."""

READ = "Array(uint8, 1, 'C', readonly=True)"
"""Bytes that others own; they may be writable too."""
KINDS = ARRAY + 1
"""How many kinds of values there are."""
MAX_LEVELS = 16
"""How deep a program may be."""

Places = npt.NDArray[np.int32]
Kinds = npt.NDArray[np.uint8]
Table = npt.NDArray[np.int64]

_U64 = np.uint64


@compiled("int64(CPointer(uint8), int64, int64, CPointer(uint8), int64, CPointer(int64), int64, int64, int64)")
def _find_member(
    buf: Pointer, at: int, size: int, names: Pointer, names_size: int, members: Slots, first: int, count: int, limit: int
) -> int:
    """The member of a name; -1 if there is none."""
    for i in range(first, first + count):
        member = i * MEMBER_COLUMNS
        if members[member + NAME_SIZE] == size and same_name(buf, at, names, members[member + NAME_AT], size, limit, names_size):
            return i
    return -1


@compiled(
    f"void({READ}, int64[::1], int64[::1], uint8[::1], int64[:, ::1], int64[:, ::1],"
    " int32[:, ::1], int32[:, ::1], uint8[:, ::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], uint8[::1])"
)
def scan(
    data: Bytes,
    starts: Table,
    stops: Table,
    names_data: Bytes,
    nodes_table: Table,
    members_table: Table,
    begins: Places,
    ends: Places,
    kinds: Kinds,
    counts_table: Table,
    status: Table,
    unknown: Table,
    scratch_data: Bytes,
) -> None:
    """Scan the texts data[starts[i]:stops[i]) with a program. For text i and slot s: the position [begins[s, i], ends[s, i]) of a value of
    type kinds[s, i], all zero before; counts[s, k]: the number of values of each type; status[i]: error code and position; unknown[i]: the
    first name that a strict node does not list. Rows of `begins`, `ends` and `kinds` may be longer than the number of texts."""
    buf, names, scratch = pointer_to(data), pointer_to(names_data), pointer_to(scratch_data)
    names_size, scratch_size = len(names_data), len(scratch_data)
    nodes, members, counts = slots_of(nodes_table), slots_of(members_table), slots_of(counts_table)
    kind = stack_slots(1)
    stack_node, stack_next, stack_slot = stack_slots(16), stack_slots(16), stack_slots(16)
    for i in range(len(starts)):
        limit = stops[i]
        at = after_space(buf, starts[i], limit)
        if at >= limit or byte_at(buf, at) != 123:
            status[i, 0], status[i, 1] = CUT if at >= limit else NO_OBJECT, at
            continue
        level = 0
        stack_node[0], stack_next[0] = 0, nodes[FIRST]
        opening, problem = True, OK
        while True:
            # At an opening bracket, or just after a value.
            at = after_space(buf, at + 1 if opening else at, limit)
            if at >= limit:
                problem = CUT
                break
            byte = byte_at(buf, at)
            if byte == 125:
                at += 1
                opening = False
                if level == 0:
                    break
                ends[stack_slot[level], i] = at
                level -= 1
                continue
            if not opening:
                if byte != 44:
                    problem = SYNTAX
                    break
                at = after_space(buf, at + 1, limit)
                if at >= limit:
                    problem = CUT
                    break
                byte = byte_at(buf, at)
            if byte != 34:
                problem = SYNTAX
                break
            node = stack_node[level] * NODE_COLUMNS
            first, count = nodes[node + FIRST], nodes[node + COUNT]
            expected = stack_next[level]
            found = -1
            # A member may be missing: try the next one first.
            last = min(expected + 2, first + count)
            while expected < last:
                member = expected * MEMBER_COLUMNS
                size = members[member + NAME_SIZE]
                fits = members[member + PLAIN] != 0 and at + size + 1 < limit and byte_at(buf, at + 1 + size) == 34
                if fits and same_name(buf, at + 1, names, members[member + NAME_AT], size, limit, names_size):
                    found = expected
                    at += size + 2
                    break
                expected += 1
            if found < 0:
                close = text_end(buf, at + 1, limit, kind)
                if close < 0:
                    problem = close
                    break
                size = close - at - 1
                if kind[0] == TEXT:
                    found = _find_member(buf, at + 1, size, names, names_size, members, first, count, limit)
                elif size <= scratch_size:
                    size = unescape(buf, at + 1, close, scratch, 0)
                    found = _find_member(scratch, 0, size, names, names_size, members, first, count, scratch_size)
                if found < 0 and nodes[node + STRICT] != 0 and unknown[i, 1] == 0:
                    unknown[i, 0], unknown[i, 1] = at + 1, close
                at = close + 1
            at = after_space(buf, at, limit)
            if at >= limit:
                problem = CUT
                break
            if byte_at(buf, at) != 58:
                problem = SYNTAX
                break
            at = after_space(buf, at + 1, limit)
            if at >= limit:
                problem = CUT
                break
            opening = False
            slot = -1
            if found >= 0:
                stack_next[level] = found + 1
                slot = members[found * MEMBER_COLUMNS + SLOT]
            if slot < 0:
                at = after_value(buf, at, limit, kind)
                if at < 0:
                    problem = at
                    break
                continue
            member = found * MEMBER_COLUMNS
            if kinds[slot, i] != 0:
                problem = TWICE
                break
            begins[slot, i] = at
            if members[member + CHILD] >= 0 and byte_at(buf, at) == 123:
                kinds[slot, i] = OBJECT
                counts[slot * KINDS + OBJECT] += 1
                level += 1
                stack_slot[level], stack_node[level] = slot, members[member + CHILD]
                stack_next[level] = nodes[members[member + CHILD] * NODE_COLUMNS + FIRST]
                opening = True
                continue
            after = after_value(buf, at, limit, kind)
            if after < 0:
                problem = after
                break
            kinds[slot, i] = kind[0]
            counts[slot * KINDS + kind[0]] += 1
            if kind[0] == TEXT or kind[0] == ESCAPED:
                begins[slot, i], ends[slot, i] = at + 1, after - 1
            else:
                ends[slot, i] = after
            at = after
        if problem == OK:
            at = after_space(buf, at, limit)
            if at != limit:
                problem = TRAILING
        status[i, 0], status[i, 1] = problem, at


@compiled("boolean(CPointer(uint8), int64, int64, int64)", inlined=True)
def _same_run(buf: Pointer, one: int, other: int, size: int) -> bool:
    done = 0
    while done + 8 <= size:
        if load_word(buf, one + done) != load_word(buf, other + done):
            return False
        done += 8
    while done < size:
        if byte_at(buf, one + done) != byte_at(buf, other + done):
            return False
        done += 1
    return True


@compiled("int64(CPointer(uint8), int64, int64)", inlined=True)
def _wrapper_member(buf: Pointer, at: int, size: int) -> int:
    """1 for the name schema, 2 for payload, 0 for any other."""
    if size == 6:
        word = load_word(buf, at - 1)
        return 1 if word == _U64(0x22616D6568637322) else 0
    if size == 7:
        word = load_word(buf, at)
        return 2 if word == _U64(0x2264616F6C796170) else 0
    return 0


@compiled(f"void({READ}, int64[::1], int64[::1], int64[:, ::1])")
def unwrap(data: Bytes, starts: Table, stops: Table, out: Table) -> None:
    """Split texts {"schema": …, "payload": …}, which hold nothing else. A schema written as in the text before is not read again."""
    buf = pointer_to(data)
    kind = stack_slots(1)
    prefix_at, prefix = 0, 0
    for i in range(len(starts)):
        start, limit = starts[i], stops[i]
        if prefix > 0 and limit - start > prefix and _same_run(buf, start, prefix_at, prefix) and byte_at(buf, limit - 1) == 125:
            out[i, SCHEMA_AT], out[i, SCHEMA_END] = out[i - 1, SCHEMA_AT], out[i - 1, SCHEMA_END]
            out[i, PAYLOAD_AT], out[i, PAYLOAD_END], out[i, UNLIKE] = start + prefix, limit - 1, 0
            continue
        prefix = 0
        at = after_space(buf, start, limit)
        if at >= limit or byte_at(buf, at) != 123:
            continue
        at = after_space(buf, at + 1, limit)
        seen = 0
        while at < limit and byte_at(buf, at) == 34:
            close = text_end(buf, at + 1, limit, kind)
            if close < 0:
                break
            member = _wrapper_member(buf, at + 1, close - at - 1) if kind[0] == TEXT else 0
            if member == 0 or seen & member:
                break
            at = after_space(buf, close + 1, limit)
            if at >= limit or byte_at(buf, at) != 58:
                break
            at = after_space(buf, at + 1, limit)
            if at >= limit:
                break
            # A payload that comes last is not read here: what follows the schema up to the last bracket is the payload.
            last = limit - 1
            while last > at and byte_at(buf, last) <= 32:
                last -= 1
            if member == 2 and seen == 1 and byte_at(buf, last) == 125:
                out[i, PAYLOAD_AT], out[i, PAYLOAD_END], out[i, UNLIKE] = at, last, 1
                if last == limit - 1:
                    prefix_at, prefix = start, at - start
                seen = 3
                at = limit
                break
            after = after_value(buf, at, limit, kind)
            if after < 0 or (member == 1 and kind[0] != OBJECT and kind[0] != NULL):
                break
            if member == 1:
                out[i, SCHEMA_AT], out[i, SCHEMA_END] = at, after
            else:
                out[i, PAYLOAD_AT], out[i, PAYLOAD_END] = at, after
            seen |= member
            at = after_space(buf, after, limit)
            if seen == 3 and at < limit and byte_at(buf, at) == 125 and after_space(buf, at + 1, limit) == limit:
                out[i, UNLIKE] = 1
                at = limit
                break
            if at >= limit or byte_at(buf, at) != 44:
                break
            at = after_space(buf, at + 1, limit)
        if seen != 3 or at != limit:
            out[i, :] = 0
            prefix = 0
