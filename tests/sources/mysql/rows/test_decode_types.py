"""Extreme values of every column type: Headrace, the server's SELECT and mysql-replication agree.

Each type has a column and a list of SQL values; row r of the table holds value r of every type (lists are repeated to the longest), the
last row is NULL throughout. The rows are inserted, each is updated to the next one's values, and all are deleted.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import Op
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from testkit.generators.server_types import ROWS, TYPES, literals
from testkit.oracles.binlogs import Logbook, Row, Value, fraction_text, images_of, new_logbook, time_text


class Workload:
    """The table's changes, made once per server."""

    def __init__(self, book: Logbook) -> None:
        self.book = book
        columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
        # 90 columns of a few kilobytes exceed a page's row; most of it is stored off the page.
        book.run(f"CREATE TABLE every_type (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        self.start = book.place()
        book.run(*(f"INSERT INTO every_type VALUES ({row}, {literals(row)})" for row in range(ROWS)))
        book.run("INSERT INTO every_type (id) VALUES (1000)")
        self.schema = book.schema("every_type")
        self.inserted = book.select(self.schema)
        self.scanned = book.scanned(self.schema)
        for row in range(ROWS):
            values = [values[(row + 1) % len(values)] for _, values in TYPES.values()]
            book.run(f"UPDATE every_type SET {', '.join(f'`{n}` = {v}' for n, v in zip(TYPES, values, strict=True))} WHERE id = {row}")
        self.updated = book.select(self.schema)
        book.run("DELETE FROM every_type")
        self.images = images_of(book.read_by(self.start, self.schema, ReadOptions(every_before=True)))

    def rows(self, op: Op) -> list[Row]:
        return sorted((image.row for image in self.images if image.op is op), key=lambda row: int(str(row[0])))


@pytest.fixture(scope="module")
def workload(server: PrivateServer) -> Iterator[Workload]:
    with new_logbook(server, "decode_types") as book:
        yield Workload(book)


def differences(schema: TableSchema, found: list[Row], expected: list[Row]) -> list[tuple[str, str, str]]:
    """Column, Headrace's value and the reference: short enough to read in a failed test."""
    assert len(found) == len(expected)
    return [
        (column.name, repr(mine)[:80], repr(theirs)[:80])
        for ours, expected_row in zip(found, expected, strict=True)
        for column, mine, theirs in zip(schema.columns, ours, expected_row, strict=True)
        if mine != theirs
    ]


def test_inserted_images_are_what_the_server_selects(workload: Workload) -> None:
    assert len(workload.inserted) == ROWS + 1
    assert differences(workload.schema, workload.rows(Op.INSERT), workload.inserted) == []


def test_protocol_rows_are_what_the_server_selects(workload: Workload) -> None:
    assert differences(workload.schema, workload.scanned, workload.inserted) == []


def test_updates_hold_the_rows_before_and_after(workload: Workload) -> None:
    changed = [row for row in workload.inserted if row[0] != "1000"]
    assert differences(workload.schema, workload.rows(Op.BEFORE), changed) == []
    assert differences(workload.schema, workload.rows(Op.UPDATE), [row for row in workload.updated if row[0] != "1000"]) == []


def test_deleted_images_are_the_last_rows(workload: Workload) -> None:
    assert differences(workload.schema, workload.rows(Op.DELETE), workload.updated) == []


def test_a_row_of_nulls_is_null_in_every_column(workload: Workload) -> None:
    [nulls] = [row for row in workload.rows(Op.INSERT) if row[0] == "1000"]
    assert set(nulls[1:]) == {None}


def test_the_schema_of_the_log_decodes_the_same_rows(workload: Workload) -> None:
    of_log = workload.book.logged_schema(workload.start, "every_type")
    assert (of_log.name, of_log.primary_key) == (workload.schema.name, workload.schema.primary_key)
    for mine, theirs in zip(of_log.columns, workload.schema.columns, strict=True):
        assert (mine.name, mine.kind, mine.nullable, mine.precision, mine.scale, mine.charset, mine.arrow_type) == (
            *(theirs.name, theirs.kind, theirs.nullable, theirs.precision, theirs.scale, theirs.charset, theirs.arrow_type),
        )
    assert images_of(workload.book.read_by(workload.start, of_log, ReadOptions(every_before=True))) == workload.images


OPS = {"insert": Op.INSERT, "before": Op.BEFORE, "update": Op.UPDATE, "delete": Op.DELETE}


def test_mysql_replication_reads_the_same_rows(workload: Workload) -> None:
    read = workload.book.replicated(workload.start, "every_type")
    assert [OPS[kind] for kind, _ in read] == [image.op for image in workload.images]
    wrong = []
    for (_, values), image in zip(read, workload.images, strict=True):
        for column, mine in zip(workload.schema.columns, image.row, strict=True):
            theirs = oracle_value(column, values[column.name])
            if theirs is not UNSURE and not agrees(column, mine, theirs):
                wrong.append((column.name, repr(mine)[:80], repr(values[column.name])[:80]))
    assert wrong == []


UNSURE: Any = object()


def oracle_value(column: Column, value: Any) -> Any:
    """A value of mysql-replication as the server's text; UNSURE where the package is wrong or loses the value."""
    match column.kind, value:
        case Kind.SET, None:
            return UNSURE  # an empty set and NULL are both None there
        case Kind.DATE | Kind.DATETIME, None:
            return UNSURE  # dates of year 0 are None there
        case Kind.YEAR, 1900:
            return "0000"  # it adds 1900 to the year 0000 as well
        case _, None:
            return None
        case Kind.SET, set():
            return value
        case Kind.BIT, str():
            return str(int(value, 2))
        case Kind.DECIMAL, Decimal():
            return f"{value:f}"
        case Kind.DATE, datetime.date():
            return value.isoformat()
        case ((Kind.DATETIME | Kind.TIMESTAMP), datetime.datetime()):
            return value.replace(microsecond=0, tzinfo=None).isoformat(" ") + fraction_text(value.microsecond, column.precision)
        case Kind.TIME, datetime.timedelta():
            micros = value // datetime.timedelta(microseconds=1)
            if micros < 0 and value.microseconds:
                # It adds the fraction of a negative time instead of subtracting it.
                micros += 1_000_000 - 2 * value.microseconds
            return time_text(micros, column.precision)
        case Kind.YEAR, int():
            return f"{value:04d}"
        case Kind.JSON, _:
            return plain(value)
        case Kind.BYTES, _:
            # It drops the padding of BINARY(n), and returns ASCII-only bytes as text.
            stored = value.encode() if isinstance(value, str) else bytes(value)
            return stored.ljust(int(column.source_type[7:-1]), b"\0") if column.source_type.startswith("binary(") else stored
        case ((Kind.FLOAT32 | Kind.FLOAT64), float()):
            return value
        case _:
            return str(value)


def plain(value: Any) -> Any:
    """A JSON value of the package, which returns texts and keys as bytes."""
    match value:
        case bytes():
            return value.decode()
        case dict():
            return {plain(key): plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case _:
            return value


def agrees(column: Column, mine: Value, theirs: Any) -> bool:
    if column.kind is Kind.JSON and mine is not None:
        return bool(json.loads(str(mine)) == theirs)
    if column.kind is Kind.SET and mine is not None:
        return bool(set(str(mine).split(",")) == theirs)
    return bool(mine == theirs)
