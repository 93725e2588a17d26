"""ClickHouse's own way to copy a MySQL table, `INSERT ... SELECT FROM mysql(...)`. A snapshot must not be slower.

It runs in the same engine and fills tables that the Headrace sink created. Engine, types and sort keys are therefore the same, and only the
reading differs. An embedded server of Headrace refuses the table function, so this process opens the server's directory itself.
"""

from __future__ import annotations

from pathlib import Path

from chdb.session import Session

from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.process_accounting import Usage
from bench.schemas import capture_tables
from bench.target import Target
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.embedded_access import target_of


class ClickHouseOwn:
    """The `mysql()` table function, one table at a time."""

    title = "INSERT ... SELECT FROM mysql()"
    note = "ClickHouse's own, by the same engine into identical tables, without a server around it"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("clickhouse-own", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        window = read_window(scratch)
        if window.total_changes != target.rows:
            raise DefiniteError(f"ClickHouse copied {window.total_changes} rows of {target.rows}", place=f"port {target.port}")
        return window

    def read(self, target: Target) -> Window:
        return copy_tables(target)


def copy_tables(target: Target) -> Window:
    schemas, directory = capture_tables(target), Path.cwd() / "clickhouse"
    with EmbeddedServer(directory) as server:
        ClickHouseSink(target_of(server)).prepare(schemas)
    session = Session(str(directory))
    try:
        watch = Stopwatch(whole_tree=True)
        for schema in schemas:
            session.query(_copy_sql(schema, target))
        elapsed = watch.read()
        rows = sum(int(str(session.query(f"SELECT count() FROM {schema.name}"))) for schema in schemas)
    finally:
        session.close()
    return Window(rows, *elapsed, rows)


def _copy_sql(schema: TableSchema, target: Target) -> str:
    columns = ", ".join(f"`{column.name}`" for column in schema.columns)
    source = f"mysql('{target.host}:{target.port}', '{target.database}', '{schema.name.table}', '{target.user}', '{target.password}')"
    return f"INSERT INTO {schema.name} ({columns}, _sign, _version) SELECT {columns}, 1, 1 FROM {source}"
