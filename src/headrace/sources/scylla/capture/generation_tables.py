"""Creates and reads ScyllaDB's tables of stream generations in a keyspace of a server that has none."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from headrace.cql.session import CqlSession
from headrace.cql.types import quoted
from headrace.sources.scylla.capture.stream_ids import Generation, Generations, even_ends, from_description, made_generation

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
    """Read the generations from a keyspace's tables."""
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
