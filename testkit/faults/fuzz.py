"""Feeds damaged input to the readers: `python -m testkit.faults.fuzz SUITE FLAVOUR FIRST_SEED COUNT DIRECTORY`, and prints JSON.

Runs in its own process: a kernel that accesses memory outside of its buffers ends it, and so does a watchdog when one input takes longer
than a minute. DIRECTORY/seed holds the current seed.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.avro.schema import schema_of
from testkit.faults.damaged_logs import DamagedLog
from testkit.faults.damaged_packets import DamagedResult, DamagedStream, wound
from testkit.faults.fences import Fenced
from testkit.generators.avro_random import RandomAvro, plain, read_with_fastavro, write_with_fastavro
from testkit.recordings.recordings import Recording, load_recording, recording_names

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


HANG_S = 60
MOST_FAILURES = 40
_BLIND_OF_TWENTY = 17
"""Blind damage is cheap to check. Believed damage is expensive, and finds more defects."""

Trial = Callable[[int], str]
"""Runs a suite with one seed and returns its outcome. An exception is a failure."""


def run(suite: str, flavour: str, first: int, count: int, directory: Path) -> dict[str, Any]:
    recordings = [load_recording(name) for name in recording_names(flavour)]
    trial = SUITES[suite](recordings, directory)
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    current = np.memmap(directory / "seed", dtype=np.int64, mode="w+", shape=(1,))
    for seed in range(first, first + count):
        if seed % 64 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        current[0] = seed
        try:
            outcomes[trial(seed)] += 1
        except StopIteration:
            break
        # Any error that is not definite is a finding.
        except Exception as error:  # noqa: BLE001
            failures.append({"seed": seed, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]})
            if len(failures) >= MOST_FAILURES:
                break
    faulthandler.cancel_dump_traceback_later()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"outcomes": dict(outcomes), "failures": failures, "peak_bytes": usage.ru_maxrss << 10, "cpu_s": usage.ru_utime + usage.ru_stime}


def _logs(recordings: Sequence[Recording], directory: Path) -> Trial:
    subjects = [DamagedLog(recording, directory) for recording in recordings]
    checked = [subject for subject in subjects if subject.recording.checksum]

    def trial(seed: int) -> str:
        if seed % 20 < _BLIND_OF_TWENTY:
            return checked[seed // 20 % len(checked)].try_blind(seed)
        return subjects[seed // 20 % len(subjects)].try_believed(seed)

    return trial


def _cuts(recordings: Sequence[Recording], directory: Path) -> Trial:
    """Every position at which a log can be cut, in order: the seed is the number of the position."""
    subjects = [DamagedLog(recording, directory) for recording in recordings]
    trials = [trial for subject in subjects for trial in subject.cuts()]

    def trial(seed: int) -> str:
        if seed >= len(trials):
            raise StopIteration
        return trials[seed]()

    return trial


def _streams(recordings: Sequence[Recording], directory: Path) -> Trial:
    subjects = [DamagedStream(recording, directory) for recording in recordings]
    return lambda seed: subjects[seed % len(subjects)].try_damage(seed)


def _results(recordings: Sequence[Recording], directory: Path) -> Trial:  # noqa: ARG001
    subjects = [DamagedResult(schema, recording) for recording in recordings for schema in recording.schemas]
    return lambda seed: subjects[seed % len(subjects)].try_damage(seed)


def _avro(recordings: Sequence[Recording], directory: Path) -> Trial:  # noqa: ARG001
    return DamagedBodies().try_damage


SUITES: dict[str, Callable[[Sequence[Recording], Path], Trial]] = {
    "logs": _logs,
    "cuts": _cuts,
    "streams": _streams,
    "results": _results,
    "avro": _avro,
}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))))
