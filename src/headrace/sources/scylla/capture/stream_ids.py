"""Finds the log stream of a partition's changes by its token and the generation at the change's timestamp.

On a server without ScyllaDB's tables of generations, creates and reads such tables in a keyspace.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from cassandra.metadata import Murmur3Token

from headrace.cql.session import CqlSession
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.sources.scylla.capture.storage_model import Key

_LEAST: Final = -(1 << 63)
_IGNORED_BITS: Final = 12
"""ScyllaDB ignores a token's highest bits when it distributes a range's partitions to shards."""


def token_of(key: Key) -> int:
    """Return the token of a partition key, given its serialised columns."""
    whole = key[0] if len(key) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in key)
    return int(Murmur3Token.hash_fn(whole))


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The partitions up to a token (above the previous range's), and their streams, one per shard."""

    end: int
    streams: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """Start time (milliseconds since 1970) and ranges by token."""

    start: int
    ranges: tuple[StreamRange, ...]

    def stream(self, token: int) -> bytes:
        place = bisect_left([one.end for one in self.ranges], token)
        streams = self.ranges[place % len(self.ranges)].streams
        biased = ((token - _LEAST) << _IGNORED_BITS) & (1 << 64) - 1
        return streams[biased * len(streams) >> 64]


@dataclass(frozen=True, slots=True)
class Generations:
    """All known generations, oldest first."""

    known: tuple[Generation, ...]

    def stream(self, token: int, timestamp: int) -> bytes:
        """Return the stream for a change at a timestamp. Raise for one before the first generation: no reader would find it."""
        if not self.known:
            raise DefiniteError("there is no generation of streams", hint="create the generation tables first")
        place = bisect_right([one.start for one in self.known], timestamp // 1000) - 1
        if place < 0:
            raise DefiniteError(
                f"the timestamp {timestamp} is before the first generation of streams ({self.known[0].start} ms): no reader would find it",
                hint="write with a later timestamp",
            )
        return self.known[place].stream(token)


def made_generation(ends: Iterable[int], shards: int, start: int, random: Random) -> Generation:
    """A generation with ranges that end at these tokens, with streams of ScyllaDB's form."""
    ordered = sorted(ends)
    ranges = []
    for i, end in enumerate(ordered):
        before = ordered[i - 1] if i else ordered[-1] - (1 << 64)
        streams = [stream_id(_token_inside(before, end, shard, shards), i, random) for shard in range(shards)]
        ranges.append(StreamRange(end, tuple(streams)))
    return Generation(start, tuple(ranges))


def even_generation(count: int = 4, shards: int = 2, start: int = 0, seed: int = 0) -> Generation:
    """Return a generation with `count` ranges of equal size."""
    return made_generation(even_ends(count), shards, start, Random(seed))


def even_ends(count: int) -> list[int]:
    """Return the last tokens of `count` ranges of equal size."""
    return [_LEAST + (i + 1) * ((1 << 64) // count) - 1 for i in range(count)]


def _token_inside(before: int, end: int, shard: int, shards: int) -> int:
    return _LEAST + (before + 1 + (end - before) * shard // shards - _LEAST) % (1 << 64)


def stream_id(token: int, index: int, random: Random) -> bytes:
    """Sixteen bytes: a token, 38 random bits, the range's number, the form's version."""
    low = random.getrandbits(38) << 26 | (index & (1 << 22) - 1) << 4 | 1
    return token.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big")


def from_description(start: int, ranges: Sequence[tuple[int, Sequence[bytes]]]) -> Generation:
    """Build a generation from a row of `cdc_streams_descriptions_v2`: range ends and their streams."""
    return Generation(start, tuple(StreamRange(end, tuple(streams)) for end, streams in sorted(ranges)))


RANGES: Final = 16
"""Token ranges, each with a stream; limits how many readers can share a log."""


def prepare_generations(session: CqlSession, keyspace: str, now: int, *, ranges: int = RANGES) -> None:
    """Create the tables and a first generation that starts now (microseconds since 1970), if they do not exist."""
    name = quoted(keyspace)
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {name}.cdc_generation_timestamps "
        "(key text, time timestamp, expired timestamp, PRIMARY KEY (key, time)) WITH CLUSTERING ORDER BY (time DESC)"
    )
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {name}.cdc_streams_descriptions_v2 "
        "(time timestamp, range_end bigint, streams frozen<set<blob>>, PRIMARY KEY (time, range_end))"
    )
    if not read_generations(session, keyspace).known:
        add_generation(session, keyspace, made_generation(even_ends(ranges), 1, now // 1000, Random(secrets.randbits(64))))


def add_generation(session: CqlSession, keyspace: str, generation: Generation) -> None:
    """Announce a generation some time before it begins: captured sessions refresh every ten seconds.

    Its streams are written first, so that every reader of the generation finds them.
    """
    name = quoted(keyspace)
    for one in generation.ranges:
        session.execute(
            f"INSERT INTO {name}.cdc_streams_descriptions_v2 (time, range_end, streams) VALUES (%s, %s, %s)",
            (generation.start, one.end, set(one.streams)),
        )
    session.execute(f"INSERT INTO {name}.cdc_generation_timestamps (key, time) VALUES ('timestamps', %s)", (generation.start,))


def read_generations(session: CqlSession, keyspace: str) -> Generations:
    name = quoted(keyspace)
    starts = session.execute(f"SELECT time FROM {name}.cdc_generation_timestamps WHERE key = 'timestamps'")
    found = []
    for (start,) in starts:
        ranges = session.execute(f"SELECT range_end, streams FROM {name}.cdc_streams_descriptions_v2 WHERE time = %s", (start,))
        if ranges:
            found.append(from_description(_millis(start), [(row.range_end, sorted(row.streams)) for row in ranges]))
    return Generations(tuple(sorted(found, key=lambda one: one.start)))


def _millis(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
