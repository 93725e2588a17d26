"""Compares the source's rows (PyMySQL) with the sink's rows (clickhouse-connect) in plain Python.

It does not use Headrace's readers, decoders or `verify`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from testkit.pipelines.embedded_access import PASSWORD


def sink_client(url: str, password: str = PASSWORD) -> Client:
    """A client of the ClickHouse at `clickhouse://user@host:port` or `http://host:port`."""
    parts = urlsplit(url)
    return clickhouse_connect.get_client(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 8123,
        username=parts.username or "default",
        password=parts.password or password,
    )


def log_end(server: PrivateServer) -> tuple[int, int]:
    """File number and offset at which the server's log ends."""
    status = "SHOW MASTER STATUS" if server.flavour == "mariadb" else "SHOW BINARY LOG STATUS"
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(status)
        row = cursor.fetchone()
    return int(row[0].rpartition(".")[2]), int(row[1])


def source_rows(server: PrivateServer, database: str, table: str) -> list[tuple[Any, ...]]:
    with closing(server.root_connection(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM `{table}`")
        return sorted(cursor.fetchall(), key=repr)


def sink_rows(client: Client, server: PrivateServer, database: str, table: str) -> list[tuple[Any, ...]]:
    """The table's current rows, its columns in the source's order."""
    with closing(server.root_connection(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM `{table}` LIMIT 0")
        columns = ", ".join(f"`{column[0]}`" for column in cursor.description)
    return sorted((tuple(row) for row in client.query(f"SELECT {columns} FROM `{database}`.`{table}` FINAL").result_rows), key=repr)


def assert_equal(client: Client, server: PrivateServer, database: str, tables: tuple[str, ...], key: dict[str, str]) -> int:
    """Check that both sides hold the same rows, none missing and none twice; return how many."""
    total = 0
    for table in tables:
        expected = source_rows(server, database, table)
        found = sink_rows(client, server, database, table)
        missing, extra = sorted(set(expected) - set(found), key=repr), sorted(set(found) - set(expected), key=repr)
        assert (missing[:5], extra[:5]) == ([], []), f"{table}: {len(missing)} missing, {len(extra)} extra"
        counts = client.query(f"SELECT count(), uniqExact({key[table]}) FROM `{database}`.`{table}` FINAL").result_rows[0]
        assert tuple(counts) == (len(expected), len(expected)), table
        total += len(expected)
    return total
