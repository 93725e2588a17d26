"""Tasks wait for unavailable servers at every first request."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.cql.address import parse_cql_url
from headrace.cql.language.ddl import CqlCatalog
from headrace.cql.timeuuid import micros
from headrace.errors import DefiniteError, TransientError
from headrace.sources.scylla import window_reader
from headrace.sources.scylla.snapshot import reader as snapshot
from headrace.sources.scylla.snapshot.base_rows import WriteTimeColumns
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.snapshot.table_probe import probe_write_times
from headrace.sources.scylla.snapshot.token_ranges import WHOLE
from headrace.sources.scylla.window_planner import WindowSplit

ADDRESS = parse_cql_url("scylla://127.0.0.1/ks")
TABLE = CqlCatalog("ks").apply_all("CREATE TABLE t (k int PRIMARY KEY, m map<int, int>)").named("ks.t")


class Away:
    """A session whose server is away at first."""

    def __init__(self) -> None:
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.asked == 1:
            raise TransientError("away")

    def execute(self, _: str) -> list[tuple[uuid.UUID]]:
        self._ask()
        return [(uuid.uuid1(),)]

    def prepare(self, _: str) -> Any:
        self._ask()
        raise DefiniteError("refused")


def test_a_servers_time_and_description_are_read_again() -> None:
    session: Any = Away()
    assert micros(uuid.uuid1()) - snapshot.server_time(session) < 10_000_000
    assert session.asked == 2
    session = Away()
    assert probe_write_times(session, TABLE) == WriteTimeColumns(frozenset())
    assert session.asked == 2


def test_readers_wait_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def opening(address: object) -> Any:
        tries.append(address)
        raise TransientError("away") if len(tries) % 2 else DefiniteError("there")

    monkeypatch.setattr(window_reader, "shared_session", opening)
    monkeypatch.setattr(snapshot, "shared_session", opening)
    chunk = snapshot.TokenChunk(TABLE.name, WHOLE)
    for blocks in (
        window_reader.LogReader(ADDRESS, {}, ScyllaOptions()).read(WindowSplit((), 0, 1)),
        snapshot.TokenRangeReader(ADDRESS, {TABLE.name: TABLE}, {TABLE.name: WriteTimeColumns(frozenset())}, ScyllaOptions()).read(chunk),
    ):
        with pytest.raises(DefiniteError, match="there"):
            next(blocks)  # type: ignore[call-overload]
    assert len(tries) == 4
