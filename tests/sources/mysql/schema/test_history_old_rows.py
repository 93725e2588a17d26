"""With MINIMAL metadata the log names no columns: a reader that starts late reads each row by the definition of its time."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import closing

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.sources.mysql.schema.catalog_capture import capture_catalog, read_dialect
from headrace.sources.mysql.schema.schema_history import OutcomeKind, SchemaHistory
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.segments.table_read_plan import ReadCatalog, plan_tables
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Logbook, Place, Row, images_of, open_logbook, parts_of
from testkit.oracles.ddl import logged
from testkit.servers.servers import execute

STEPS = [
    ("INSERT INTO t VALUES (1, 10, 'one'), (2, 20, 'zwei')", ""),
    ("ALTER TABLE t ADD d DECIMAL(8,3) NOT NULL DEFAULT 1.5 AFTER id", "INSERT INTO t VALUES (3, 2.125, 30, 'drei')"),
    ("ALTER TABLE t MODIFY n BIGINT UNSIGNED FIRST, ADD e ENUM('x','y')", "INSERT INTO t VALUES (18446744073709551615, 4, 0, 'vier', 'y')"),
    ("ALTER TABLE t DROP COLUMN d, CHANGE s s TEXT CHARACTER SET latin1", "INSERT INTO t VALUES (5, 5, 'fünf', 'x')"),
    ("ALTER TABLE t MODIFY e ENUM('y','z','x')", "INSERT INTO t VALUES (6, 6, 'sechs', 'y')"),
    ("RENAME TABLE t TO away, spare TO t", "INSERT INTO t VALUES ('2001-02-03 04:05:06', 7)"),
    ("RENAME TABLE t TO spare, away TO t", "INSERT INTO t VALUES (8, 8, NULL, NULL)"),
]


def test_old_rows_are_read_by_their_own_schema(fresh_server: Callable[..., PrivateServer]) -> None:
    server = fresh_server(binlog_row_metadata="MINIMAL")
    execute(server, "CREATE DATABASE old")
    with open_logbook(server, "old") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, n INT, s VARCHAR(9))", "CREATE TABLE spare (at DATETIME, id INT PRIMARY KEY)")
        with closing(connect(book.address)) as connection:
            history = SchemaHistory(lambda name: name.table == "t", read_dialect(connection, book.address))
            history.begin(*capture_catalog(connection, book.address, lambda name: name.table == "t", 0))
        start = book.place()
        expected: list[Row] = []
        for statement, insert in STEPS:
            book.run(*filter(None, (statement, insert)))
            schema = book.schema("t")
            key = [column.name for column in schema.columns].index("id")
            rows = sorted(book.select(schema), key=operator.itemgetter(key))
            # The newest row has the highest id; before the first ALTER all rows are new.
            expected += rows[-1:] if insert else rows
        answers = [history.follow(*found) for found in logged(book, start)]
        assert [answer.outcome for answer in answers] == [OutcomeKind.CHANGED] * 4 + [OutcomeKind.RESYNC] * 2
        assert _read_late(book, history, start) == expected


def _read_late(book: Logbook, history: SchemaHistory, start: Place) -> list[Row]:
    """The rows of all inserts since `start`, each piece between two statements read by the definitions of its beginning."""
    whole = book.segment(start)
    cuts = [position.offset for _, position in logged(book, start) if position.offset < whole.end]
    rows: list[Row] = []
    for part in parts_of(whole, cuts):
        schemas = dict(history.as_of(BinlogPosition(part.file, part.start)).tables)
        keys = {name: schema.primary_key for name, schema in schemas.items()}
        catalog = ReadCatalog(plan_tables(schemas, keys), lambda name: name == TableName("old", "t"))
        rows += [image.row for image in images_of(list(read_segment(part, catalog))) if image.op is Op.INSERT]
    return rows
