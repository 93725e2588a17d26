"""The ClickHouse sink: the port of `headrace.sinks.base` over one server.

Idempotent and order-free: every image is a row with its sign and its version, and the table keeps the highest version of each key.
Writing a block twice, late or beside others leaves what `FINAL` shows unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.client import connect
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.tables import prepare_tables, replace_table, sweep_table
from headrace.sinks.clickhouse.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.writer import ClickHouseWriter


@dataclass(frozen=True, slots=True)
class ClickHouseSink:
    """Where changes go: a server and, perhaps, one database in it. Picklable; the password is never shown."""

    target: ClickHouseTarget

    @classmethod
    def from_url(cls, url: str) -> ClickHouseSink:
        return cls(parse_target(url))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create what is missing, check what exists; raise `DefiniteError` before anything is created if a table cannot be held."""
        prepare_tables(connect(self.target), self.target, tuple(schemas))

    def replace(self, schema: TableSchema) -> None:
        """Make the target anew, empty, unless what is there is fit for the schema: its rows are about to come again."""
        replace_table(connect(self.target), self.target, schema)

    def key_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """The sort key is the row's key: its change deletes the old row and inserts the new one."""
        return schema.row_key

    def sweep(self, schema: TableSchema, before: int) -> None:
        """Take away the rows whose last image has a version below `before`: a new snapshot of the whole table did not see them."""
        sweep_table(connect(self.target), self.target, schema, before)

    def writer(self) -> ClickHouseWriter:
        return ClickHouseWriter(self.target)

    def reader(self) -> ClickHouseReader:
        return ClickHouseReader(self.target)
