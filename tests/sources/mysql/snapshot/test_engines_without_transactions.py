"""A table whose engine has no transactions does not change between the position of its snapshot and its last row."""

from __future__ import annotations

from contextlib import closing

import pymysql
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, read_chunk
from headrace.sources.mysql.snapshot.locked_snapshot import check_has_transactions, exact_table_snapshot
from testkit.oracles.binlogs import open_logbook


def test_a_table_without_transactions_is_locked_while_it_is_read(server: PrivateServer, database: str) -> None:
    name = TableName(database, "t")
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE t (id INT) ENGINE = MyISAM", "INSERT INTO t VALUES (1), (1), (2)", "SET SESSION lock_wait_timeout = 1")
        with exact_table_snapshot(book.address, name, 0) as reader:
            place = book.place()
            assert (reader.position.file, reader.position.offset) == (place.file, place.offset)
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                book.run("INSERT INTO t VALUES (3)")
        book.run("INSERT INTO t VALUES (3)")
        blocks = read_chunk(book.address, book.schema("t"), Chunk(database, "t", 0, "", 4), 0, ReadOptions())
        assert sum(block.rows for block in blocks) == 4
        book.run("INSERT INTO t VALUES (4)", "CREATE TABLE u (id INT) ENGINE = InnoDB")
        with closing(connect(book.address)) as connection:
            check_has_transactions(connection, book.address, TableName(database, "u"))
            with pytest.raises(DefiniteError, match="has no transactions"):
                check_has_transactions(connection, book.address, name)
