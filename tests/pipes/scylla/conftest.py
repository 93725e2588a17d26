"""The ClickHouse server of the module. Each test has its own keyspace, and the sink creates a database of the same name."""

from collections.abc import Iterator

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from testkit.pipelines.embedded_access import target_of


@pytest.fixture
def target(clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    found = target_of(clickhouse)
    yield found
    disconnect(found)
