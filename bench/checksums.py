"""Compares the copied tables with the source's: the number of rows and a sum of checksums over every column.

Each server computes both with its own functions. Both sides render a row to the same text: columns in order, NULL as `~`. A row that is
missing, duplicated, stale or different in any column changes the count or the sum.
"""

from __future__ import annotations

from bench.schemas import capture_tables
from bench.target import Target
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sources.mysql.server.connection import MySQLAddress, connect, query

NULL_WORD = "~"


def compare_tables(target: Target, sink: ClickHouseReader) -> None:
    """Raise an error unless every table has the same rows on both sides."""
    address = MySQLAddress(target.host, target.port, target.user, target.password, target.database)
    for schema in capture_tables(target):
        with connect(address) as connection:
            theirs = tuple(map(int, query(connection, address, source_sql(schema))[0]))
        _, rows = sink.query(target_sql(schema))
        ours = tuple(map(int, rows[0]))
        if ours != theirs:
            raise DefiniteError(f"the copy has (rows, checksum) {ours}, the source has {theirs}", place=str(schema.name))


def source_sql(schema: TableSchema) -> str:
    parts = ", ".join(f"COALESCE({_as_char(column)}, '{NULL_WORD}')" for column in schema.columns)
    return f"SELECT COUNT(*), COALESCE(SUM(CRC32(CONCAT_WS('|', {parts}))), 0) FROM {schema.name}"


def target_sql(schema: TableSchema) -> str:
    parts = ", ".join(f"ifNull({_as_text(column)}, '{NULL_WORD}')" for column in schema.columns)
    return f"SELECT count(), sum(toUInt64(CRC32(concatWithSeparator('|', {parts})))) FROM {schema.name} FINAL"


def _as_char(column: Column) -> str:
    text = f"CAST(`{column.name}` AS CHAR)"
    # Debezium writes JSON documents without the spaces that MySQL writes.
    return f"REPLACE(REPLACE({text}, ': ', ':'), ', ', ',')" if column.kind is Kind.JSON else text


def _as_text(column: Column) -> str:
    if column.kind is Kind.JSON:
        return f"replaceAll(replaceAll(toString(`{column.name}`), ': ', ':'), ', ', ',')"
    if column.kind is Kind.DECIMAL:
        # MySQL prints trailing zeros.
        return f"toDecimalString(`{column.name}`, {column.scale})"
    return f"toString(`{column.name}`)"
