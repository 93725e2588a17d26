"""Probes a table before it is read: its distribution, its size, and which cells have readable write times."""

from __future__ import annotations

import functools
import logging
from typing import Final

from headrace.cql.language.ddl_printer import table_name
from headrace.cql.session import CqlSession
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import quoted
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.retry import retrying
from headrace.sources.scylla.snapshot.base_rows import WriteTimeColumns
from headrace.sources.scylla.snapshot.token_ranges import RING, Ring

log = logging.getLogger("headrace.scylla")

_TIMES: Final = ["bigint", "int"]
"""WRITETIME and TTL of one cell."""


@functools.lru_cache(maxsize=256)
def probe_write_times(session: CqlSession, table: CqlTable) -> WriteTimeColumns:
    """Return the columns with readable write times and expiries: not collections on ScyllaDB; on Cassandra 5 also those, per element."""
    return WriteTimeColumns(
        frozenset(column.name for column in table.cells if column.type.is_atomic or _has_write_time(session, table.name, column))
    )


def _has_write_time(session: CqlSession, table: TableName, column: CqlColumn) -> bool:
    name = quoted(column.name)
    query = f"SELECT WRITETIME({name}), TTL({name}) FROM {table_name(table)}"
    try:
        prepared = retrying(lambda: session.prepare(query))
    except DefiniteError as error:
        log.debug("%s.%s: %s", table, column.name, error.message)
        return False
    types = [kind.cql_parameterized_type() for _, _, _, kind in prepared.result_metadata]
    # One time for the whole collection would not describe its elements.
    return types in ([f"list<{kind}>" for kind in _TIMES], [f"frozen<list<{kind}>>" for kind in _TIMES])


def read_ring(session: CqlSession, table: TableName) -> Ring:
    """Return the ends of the nodes' ranges and the size of a table, as the answering node knows them."""
    rows = [*session.execute("SELECT partitioner, tokens FROM system.local"), *session.execute("SELECT tokens FROM system.peers")]
    partitioner = rows[0].partitioner.rpartition(".")[2]
    if partitioner != "Murmur3Partitioner":
        hint = "read only the log: --snapshot none"
        raise DefiniteError(f"the cluster uses {partitioner}; only Murmur3Partitioner is supported", place=f"table {table}", hint=hint)
    tokens = tuple(sorted({int(token) for row in rows for token in row.tokens or ()}))
    size, partitions = _estimate(session, table)
    return Ring(tokens, size, partitions)


def _estimate(session: CqlSession, table: TableName) -> tuple[int, int]:
    """Estimate bytes and partitions of the table from one node's ranges, extrapolated to the ring."""
    columns = "range_start, range_end, mean_partition_size, partitions_count"
    query = f"SELECT {columns} FROM system.size_estimates WHERE keyspace_name = %s AND table_name = %s"
    try:
        rows = session.execute(query, (table.database, table.table))
    except DefiniteError as error:
        # The size only influences the size of chunks.
        log.debug("size of %s: %s", table, error.message)
        return 0, 0
    share = min(sum((int(row.range_end) - int(row.range_start)) % RING or RING for row in rows) / RING, 1.0)
    if not share:
        return 0, 0
    partitions = sum(row.partitions_count for row in rows)
    size = sum(row.partitions_count * row.mean_partition_size for row in rows)
    return int(size / share), int(partitions / share)
