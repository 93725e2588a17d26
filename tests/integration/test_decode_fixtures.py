"""The recordings in tests/golden are what these servers write. With HEADRACE_WRITE_FIXTURES=1 they are written anew."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.demo.server import PrivateServer
from headrace.model.change import Op
from headrace.sources.mysql.decoder import ReadOptions
from headrace.sources.mysql.position import BinlogPosition
from testkit.binlogs import Image, Logbook, images_of, open_logbook
from testkit.recordings import Recording, load_recording, save_recording, told

DATABASE = "golden"
TABLES = ("numbers", "words")
SCHEMA = (
    "CREATE TABLE numbers (id BIGINT UNSIGNED, tiny TINYINT, medium MEDIUMINT, f FLOAT, d DOUBLE, small DECIMAL(9,4), wide DECIMAL(65,30),"
    " bits BIT(13), PRIMARY KEY (id))",
    "CREATE TABLE words (code CHAR(4), day DATE NOT NULL, at DATETIME(3), stamp TIMESTAMP(6) NULL, spent TIME(2), y YEAR,"
    " v VARCHAR(300), t TEXT, b BINARY(6), bl BLOB, e ENUM('red','green','🚰') COLLATE utf8mb4_bin,"
    " s SET('a','b','c'), j JSON, PRIMARY KEY (day, code))",
)
WORKLOAD = (
    "SET SESSION timestamp = 1700000000",
    "BEGIN",
    "INSERT INTO numbers VALUES (1, -128, 8388607, 1.5, -1e300, -12345.6789, 1.5, 5000), (18446744073709551615, 127, -8388608, NULL,"
    " 0.1, 99999.9999, -99999999999999999999999999999999999.999999999999999999999999999999, 8191), (3, NULL, NULL, NULL, NULL, NULL,"
    " NULL, NULL)",
    "INSERT INTO words VALUES ('ab', '2024-02-29', '9999-12-31 23:59:59.999', '2038-01-19 03:14:07.999999', '-838:59:58.99', 2155,"
    " REPEAT('é', 300), 'text', x'0100', x'ff00', '🚰', 'a,c', '{\"k\": [1, null, \"v\"]}')",
    "UPDATE numbers SET tiny = 0, wide = NULL WHERE id = 1",
    "COMMIT",
    "UPDATE words SET code = 'AB', spent = '00:00:00.01', e = 'red', s = '', y = 0, j = '[]'",
    "UPDATE numbers SET id = 4 WHERE id = 3",
    "DELETE FROM numbers",
    "INSERT INTO words (code, day) VALUES ('', '1000-01-01')",
    "DELETE FROM words",
    "SET SESSION timestamp = DEFAULT",
)


@pytest.fixture
def book(server: PrivateServer) -> Iterator[Logbook]:
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        with open_logbook(server, DATABASE) as book:
            yield book
        cursor.execute(f"DROP DATABASE {DATABASE}")


def replay(images: list[Image]) -> dict[str, list[str]]:
    """What the tables hold after these images."""
    tables: dict[str, list[str]] = {table: [] for table in TABLES}
    for image in images:
        rows = tables[image.table.table]
        if image.op in (Op.DELETE, Op.BEFORE):
            rows.remove(repr(image.row))
        else:
            rows.append(repr(image.row))
    return {table: sorted(rows) for table, rows in tables.items()}


def test_the_recording_is_what_this_server_writes(book: Logbook) -> None:
    book.run(*SCHEMA)
    start = book.place()
    shown = []
    for statement in WORKLOAD:
        book.run(statement)
        shown.append((book.place(), {table: sorted(map(repr, book.select(book.schema(table)))) for table in TABLES}))
    images = images_of(book.read(start, *TABLES, options=ReadOptions(every_before=True)))
    for place, tables in shown[WORKLOAD.index("COMMIT") :]:
        limit = BinlogPosition(place.file, place.offset).version
        assert replay([image for image in images if image.version < limit]) == tables
    version = book.server.program.version
    now = Recording(
        f"{book.server.flavour} {version}",
        (*SCHEMA, *WORKLOAD),
        start.file,
        start.offset,
        book.bytes_of(book.segment(start)),
        tuple(book.schema(table) for table in TABLES),
        tuple(told(image) for image in images),
    )
    name = f"decode_{book.server.flavour}"
    if os.environ.get("HEADRACE_WRITE_FIXTURES"):
        save_recording(name, now)
    kept = load_recording(name)
    assert kept.sql == now.sql
    # Places differ from run to run, rows and schemas do not.
    assert [(op, table, row) for op, _, table, row in kept.images] == [(op, table, row) for op, _, table, row in now.images]
    assert kept.schemas == now.schemas
