"""A server with one table of many rows. The server generates the rows once, and they are cached next to the logs of `bench.corpus`.

The server's binary log is off: the benchmark needs the rows, not the changes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.corpus import GRANTS, SETTINGS, hold_lock
from bench.target import DATABASE, PASSWORD, USER
from headrace.demo.private_server import PrivateServer
from testkit.servers.servers import find_program

TABLE = "orders"
REVISION = 1
PIECE = 100_000
"""Rows of one statement."""
DIGITS = "SELECT 0 AS n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 10))
SCHEMA = f"""CREATE TABLE {DATABASE}.{TABLE} (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  customer_id INT UNSIGNED NOT NULL,
  status ENUM('new','paid','packed','shipped','returned') NOT NULL,
  amount DECIMAL(12,2) NOT NULL,
  quantity SMALLINT NOT NULL,
  weight DOUBLE NOT NULL,
  created_at DATETIME(6) NOT NULL,
  shipped_on DATE NULL,
  note VARCHAR(200) NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"""


@contextmanager
def open_large_table(flavour: str, rows: int, cache: Path) -> Iterator[PrivateServer]:
    """Start the server; fill its table first if it is not in the cache."""
    program = find_program(flavour)
    directory = cache / f"{flavour}-{program.version}-rows-{rows}-r{REVISION}"
    cache.mkdir(parents=True, exist_ok=True)
    with hold_lock(directory.with_name(directory.name + ".lock")):
        manifest = directory / "manifest.json"
        if not manifest.exists():
            shutil.rmtree(directory, ignore_errors=True)
            with PrivateServer(program, directory, SETTINGS) as server:
                _fill(server, rows)
            manifest.write_text(json.dumps({"rows": rows}))
        with PrivateServer(program, directory, SETTINGS) as server:
            yield server


def _fill(server: PrivateServer, rows: int) -> None:
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT {GRANTS} ON *.* TO '{USER}'@'%'")
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"CREATE TABLE {DATABASE}.numbers (n INT PRIMARY KEY)")
        places = " + ".join(f"d{place}.n * {10**place}" for place in range(5))
        tables = ", ".join(f"({DIGITS}) d{place}" for place in range(5))
        cursor.execute(f"INSERT INTO {DATABASE}.numbers SELECT {places} FROM {tables}")
        cursor.execute(SCHEMA)
        for first in range(1, rows + 1, PIECE):
            cursor.execute(_insert_sql(first, min(PIECE, rows + 1 - first)))
        cursor.execute(f"DROP TABLE {DATABASE}.numbers")
        cursor.execute(f"ANALYZE TABLE {DATABASE}.{TABLE}")


def _insert_sql(first: int, count: int) -> str:
    """Insert rows `first` to `first + count - 1`. Their values look random, but are functions of the key."""
    key = f"(n + {first})"
    return (
        f"INSERT INTO {DATABASE}.{TABLE} SELECT {key}, {key} * 2654435761 % 200000, 1 + {key} * 7919 % 5, {key} * 104729 % 9000000 / 100, "
        f"{key} * 31 % 100, {key} / 7, '2020-01-01' + INTERVAL {key} * 7919 % 157680000 SECOND + INTERVAL {key} * 104729 % 1000000 "
        "MICROSECOND, "
        f"IF({key} % 3 = 0, NULL, '2020-01-01' + INTERVAL {key} % 1800 DAY), "
        f"IF({key} % 5 < 3, NULL, CONCAT('leave at door ', {key} % 1000, ', größe ', {key} % 7)) "
        f"FROM {DATABASE}.numbers WHERE n < {count}"
    )
