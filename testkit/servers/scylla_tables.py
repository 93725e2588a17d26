"""ScyllaDB's tables of generations and streams, for servers that have none: the same columns, in another keyspace.

Vnodes: generations of the whole cluster, with some streams for each range of tokens. Tablets: generations of each table, a stream for each
tablet, and which streams were closed and opened with each. A stream's id holds its token, so it lies on the server that owns its rows.
"""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cassandra.metadata import Murmur3Token

from headrace.cql.session import CqlSession
from headrace.cql.types import quoted
from headrace.model.schema import TableName

VERSION: Final = 1
"""The last four bits of a stream's id."""
CURRENT, CLOSED, OPENED = 0, 1, 2
"""`stream_state` of tablets' streams."""
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Generation:
    """Streams, by ranges of tokens."""

    time: int
    """Milliseconds since 1970."""
    ranges: tuple[tuple[int, tuple[bytes, ...]], ...]
    """The last token of each range and its streams, in order; the ring is closed: what is beyond the last belongs to the first."""

    @property
    def streams(self) -> tuple[bytes, ...]:
        return tuple(stream for _, streams in self.ranges for stream in streams)

    def stream_of(self, token: int) -> bytes:
        """The stream of a partition's token."""
        at = bisect.bisect_left([end for end, _ in self.ranges], token)
        streams = self.ranges[at if at < len(self.ranges) else 0][1]
        return streams[token % len(streams)]


def token_of(key: Sequence[bytes]) -> int:
    """The token of a partition key, given as its serialised columns."""
    whole = key[0] if len(key) == 1 else b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in key)
    return int(Murmur3Token.hash_fn(whole))


def stream_id(token: int, index: int = 0) -> bytes:
    """A new stream: token 64 bits, random 38, index of its range 22, version 4."""
    rest = secrets.randbits(38) << 26 | (index & (1 << 22) - 1) << 4 | VERSION
    return token.to_bytes(8, "big", signed=True) + rest.to_bytes(8, "big")


def make_generation(time: int, ranges: int = 4, streams: int = 1) -> Generation:
    """Return a generation of `ranges` token ranges of equal width, each with `streams` streams."""
    width = (1 << 64) // ranges
    ends = [_LEAST + width * (at + 1) for at in range(ranges - 1)] + [_GREATEST]
    return Generation(
        time, tuple((end, tuple(sorted(stream_id(end - part, at) for part in range(streams)))) for at, end in enumerate(ends))
    )


def create_tables(session: CqlSession, keyspace: str) -> None:
    """All four tables, empty."""
    name = quoted(keyspace)
    table = "keyspace_name text, table_name text, timestamp timestamp"
    for definition in (
        "cdc_generation_timestamps (key text, time timestamp, expired timestamp, PRIMARY KEY (key, time)) "
        "WITH CLUSTERING ORDER BY (time DESC)",
        "cdc_streams_descriptions_v2 (time timestamp, range_end bigint, streams frozen<set<blob>>, PRIMARY KEY (time, range_end))",
        f"cdc_timestamps ({table}, PRIMARY KEY ((keyspace_name, table_name), timestamp)) WITH CLUSTERING ORDER BY (timestamp DESC)",
        f"cdc_streams ({table}, stream_state tinyint, stream_id blob, "
        "PRIMARY KEY ((keyspace_name, table_name), timestamp, stream_state, stream_id))",
    ):
        session.execute(f"CREATE TABLE IF NOT EXISTS {name}.{definition}")


def add_generation(session: CqlSession, keyspace: str, generation: Generation) -> Generation:
    """Add a generation of vnodes; the previous one ends when it begins."""
    for end, streams in generation.ranges:
        session.execute(
            f"INSERT INTO {quoted(keyspace)}.cdc_streams_descriptions_v2 (time, range_end, streams) VALUES (%s, %s, %s)",
            (generation.time, end, set(streams)),
        )
    # Last, as ScyllaDB does: a reader that sees a generation finds its streams.
    session.execute(f"INSERT INTO {quoted(keyspace)}.cdc_generation_timestamps (key, time) VALUES ('timestamps', %s)", (generation.time,))
    return generation


def close_generation(session: CqlSession, keyspace: str, generation: Generation, ended: int) -> None:
    """Set the end (milliseconds since 1970) of a generation of vnodes."""
    session.execute(
        f"UPDATE {quoted(keyspace)}.cdc_generation_timestamps SET expired = %s WHERE key = 'timestamps' AND time = %s",
        (ended, generation.time),
    )


def forget_generation(session: CqlSession, keyspace: str, generation: Generation) -> None:
    """Delete a generation of vnodes, as ScyllaDB does with expired ones."""
    name = quoted(keyspace)
    session.execute(f"DELETE FROM {name}.cdc_generation_timestamps WHERE key = 'timestamps' AND time = %s", (generation.time,))
    session.execute(f"DELETE FROM {name}.cdc_streams_descriptions_v2 WHERE time = %s", (generation.time,))


def add_tablet_generation(
    session: CqlSession, keyspace: str, table: TableName, generation: Generation, before: Generation | None = None
) -> Generation:
    """Add a generation of a table with tablets; `before` is the previous one, whose other streams are closed."""
    older, newer = set(before.streams if before else ()), set(generation.streams)
    states = {CURRENT: newer, CLOSED: older - newer, OPENED: newer - older if before else set()}
    for state, streams in states.items():
        for stream in sorted(streams):
            session.execute(
                f"INSERT INTO {quoted(keyspace)}.cdc_streams (keyspace_name, table_name, timestamp, stream_state, stream_id) "
                "VALUES (%s, %s, %s, %s, %s)",
                (table.database, table.table, generation.time, state, stream),
            )
    session.execute(
        f"INSERT INTO {quoted(keyspace)}.cdc_timestamps (keyspace_name, table_name, timestamp) VALUES (%s, %s, %s)",
        (table.database, table.table, generation.time),
    )
    return generation
