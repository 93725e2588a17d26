"""`spark.read.format("headrace")` and `spark.readStream.format("headrace")`: a table's changes as a typed frame.

Spark makes this source anew in several short-lived processes, which need its options and the frame's columns only. What plans and what
decodes, and brings the compiled kernels along, is imported where that is done (`table_planning`, `table_reading`).
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pymysql.connections import Connection
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url
from headrace.spark.frames.change_rows import frame_type
from headrace.spark.runtime.error_transport import hide_traceback
from headrace.spark.runtime.split_source import PlannedStreamReader

if TYPE_CHECKING:
    from headrace.spark.frames.planner import TablePlanner

FORMAT: Final = "headrace"
_RELAY_BYTES: Final = 256 << 20
_OPTIONS: Final = {
    "url": "mysql://user@host:port/",
    "table": "DATABASE.TABLE",
    "password": "the user's, if it is neither in the url nor in HEADRACE_SOURCE_PASSWORD",
    "startingPosition": "now, oldest, FILE:OFFSET, GTIDs, or a position of headrace.changes",
    "zeroDates": "error, null or epoch",
    "relayDirectory": "where the log is mirrored while it is read; on a cluster, a directory that all machines share",
    "relayBytes": "how much of it at most",
}
_ZERO_DATES: Final = {"error": ZeroDates.HALT, "null": ZeroDates.NULL, "epoch": ZeroDates.EPOCH}


class TableChanges(DataSource):
    """The data source, as Spark makes it from a query's options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with hide_traceback():
            request = TableRequest.from_options(self.options)
            with closing(connect(request.address)) as connection:
                return frame_type(request.captured(connection))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with hide_traceback():
            return TableStreamReader(TableSource(TableRequest.from_options(self.options), schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        with hide_traceback():
            return TableReader(TableRequest.from_options(self.options), schema)


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A query's options, read."""

    address: MySQLAddress
    table: TableName
    start: str
    zero_dates: ZeroDates
    relay_directory: str
    relay_bytes: int

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> TableRequest:
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - {name.lower() for name in _OPTIONS})
        database, _, table = given.get("table", "").partition(".")
        zero_dates, relay_bytes = given.get("zerodates", "error"), given.get("relaybytes", str(_RELAY_BYTES))
        hint = "; ".join(f"{name}: {meaning}" for name, meaning in _OPTIONS.items())
        if unknown:
            raise DefiniteError(f"option {unknown[0]!r} is not known", hint=hint)
        if not given.get("url") or not database or not table or zero_dates not in _ZERO_DATES or not relay_bytes.isdigit():
            raise DefiniteError("the options url and table are needed, and each must be readable", hint=hint)
        address = parse_mysql_url(given["url"])
        if "password" in given:
            address = replace(address, password=given["password"])
        name, start, directory = TableName(database, table), given.get("startingposition", ""), given.get("relaydirectory", "")
        return cls(address, name, start, _ZERO_DATES[zero_dates], directory, int(relay_bytes))

    @property
    def pattern(self) -> str:
        """The table's name as a glob that only it matches."""
        return glob.escape(str(self.table))

    def captured(self, connection: Connection[Any]) -> TableSchema:
        """The table as it is now."""
        schemas = capture_schemas(connection, self.address, self.table.__eq__)
        if not schemas:
            raise DefiniteError(f"the source has no table {self.table}", place=str(self.address), hint="check the option table")
        return schemas[0].with_zero_dates(self.zero_dates)

    def check_frame(self, schema: TableSchema, frame: StructType, place: str) -> None:
        """Raise if rows of `schema` would not fit the frame."""
        if frame_type(schema) != frame:
            columns = ", ".join(f"{column.name} {column.source_type}" for column in schema.columns)
            raise DefiniteError(
                f"table {self.table} has other columns from here on than the frame: {columns}",
                place=place,
                hint="start the query again: a new load() has the table's columns of now, and the checkpoint goes on where it ended "
                "(if the table was changed while the query did not run, load once with .schema(...) as the table was at that place)",
            )


@dataclass(frozen=True, slots=True)
class TableSource:
    """The table as a source of ours."""

    request: TableRequest
    frame: StructType

    def planner(self) -> TablePlanner:
        from headrace.spark.frames.planner import TablePlanner

        return TablePlanner(self.request, self.frame)


class TableStreamReader(PlannedStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader of a stream; in a task it reads one piece."""

    _errors = staticmethod(hide_traceback)

    def __init__(self, source: TableSource) -> None:
        super().__init__(source)
        self._request = source.request

    def __getstate__(self) -> dict[str, Any]:
        # What tasks get for `read`; they never plan.
        return {"_source": None, "_made": None, "_request": self._request}

    def prepareForTriggerAvailableNow(self) -> None:
        with hide_traceback():
            planner: Any = self._planner
            planner.end_at_latest()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.frames.reader import read_changes

        with hide_traceback():
            yield from read_changes(self._request, json.loads(partition.value))


class TableReader(DataSourceReader):
    """Spark's reader of a frame that ends."""

    def __init__(self, request: TableRequest, frame: StructType) -> None:
        self._request, self._frame = request, frame

    def partitions(self) -> list[InputPartition]:
        from headrace.spark.frames.reader import plan_frame

        with hide_traceback():
            return [InputPartition(json.dumps(split)) for split in plan_frame(self._request, self._frame)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.frames.reader import read_frame

        with hide_traceback():
            yield from read_frame(self._request, self._frame, json.loads(partition.value))


def schema_to_text(schema: TableSchema) -> str:
    """A schema as Spark's offsets and partitions carry it."""
    return json.dumps(schema.to_json())


def schema_from_text(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))
