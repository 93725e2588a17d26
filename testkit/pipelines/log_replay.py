"""Runs histories on a base table and replays their log into another table: the server must return the same for both.

The server's answers are compared byte for byte: values, write times, TTLs. Then both tables get the same writes and deletions, which reveal
what a SELECT hides: tombstones of all kinds, and the rows' markers with their timestamps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Final

import pyarrow as pa

from headrace.cql.address import parse_cql_url
from headrace.cql.blocks import LogBlock
from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.decode.pages import read_rows
from headrace.cql.language.ddl_printer import create_table, create_type, table_name
from headrace.cql.session import CqlSession
from headrace.cql.tables import ColumnRole, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.sinks.cql.execution import bound
from headrace.sinks.cql.sink import ReplaySink
from headrace.sinks.cql.target_tables import moved
from headrace.sources.scylla.capture.statement_capture import Capture, log_block
from headrace.sources.scylla.snapshot.table_probe import probe_write_times
from testkit.generators.cql_histories import START, History, literal, random_history

_SLACK_S: Final = 120
"""The server returns the remaining TTL; those of a history are 10,000 s apart."""


class LogReplay:
    """Two keyspaces of one server; both are created here unless the first exists."""

    def __init__(self, session: CqlSession, url: str, source: str | None, target: str, *, start: int = START) -> None:
        self.session, self.source, self.target, self.start = session, source or "", target, start
        address = parse_cql_url(url)
        self.sink = ReplaySink(replace(address, keyspace=target))
        for keyspace in filter(None, (source, target)):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
            session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")

    def check(self, seed: int, statements: int) -> None:
        """A random table and history, all the way."""
        history = random_history(seed, statements, keyspace=self.source)
        blocks = self.run(history)
        self.replay(history.table, shuffled(blocks, Random(seed)))
        self.compare(history.table)
        self.provoke(history.table, Random(seed), statements)

    def run(self, history: History) -> list[LogBlock]:
        """Run the history on the server; return its log, a block for each statement."""
        for kind in history.udts:
            self.session.execute(create_type(kind, if_not_exists=True))
        self.session.execute(create_table(history.table))
        capture = Capture([history.table])
        blocks = []
        for statement in history.statements:
            rows = capture.log(statement.text)
            self.session.driver.execute(statement.text)
            blocks.append(log_block(history.table, rows, int(time.time())))
        return blocks

    def replay(self, table: CqlTable, blocks: Iterable[LogBlock]) -> None:
        self.sink.prepare([table])
        writer = self.sink.writer()
        for block in blocks:
            writer.write(block)
        writer.close()

    def compare(self, table: CqlTable, *, about: str = "", list_times: bool = True) -> None:
        """Compare both tables; without `list_times`, only the values of lists."""
        there, here = (self._shown(one) for one in (table, moved(table, self.target)))
        if not list_times:
            lists = [quoted(column.name) for column in table.cells if column.type.name == "list" and not column.type.is_atomic]
            times = [f"writetime({name})" for name in lists if f"writetime({name})" in there.column_names]
            there, here = (one.drop_columns(times) for one in (there, here))
        ttls = [name for name in there.column_names if name.startswith("ttl(")]
        plain = [name for name in there.column_names if name not in ttls]
        assert there.select(plain).to_pylist() == here.select(plain).to_pylist(), f"{table.name}{about}"
        for name in ttls:
            kind = _TTLS if table.column(_column_of(name, table)).type.is_atomic is False else CqlType("int")
            pairs = zip(_column(kind, there, name), _column(kind, here, name), strict=True)
            assert all(_close(one, other) for one, other in pairs), f"{table.name}{about}: {name}"

    def provoke(self, table: CqlTable, random: Random, statements: int) -> None:
        """Write in the middle of the history, then delete more and more, in both tables."""
        keys = self._keys(table)
        middle = self.start + max(3, statements // 2) // 2
        for column in table.cells:
            if column.type.name == "list" and not column.type.is_atomic:
                continue  # on Apache Cassandra the replayed table itself has no tombstones
            value = literal(random, column.type)
            scope = keys if column.role is ColumnRole.REGULAR else {key[: len(table.partition_key)] for key in keys}
            sign = f"{quoted(column.name)} + " if not column.type.is_atomic and column.type.name != "udt" else ""
            text = f"UPDATE TABLE USING TIMESTAMP {middle} SET {quoted(column.name)} = {sign}{value}"
            self._both(table, text, scope)
        self.compare(table, about=", after writes in its middle")
        cells = ", ".join(quoted(column.name) for column in table.cells)
        latest = self.start + 10 * statements
        self._both(table, f"DELETE {cells} FROM TABLE USING TIMESTAMP {latest}", keys)
        self.compare(table, about=", its cells deleted")
        for part in (4, 2, 1):
            self._both(table, f"DELETE FROM TABLE USING TIMESTAMP {self.start + max(3, statements // 2) // part}", keys)
            self.compare(table, about=", its rows deleted")

    def _keys(self, table: CqlTable) -> set[tuple[bytes, ...]]:
        names = [column.name for column in (*table.partition_key, *table.clustering)]
        query = f"SELECT {', '.join(map(quoted, names))} FROM {table_name(table.name)}"
        rows = [tuple(row.values()) for batch in read_rows(self.session, query) for row in batch.to_pylist()]
        return {row for row in rows if None not in row}

    def _both(self, table: CqlTable, text: str, keys: Iterable[tuple[bytes, ...]]) -> None:
        names = [column.name for column in (*table.partition_key, *table.clustering)]
        for one in (table, moved(table, self.target)):
            for key in keys:
                where = " AND ".join(f"{quoted(name)} = ?" for name in names[: len(key)])
                self.session.driver.execute(bound(self.session, f"{text.replace('TABLE', table_name(one.name), 1)} WHERE {where}", key))

    def _shown(self, table: CqlTable) -> pa.Table:
        keys = [quoted(column.name) for column in (*table.partition_key, *table.clustering)]
        cells = [quoted(column.name) for column in table.cells]
        readable = probe_write_times(self.session, table).columns
        timed = [quoted(column.name) for column in table.cells if column.name in readable]
        wanted = [*keys, *cells, *(form.format(name) for name in timed for form in ("WRITETIME({})", "TTL({})"))]
        names = [*keys, *cells, *(form.format(name) for name in timed for form in ("writetime({})", "ttl({})"))]
        batches = list(read_rows(self.session, f"SELECT {', '.join(wanted)} FROM {table_name(table.name)}"))
        schema = pa.schema([(name, pa.binary()) for name in names])
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches], schema)


_TTLS: Final = CqlType("list", (CqlType("int"),), frozen=True)


def _column_of(name: str, table: CqlTable) -> str:
    return next(column.name for column in table.cells if f"ttl({quoted(column.name)})" == name)


def _column(kind: CqlType, table: pa.Table, name: str) -> list[Any]:
    column = table.column(name).combine_chunks()
    return list(to_arrow(kind, column, name).to_pylist())


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if one is None or other is None:
        return one is other
    return bool(abs(one - other) <= _SLACK_S)


def shuffled(blocks: list[LogBlock], random: Random) -> list[LogBlock]:
    """Blocks in another order, some of them twice."""
    found = [*blocks, *random.sample(blocks, len(blocks) // 3)]
    random.shuffle(found)
    return found
