"""The options of `spark.read.format("headrace")`, and the table that they select."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pymysql.connections import Connection
from pyspark.sql.types import StructType

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, parse_mysql_url
from headrace.spark.frames.change_rows import frame_type

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


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The parsed options of a query."""

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
        """A glob that matches only this table."""
        return glob.escape(str(self.table))

    def captured(self, connection: Connection[Any]) -> TableSchema:
        """Return the current schema of the table."""
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


def schema_to_text(schema: TableSchema) -> str:
    """Return a schema as text, for Spark's offsets and partitions."""
    return json.dumps(schema.to_json())


def schema_from_text(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))
