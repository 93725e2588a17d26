"""Compares both ends by `headrace verify`, and by sums that each server computes of its rows.

The second check does not use Headrace: MySQL's and ClickHouse's SELECT count rows, count values that are not NULL, add up numbers and add
up CRC-32s of texts, column by column; equal sums for equal rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headrace.demo.private_server import PrivateServer
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.pipeline import run_command
from testkit.soak.routes import Route

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_FLOATS = ("float", "double")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


@dataclass(slots=True)
class Comparison:
    """The comparison of one route."""

    route: str
    verdict: str
    """The last line of `headrace verify`."""
    verify_code: int
    tables: int = 0
    rows: int = 0
    columns: int = 0
    different: list[str] = field(default_factory=list)
    """The differences of the independent check."""

    @property
    def is_equal(self) -> bool:
        return self.verify_code == 0 and not self.different and self.verdict.partition(";")[0].endswith(" 0 differences")


def compare(route: Route, patience_s: float = 900.0) -> Comparison:
    """Do both checks of a route whose source does not change."""
    asked = ("verify", route.url, route.sink, *route.verify_options)
    verified = run_command(*asked, timeout_s=patience_s)
    lines = verified.output.strip().splitlines()
    found = Comparison(route.name, lines[-1] if lines else "nothing was said", verified.code)
    if verified.code:
        found.different.append("verify said: " + " / ".join(lines[-12:])[:1500])
    _look_for_ourselves(route, found)
    return found


def _look_for_ourselves(route: Route, found: Comparison) -> None:
    server, database = route.traffic.server, route.traffic.database
    address = route.address()
    if not address:
        found.different.append("the copy cannot be asked")
        return
    # A separate client: the watch keeps using its own.
    client = sink_client(address)
    shown = {str(row[0]) for row in client.query(f"SELECT name FROM system.tables WHERE database = '{database}'").result_rows}
    for table, columns in _tables(server, database).items():
        if table not in shown:
            found.different.append(f"{table}: not there")
            continue
        from_view = f"{table}_current" in shown
        ours, theirs = _sums(columns)
        with closing(server.root_connection(database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
            cursor.execute(f"SELECT COUNT(*), {', '.join(ours)} FROM `{table}`")
            left = [_plain(value) for value in cursor.fetchone()]
        origin = f"`{database}`.`{table}_current`" if from_view else f"`{database}`.`{table}` FINAL"
        right = [_plain(value) for value in client.query(f"SELECT count(), {', '.join(theirs)} FROM {origin}").result_rows[0]]
        names = ["rows", *(f"{kind} of {name}" for name, _ in columns for kind in ("values", "sum"))]
        found.different += [
            f"{table}: {name}: {one} at the source, {other} in the copy"
            for name, one, other in zip(names, left, right, strict=True)
            if one != other
        ]
        found.tables, found.rows, found.columns = found.tables + 1, found.rows + int(left[0]), found.columns + len(columns)


def _tables(server: PrivateServer, database: str) -> dict[str, list[tuple[str, str]]]:
    """Columns and their types, by table."""
    asked = (
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, ordinal_position"
    )
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(asked, (database,))
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in cursor.fetchall():
            found.setdefault(str(table), []).append((str(column), str(kind).lower()))
    return found


def _sums(columns: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return two expressions per column, for MySQL and for ClickHouse: the number of values, and their sum."""
    ours, theirs = [], []
    for name, kind in columns:
        left, right = _sum_of(kind)
        quoted = f"`{name}`"
        ours += [f"COUNT({quoted})", f"COALESCE(SUM({left(quoted)}), 0)"]
        # An array is never NULL: a missing one is empty.
        count = f"countIf(notEmpty({quoted}))" if kind == "vector" else f"count({quoted})"
        theirs += [count, f"COALESCE(sum({right(quoted)}), 0)"]
    return ours, theirs


def _sum_of(kind: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    if kind in _INTEGERS:
        return lambda name: f"CAST({name} AS DECIMAL(30,0))", lambda name: f"toInt256({name})"
    if kind == "bit":
        return lambda name: f"CAST({name} + 0 AS DECIMAL(30,0))", lambda name: f"toInt256({name})"
    if kind == "decimal":
        return lambda name: name, lambda name: f"toDecimal256({name}, 10)"
    if kind in _FLOATS:
        # Sums of fractions depend on their order; whole numbers of 1024ths do not.
        return lambda name: f"CAST(FLOOR({name} * 1024) AS DECIMAL(30,0))", lambda name: f"toInt256(floor(toFloat64({name}) * 1024))"
    if kind == "time":
        # The printed hours have different widths, and TIME_TO_SEC of MySQL drops the fraction.
        return _seconds, (lambda name: f"toDecimal64({name}, 3)")
    if kind == "vector":
        # As hexadecimal digits: joining would drop bytes that are all zero.
        return lambda name: f"CRC32({name})", lambda name: f"CRC32(unhex(arrayStringConcat(arrayMap(v -> hex(v), {name}))))"
    if kind in _TEXTS:
        return lambda name: f"CRC32(CONVERT({name} USING utf8mb4))", lambda name: f"CRC32(toString({name}))"
    if kind == "json":
        return lambda name: f"CRC32(CAST({name} AS CHAR))", lambda name: f"CRC32({name})"
    if kind in _BYTES or kind == "point":
        return lambda name: f"CRC32({name})", lambda name: f"CRC32({name})"
    # Dates, addresses and similar types: both servers print the same text.
    return lambda name: f"CRC32(CAST({name} AS CHAR))", lambda name: f"CRC32(toString({name}))"


def _seconds(name: str) -> str:
    parts = f"HOUR({name}) * 3600 + MINUTE({name}) * 60 + SECOND({name}) + MICROSECOND({name}) * 0.000001"
    return f"IF({name} < '00:00:00', -1, 1) * ({parts})"


def _plain(value: Any) -> Any:
    """Numbers in one form."""
    if isinstance(value, bool | int | float):
        return Decimal(value).normalize()
    if isinstance(value, Decimal):
        return value.normalize()
    return re.sub(r"\s+", " ", str(value))
