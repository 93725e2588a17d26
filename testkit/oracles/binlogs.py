"""A database whose changes are read in three ways: by Headrace, by the server's SELECT, and by `mysql-replication`.

Rows are compared as the server's own text (`-838:59:59.0`, `1.50`, `0000`), so that a lost digit or a shifted fraction is a difference.
Nothing here renders through Headrace's code: `as_text` works on the plain integers and bytes of the Arrow arrays.
"""

from __future__ import annotations

import socket
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pymysql import converters
from pymysql.connections import Connection

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.rows.table_map_schema import schema_of
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, plan_tables, read_segment
from headrace.sources.mysql.segments.transaction_labels import OpenTransaction
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.snapshot.table_scan import scan_table
from testkit.servers.servers import execute

Value = str | bytes | float | None
Row = tuple[Value, ...]

_ENCODERS = {key: value for key, value in converters.conversions.items() if not isinstance(key, int)}
_ORACLE_SERVER_ID = 907_100
_TABLE_MAP = 19
_PACKED_KINDS = frozenset({39, 40, *range(165, 172)})


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a server's binary log."""

    file: str
    offset: int


class Logbook:
    """One database of a server, and its part of the binary log."""

    def __init__(self, server: PrivateServer, database: str, connection: Connection[Any]) -> None:
        self.server = server
        self.database = database
        self.connection = connection
        self.address = MySQLAddress("127.0.0.1", server.port, server.user, server.password, database)

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows given as Python values, in one transaction of multi-row statements."""
        marks = ", ".join(["%s"] * len(rows[0]))
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            cursor.execute("COMMIT")

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; values are the server's text, or bytes if binary."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def place(self) -> Place:
        status = "SHOW MASTER STATUS" if self.server.flavour == "mariadb" else "SHOW BINARY LOG STATUS"
        file, offset = self.fetch(status)[0][:2]
        return Place(file, int(offset))

    def segment(self, start: Place, end: Place | None = None) -> Segment:
        """Return the segment of the log from `start` to `end` (or to now)."""
        stop = end or self.place()
        assert stop.file == start.file, "the log was rotated during the test"
        checksum = self.fetch("SELECT @@GLOBAL.binlog_checksum")[0][0] != "NONE"
        plain = Segment(str(self.server.binlog_dir / start.file), start.file, start.offset, stop.offset, 0, checksum)
        return replace(plain, needs_expansion=any(kind in _PACKED_KINDS for kind in kinds_of(self.bytes_of(plain))))

    def schema(self, table: str) -> TableSchema:
        with closing(connect(self.address)) as connection:
            [schema] = capture_schemas(connection, self.address, lambda name: name == TableName(self.database, table))
        return schema

    def scanned(self, schema: TableSchema, where: str = "", **options: Any) -> list[Row]:
        """Return the table as `scan_table` reads it over the binary protocol."""
        with closing(connect(self.address)) as connection:
            batches = list(scan_table(connection, self.address, schema, where, **options))
        for batch in batches:
            check_arrays(schema, batch)
        return rows_of(schema, batches)

    def catalog(self, *tables: str, options: ReadOptions | None = None, keys: tuple[str, ...] | None = None) -> ReadCatalog:
        schemas = {TableName(self.database, table): self.schema(table) for table in tables}
        key_columns = {name: schema.primary_key if keys is None else keys for name, schema in schemas.items()}
        return ReadCatalog(plan_tables(schemas, key_columns), lambda name: name in schemas, options or ReadOptions())

    def read(self, start: Place, *tables: str, options: ReadOptions | None = None) -> list[ChangeBlock]:
        """Return the blocks that Headrace decodes from the log since `start`."""
        return list(read_segment(self.segment(start), self.catalog(*tables, options=options)))

    def logged_schema(self, start: Place, table: str) -> TableSchema:
        """Return the table's schema from the table maps of the log since `start`."""
        segment = self.segment(start)
        data, at = self.bytes_of(segment), 0
        while at < len(data):
            end = at + int.from_bytes(data[at + 9 : at + 13], "little")
            if data[at + 4] == _TABLE_MAP:
                table_map = parse_table_map(data[at + 27 : end - 4 * segment.checksum], "log")
                if table_map.name == TableName(self.database, table):
                    schema = schema_of(table_map)
                    assert schema is not None
                    return schema
            at = end
        raise AssertionError(f"no table map of {table} in the log")

    def read_by(self, start: Place, schema: TableSchema, options: ReadOptions | None = None) -> list[ChangeBlock]:
        """Return the blocks that Headrace decodes for one table with the given schema."""
        catalog = ReadCatalog(
            plan_tables({schema.name: schema}, {schema.name: schema.primary_key}),
            lambda name: name == schema.name,
            options or ReadOptions(),
        )
        return list(read_segment(self.segment(start), catalog))

    def select(self, schema: TableSchema, order: str = "1") -> list[Row]:
        """Return the rows of the server's SELECT."""
        columns = ", ".join(_exact(column) for column in schema.columns)
        found = self.fetch(f"SELECT {columns} FROM {quoted(schema.name)} ORDER BY {order}")
        return [tuple(_oracle_value(column, value) for column, value in zip(schema.columns, row, strict=True)) for row in found]

    def replicated(self, start: Place, table: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the changes since `start` as mysql-replication reads them: (kind, values), an update as `before` and `update`."""
        from pymysqlreplication import BinLogStreamReader
        from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

        login = {"host": "127.0.0.1", "port": self.server.port, "user": self.server.user, "password": self.server.password}
        stream = BinLogStreamReader(
            connection_settings={**login, "ssl_disabled": True},
            ctl_connection_settings={**login, "ssl_disabled": True},
            server_id=_ORACLE_SERVER_ID,
            resume_stream=True,
            log_file=start.file,
            log_pos=start.offset,
            only_schemas=[self.database],
            only_tables=[table],
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
            enable_logging=False,
        )
        found: list[tuple[str, dict[str, Any]]] = []
        with closing(stream), warnings.catch_warnings():
            # The package uses PyMySQL's old parameter names.
            warnings.simplefilter("ignore", DeprecationWarning)
            for event in stream:
                for row in event.rows:
                    if isinstance(event, UpdateRowsEvent):
                        found += [("before", row["before_values"]), ("update", row["after_values"])]
                    else:
                        found.append(("insert" if isinstance(event, WriteRowsEvent) else "delete", row["values"]))
        return found

    def bytes_of(self, segment: Segment) -> bytes:
        with open(segment.path, "rb") as file:  # noqa: PTH123
            file.seek(segment.start)
            return file.read(segment.end - segment.start)


@contextmanager
def open_logbook(server: PrivateServer, database: str, sql_mode: str = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION") -> Iterator[Logbook]:
    """Open a `Logbook` of `database` over a connection in UTC that returns text."""
    with server.root_connection(database, conv=_ENCODERS) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION time_zone = '+00:00', sql_mode = '{sql_mode}'")
        yield Logbook(server, database, connection)


@contextmanager
def new_logbook(server: PrivateServer, database: str) -> Iterator[Logbook]:
    """A `Logbook` of a database that is created here and dropped at the end."""
    execute(server, f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4")
    try:
        with open_logbook(server, database) as book:
            yield book
    finally:
        execute(server, f"DROP DATABASE `{database}`")


def quoted(name: TableName) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in (name.database, name.table))


def scan_log(data: bytes, base: int, *, checksum: bool, split_bytes: int = 1 << 40) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Run scan_groups over whole bytes: status, groups, splits, state."""
    groups = np.zeros((max(len(data) // 19, 1), scan.GROUP_COLUMNS), dtype=np.int64)
    splits = np.zeros((max(len(data) // 19, 1), scan.SPLIT_COLUMNS), dtype=np.int64)
    state = np.zeros(scan.STATE_CELLS, dtype=np.int64)
    status = scan.scan_groups(np.frombuffer(bytearray(data), dtype=np.uint8), len(data), base, checksum, split_bytes, groups, splits, state)
    return int(status), groups[: state[scan.GROUPS]], splits[: state[scan.SPLITS], scan.SPLIT_AT], state


def kinds_of(data: bytes) -> list[int]:
    """Return the event types of a piece of log, in order."""
    found, at = [], 0
    while at + 19 <= len(data):
        found.append(data[at + 4])
        at += max(int.from_bytes(data[at + 9 : at + 13], "little"), 19)
    return found


def parts_of(segment: Segment, cuts: Sequence[int], groups: np.ndarray | None = None) -> list[Segment]:
    """Cut a segment at log offsets; `groups` give a part that starts inside a group its context."""
    bounds = [segment.start, *cuts, segment.end]
    parts = [replace(segment, start=start, end=end) for start, end in pairwise(bounds) if start < end]
    return [replace(part, open_transaction=_opened(part.start, groups)) for part in parts] if groups is not None else parts


def _opened(offset: int, groups: np.ndarray) -> OpenTransaction | None:
    inside = groups[(groups[:, scan.START] < offset) & (groups[:, scan.END] > offset)]
    return OpenTransaction(int(inside[0, scan.START]), "open", int(inside[0, scan.COMMITTED])) if len(inside) else None


@dataclass(frozen=True, slots=True)
class Image:
    """One decoded row image, in the order of the log."""

    op: Op
    version: int
    commit_ts: int
    table: TableName
    row: Row


def images_of(blocks: Sequence[ChangeBlock]) -> list[Image]:
    """Every image of the blocks, in log order."""
    found = []
    for block in blocks:
        check_arrays(block.schema, block.images)
        heads = zip(block.op.to_pylist(), block.version.to_pylist(), block.commit_ts.to_pylist(), strict=True)
        for (op, version, commit_ts), row in zip(heads, rows_of(block.schema, [block.images]), strict=True):
            found.append(Image(Op(op), version, commit_ts, block.schema.name, row))
    return sorted(found, key=lambda image: image.version)


def check_arrays(schema: TableSchema, batch: pa.RecordBatch) -> None:
    """Check that the batch has the schema's types, and that its buffers are valid."""
    assert batch.schema == schema.arrow_schema
    for column, array in zip(schema.columns, batch.columns, strict=True):
        # A TIME column may hold values outside of a day, which Arrow's validation rejects.
        array.validate(full=column.kind is not Kind.TIME)
        assert column.nullable or array.null_count == 0


def rows_of(schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of Arrow batches in the server's text form."""
    found: list[Row] = []
    for batch in batches:
        columns = [_texts(column, batch.column(i)) for i, column in enumerate(schema.columns)]
        found += zip(*columns, strict=True)
    return found


def _texts(column: Column, array: pa.Array) -> list[Value]:
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        array = array.view(pa.int32()).cast(pa.int64()) if column.kind is Kind.DATE else array.view(pa.int64())
    return [None if value is None else as_text(column, value) for value in array.to_pylist()]


def as_text(column: Column, value: Any) -> Value:
    """Return the server's text of a value, from the number, string or bytes of the Arrow array."""
    match column.kind:
        case Kind.FLOAT32 | Kind.FLOAT64:
            return float(value)
        case Kind.DATE:
            return str(np.datetime64(value, "D"))
        case Kind.DATETIME | Kind.TIMESTAMP:
            whole, micros = divmod(value, 1_000_000)
            return str(np.datetime64(whole, "s")).replace("T", " ") + fraction_text(micros, column.precision)
        case Kind.TIME:
            return time_text(value, column.precision)
        case Kind.YEAR:
            return f"{value:04d}"
        case Kind.DECIMAL:
            return f"{value:f}"
        case Kind.GEOMETRY:
            return str(value.hex()).upper()
        case Kind.VECTOR:
            return struct.pack(f"<{len(value)}f", *value).hex().upper()
        case Kind.UUID:
            return str(UUID(bytes=value))
        case Kind.INET4 | Kind.INET6:
            return socket.inet_ntop(socket.AF_INET if len(value) == 4 else socket.AF_INET6, value)
        case _:
            return value if isinstance(value, bytes) else str(value)


def fraction_text(micros: int, digits: int) -> str:
    text = f"{micros:06d}"
    # Digits beyond the column's precision must be zero; otherwise they are shown.
    kept = digits if not text[digits:].strip("0") else 6
    return f".{text[:kept]}" if kept else ""


def time_text(micros: int, digits: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction_text(fraction, digits)}"


def _exact(column: Column) -> str:
    name = "`" + column.name.replace("`", "``") + "`"
    if column.kind in (Kind.GEOMETRY, Kind.VECTOR):
        return f"HEX({name})"
    # The server rounds a FLOAT and a DOUBLE(m,d) when it prints them; a cast shows all stored digits.
    return f"CAST({name} AS DOUBLE)" if column.kind in (Kind.FLOAT32, Kind.FLOAT64) else name


def _oracle_value(column: Column, value: Any) -> Value:
    if value is None:
        return None
    if column.kind in (Kind.FLOAT32, Kind.FLOAT64):
        return float(value)
    if column.kind is Kind.BIT:
        return str(int.from_bytes(value, "big"))
    if column.kind is Kind.BYTES and isinstance(value, str):
        return value.encode()
    return str(value) if not isinstance(value, bytes) else value
