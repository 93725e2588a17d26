"""Servers of the contract suites, shared by their cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.sink_places import Place


@pytest.fixture(scope="module")
def clickhouse_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with EmbeddedServer(tmp_path_factory.mktemp("clickhouse") / "data") as server:
        target = target_of(server)
        yield Place(f"clickhouse://{server.user}:{server.password}@{server.host}:{server.port}/", ClickHouseOptions())
        disconnect(target)


@pytest.fixture(scope="module")
def embedded_clickhouse_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(f"chdb:{tmp_path_factory.mktemp('embedded') / 'data'}", ClickHouseOptions())
