"""The sink's own database, in which pipes keep their books: positions, schema changes, errors."""

from __future__ import annotations

from headrace.sinks.clickhouse.client import Connection
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.url import ClickHouseTarget

BOOKS = "headrace"


def ensure_book(connection: Connection, target: ClickHouseTarget, table: str, definition: str) -> str:
    """Make a table of the books unless it is there; its full name, quoted. `definition` is what follows the name in CREATE TABLE."""
    name = f"{quote_name(BOOKS)}.{quote_name(table)}"
    with translated(target, f"making table {BOOKS}.{table}"):
        connection.client.command(f"CREATE DATABASE IF NOT EXISTS {quote_name(BOOKS)}")
        connection.client.command(f"CREATE TABLE IF NOT EXISTS {name} {definition}")
    return name
