"""Merge tables over several sources: before the sources have begun, and when columns are added."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.merge_tables import MergeTableProbe
from headrace.service.status_collector import StatusCollector
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions


def test_merged_tables_show_all_sources_and_the_columns_that_come(tmp_path: Path) -> None:
    sink, failed = f"chdb:{tmp_path / 'warehouse'}", list[Any]()

    def part(name: str, *targets: str) -> Any:
        view = StatusCollector()
        view.tables({target: target for target in targets})
        spec = SimpleNamespace(sink=sink, chosen=SimpleNamespace(sink=ClickHouseOptions()))
        return SimpleNamespace(name=name, view=view, spec=spec, fail=failed.append)

    with EmbeddedServers() as embedded_servers:
        embedded_servers.ensure(sink)
        with open_clickhouse_sink(sink) as named:
            client = connect(named.sink.target).client
            for name in ("east_orders", "west_orders"):
                client.command(f"CREATE TABLE default.{name} (id Int64, _v UInt64) ENGINE = ReplacingMergeTree(_v) ORDER BY id")
                client.command(f"INSERT INTO default.{name} VALUES (1, 1), (1, 2)")
            # A target is recorded before its table exists.
            parts = [part("shop/east", "default.east_orders", "default.east_later"), part("shop/west")]
            probe = MergeTableProbe("{source}_", parts, embedded_servers)
            probe.close()
            shown = "SELECT _table, id FROM default.orders FINAL ORDER BY _table"
            assert client.query(shown).result_rows == [("east_orders", 1), ("west_orders", 1)]
            # The source has begun with another column, with or without a record of it.
            parts[1].view.tables({"shop.orders": "default.west_orders"})
            client.command("ALTER TABLE default.east_orders ADD COLUMN note String DEFAULT 'new'")
            probe.run()
            assert sorted(client.query("SELECT _table, note FROM default.orders FINAL").result_rows) == [
                ("east_orders", "new"),
                ("west_orders", ""),
            ]
    assert not failed
