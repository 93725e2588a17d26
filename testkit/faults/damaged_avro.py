"""Damaged Avro bodies, in bulk and between guard pages: fastavro must read what Headrace's decoder accepts, with the same result."""

from __future__ import annotations

import random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.avro.schema import schema_of
from testkit.faults.damaged_packets import wound
from testkit.faults.fences import Fenced
from testkit.generators.avro_random import RandomAvro, plain, read_with_fastavro, write_with_fastavro

_BODIES = 100
_HUGE = (
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 12,
    b"\x80" * 11 + b"\1",
    b"\xfe\xff\xff\xff\x0f",
    b"\1",
)
"""The largest and smallest numbers, and invalid ones."""


class DamagedBodies:
    """Bodies of random schemas."""

    def __init__(self) -> None:
        self._fence = Fenced(1 << 20)

    def try_damage(self, seed: int) -> str:
        """Read damaged bodies of one schema; return the most frequent outcome."""
        made = RandomAvro(seed)
        tree = made.record()
        schema, theirs = schema_of(tree), fastavro.parse_schema(tree)
        sound = [write_with_fastavro(theirs, made.value(schema.root)) for _ in range(10)]
        bodies = [_wounded(made.draw.choice(sound), made.draw) for _ in range(_BODIES)]
        found = Decoder(schema).decode(self._fenced(bodies, made.draw))
        found.values.validate(full=True)
        bad = {one.row for one in found.bad}
        values = found.values.to_pylist()
        for row, body in enumerate(bodies):
            assert (values[row] is None) == (row in bad)
            if row not in bad:
                _agree(body, theirs, plain(schema.root, values[row]))
        return "bad" if len(bad) > _BODIES // 2 else "read"

    def _fenced(self, bodies: list[bytes], draw: random.Random) -> pa.BinaryArray:
        data = b"".join(bodies)[: self._fence.size]
        place = self._fence.before_end if draw.random() < 0.7 else self._fence.after_start
        offsets = np.minimum(np.cumsum([0, *map(len, bodies)]), len(data)).astype(np.int32)
        memory = place(data)
        return pa.Array.from_buffers(
            pa.binary(), len(bodies), [None, pa.py_buffer(offsets), pa.foreign_buffer(memory.ctypes.data, len(data), memory)]
        )


def _wounded(body: bytes, draw: random.Random) -> bytes:
    if not body or draw.random() < 0.1:
        return draw.randbytes(draw.randint(0, 40))
    if draw.random() < 0.15:
        at = draw.randrange(len(body) + 1)
        return body[:at] + draw.choice(_HUGE) + body[at:]
    return wound(body, draw)


def _agree(body: bytes, theirs: Any, ours: Any) -> None:
    """Check that both libraries read the same value from the same number of bytes."""
    value, size = read_with_fastavro(body, theirs)
    assert size == len(body)
    assert repr(value) == repr(ours)
