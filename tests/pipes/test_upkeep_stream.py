"""The records of a running pipe in its sink, and its end while the sink is away. One source is enough."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.oracles.both_ends import log_end, sink_client
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline, run_command
from testkit.servers.accounts import create_replica_account


@pytest.mark.timeout(500)
def test_a_pipe_reports_its_position_keeps_refused_rows_and_ends_promptly_while_the_sink_is_away(
    mariadb_server: PrivateServer, tmp_path: Path
) -> None:
    database = "upkeep"
    with mariadb_server.root_connection() as root, root.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))")
        cursor.execute(f"INSERT INTO {database}.t VALUES (1, 'a'), (2, 'b')")
        account = create_replica_account(mariadb_server, "upkeep")
        sink = EmbeddedServer(tmp_path / "clickhouse").start()
        address = url_of(sink)
        chosen = ("--name", "orders", "--set", "on_refused_row=dead_letter", "--set", "cleanup_hours=1")
        pipeline = Pipeline(account.url(database), address, tmp_path / "state", chosen)
        try:
            with pipeline.running() as run:
                client = sink_client(sink.url)

                def rows(sql: str) -> list[tuple[object, ...]]:
                    return [tuple(row) for row in client.query(sql).result_rows]

                run.until(lambda: "snapshot: complete" in run.output, 120)
                run.until(lambda: rows("SELECT 1 FROM system.tables WHERE database = 'headrace' AND name = 'cleanups'"), 120)
                client.command(f"ALTER TABLE {database}.t ADD CONSTRAINT short CHECK length(v) < 5")
                cursor.execute(f"INSERT INTO {database}.t VALUES (3, 'much too long'), (4, 'd')")
                cursor.execute(f"DELETE FROM {database}.t WHERE id = 1")
                root.commit()
                file, offset = log_end(mariadb_server)
                place = "SELECT position FROM headrace.positions FINAL WHERE pipe = 'orders'"
                run.until(lambda: rows(place) == [(f"{_log_name(mariadb_server)}.{file:06d}:{offset}",)], 60)
                assert rows(f"SELECT id FROM {database}.t FINAL ORDER BY id") == [(2,), (4,)]
                assert rows("SELECT pipe, table, key, state FROM headrace.errors FINAL") == [("orders", f"{database}.t", "id=3", "waiting")]
                [(total, incomplete, lag)] = rows("SELECT total_rows, incomplete, lag_seconds FROM headrace.lag WHERE pipe = 'orders'")
                assert (total, incomplete) == (5, [])
                assert isinstance(lag, float)
                assert 0 <= lag < 60
                client.close()
                sink.stop()
                cursor.execute(f"INSERT INTO {database}.t VALUES (5, 'e')")
                root.commit()
                run.until(lambda: "waiting: ClickHouse cannot be reached" in run.output, 60)
                begun = time.monotonic()
                ended = run.terminate()
                assert ended.code == 143, ended.output
                assert time.monotonic() - begun < 30
                assert "stopped at" in ended.output
            sink = EmbeddedServer(tmp_path / "clickhouse", port=sink.port).start()
            client = sink_client(sink.url)
            done = pipeline.once(timeout_s=180)
            assert done.code == 0, done.output
            client.command(f"ALTER TABLE {database}.t DROP CONSTRAINT short")
            again = run_command("retry", address, "--pipe", "orders")
            assert again.code == 0, again.output
            assert "retry: 1 rows written, 0 not" in again.output
            assert client.query(f"SELECT id FROM {database}.t FINAL ORDER BY id").result_rows == [(2,), (3,), (4,), (5,)]
            assert client.query("SELECT total_rows FROM headrace.positions FINAL WHERE pipe = 'orders'").result_rows == [(6,)]
            client.close()
        finally:
            sink.stop()
            cursor.execute(f"DROP DATABASE {database}")


def _log_name(server: PrivateServer) -> str:
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return str(cursor.fetchall()[0][0]).rpartition(".")[0]
