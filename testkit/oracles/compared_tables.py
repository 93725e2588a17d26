"""Compares tables with any columns as texts: the source's SELECT, and the target's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from clickhouse_connect.driver.client import Client

from testkit.oracles.binlogs import Logbook

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def shown_by_source(book: Logbook, table: str) -> Counter[Any]:
    """Return the rows of the source's SELECT, every value as text; floats as the server stores them."""
    described = book.fetch(f"SHOW COLUMNS FROM `{table}`")
    columns = []
    for name, type_name, *_ in described:
        kind = type_name if isinstance(type_name, str) else type_name.decode()
        by_kind = {"float": f"CAST(`{name}` AS DOUBLE)", "bit": f"`{name}` + 0", "bin": f"HEX(`{name}`)", "varb": f"HEX(`{name}`)"}
        columns.append(next((text for word, text in by_kind.items() if kind.startswith(word)), f"`{name}`"))
    return Counter(tuple(_plain(value) for value in row) for row in book.fetch(f"SELECT {', '.join(columns)} FROM `{table}`"))


def shown_by_sink(client: Client, book: Logbook, table: str, source: str | None = None) -> Counter[Any]:
    """Return the target's rows, in the source's columns and text form."""
    described = book.fetch(f"SHOW COLUMNS FROM `{source or table}`")
    place = f"`{book.database}`.`{table}`"
    views = client.query(f"SELECT count() FROM system.tables WHERE database = '{book.database}' AND name = '{table}_current'").result_rows
    read = f"`{book.database}`.`{table}_current`" if views[0][0] else f"{place} FINAL"
    columns = []
    for name, type_name, *_ in described:
        kind = type_name if isinstance(type_name, str) else type_name.decode()
        wrapped = f"hex(`{name}`)" if kind.startswith(("bin", "varb")) else f"toString(`{name}`)"
        columns.append(f"`{name}`" if kind.startswith(("float", "double")) else wrapped)
    return Counter(tuple(_plain(value) for value in row) for row in client.query(f"SELECT {', '.join(columns)} FROM {read}").result_rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode()
    text = repr(value) if isinstance(value, float) else value
    return Decimal(text).normalize() if isinstance(text, str) and _NUMBER.fullmatch(text) else value


def assert_same(client: Client, book: Logbook, tables: Sequence[str]) -> None:
    pairs = {table: (shown_by_source(book, table), shown_by_sink(client, book, table)) for table in tables}
    wrong = [f"{table}: missing {source - sink}, extra {sink - source}" for table, (source, sink) in pairs.items() if source != sink]
    assert not wrong, "\n".join(wrong)
