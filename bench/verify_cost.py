"""The cost of `headrace verify` for a large table, compared with reading both sides completely and with a checksum that each server
computes of its own rows.

The table is in a private server and, copied by the sink's writer, in an embedded engine. Each way of comparing is a process that is
measured from outside with all processes that it starts, including the embedded engine. The source server reports its CPU time and the
bytes that it sent. Then three rows are changed in the sink: verify must find exactly those.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.command_usage import measure_command, read_cpu_s
from bench.contender_run import python_environment
from bench.contenders.base import Stopwatch
from bench.large_table import TABLE, open_large_table
from bench.process_accounting import Usage
from bench.target import DATABASE, PASSWORD, USER
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.sinks.clickhouse.server.client import connect as connect_sink
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE, MySQLAddress, connect, query
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.verify.region_reader import Endpoints, RegionReader
from headrace.verify.regions import Region, plan_regions
from headrace.verify.row_compare import Comparison
from headrace.verify.table_spec import describe
from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables

SINK_DIRECTORY = "clickhouse"
READ_ROWS, READERS = 100_000, 2
DAMAGED = (7, 4_000, 90_001)
"""Keys of rows that are changed in the sink: a changed value, a deleted row, and a row that the source does not have."""
REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class Reading:
    """Resources that one way of comparing used."""

    title: str
    usage: Usage
    window_s: float
    """Wall time without the start of the processes. `usage` includes it."""
    server_cpu_s: float
    sent_bytes: int
    """Bytes that the source server sent."""


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """The result of the measurement."""

    rows: int
    readings: Mapping[str, Reading]

    def table(self) -> Table:
        found = Table(title=f"Comparing {self.rows:,} rows with their copy")
        found.add_column("how")
        for heading in ("wall s", "without start-up s", "CPU s", "source's CPU s", "sent by source MB", "peak MB", "x reading both"):
            found.add_column(heading, justify="right")
        read = self.readings.get("read")
        for reading in self.readings.values():
            usage = reading.usage
            found.add_row(
                reading.title,
                f"{usage.wall_s:.1f}",
                f"{reading.window_s:.1f}",
                f"{usage.cpu_s:.1f}",
                f"{reading.server_cpu_s:.1f}",
                f"{reading.sent_bytes / 1e6:,.1f}",
                f"{usage.peak_bytes / 1e6:,.0f}",
                f"{read.usage.wall_s / usage.wall_s:.1f}" if read is not None else "-",
            )
        return found


def measure_verify(flavour: str, rows: int, cache: Path, console: Console) -> VerifyCost:
    console.print(f"verify: {rows:,} rows on {flavour} (generated on the first run, then kept in {cache})", highlight=False)
    with open_large_table(flavour, rows, cache) as server, tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        scratch = Path(directory)
        _copy(server, scratch)
        readings = {}
        for name, (title, command) in COMMANDS.items():
            if name == "damaged":
                _damage(scratch)
            readings[name] = _measure(title, command(server, scratch), server, scratch)
            console.print(f"  {name}: {readings[name].usage.wall_s:.1f} s", highlight=False)
            _check(name, rows, scratch)
        return VerifyCost(rows, readings)


def _measure(title: str, argv: list[str], server: PrivateServer, scratch: Path) -> Reading:
    (scratch / REPORT).unlink(missing_ok=True)
    cpu_before, sent_before = read_cpu_s(_pid(server)), _sent(server)
    usage = measure_command(argv, directory=scratch, environment={**python_environment(), PASSWORD_VARIABLE: PASSWORD})
    window_s = float(json.loads((scratch / REPORT).read_text())["seconds"])
    return Reading(title, usage, window_s, read_cpu_s(_pid(server)) - cpu_before, _sent(server) - sent_before)


def _check(name: str, rows: int, scratch: Path) -> None:
    found = json.loads((scratch / REPORT).read_text())
    expected = {"rows": rows, "differences": len(DAMAGED) if name == "damaged" else 0}
    if any(found[key] != value for key, value in expected.items() if key in found):
        raise DefiniteError(f"{name} found {found}, not {expected}", place=f"{DATABASE}.{TABLE}")


def _copy(server: PrivateServer, scratch: Path) -> None:
    """Copy the table as a snapshot does. (ClickHouse's mysql() reads floats through text, and some of them change their last bit.)"""
    address = _address(server.port)
    schema = _schema(address)
    with open_clickhouse_sink(f"chdb:{scratch / SINK_DIRECTORY}", creates=True) as named, closing(connect(address)) as connection:
        named.sink.prepare([schema])
        writer = named.sink.writer()
        for batch in scan_table(connection, address, schema):
            writer.write(_block(schema, batch))


def _block(schema: TableSchema, images: pa.RecordBatch) -> ChangeBlock:
    rows = images.num_rows
    ops, versions, moments = (np.full(rows, value, kind) for value, kind in ((Op.SNAPSHOT, np.uint8), (1, np.uint64), (0, np.int64)))
    return ChangeBlock(schema, images, pa.array(ops), pa.array(versions), pa.array(moments))


def _damage(scratch: Path) -> None:
    table = f"{DATABASE}.{TABLE}"
    changes = ("quantity + 1 AS quantity, 2 AS _version", "-1 AS _sign, 2 AS _version", "id + 1000000000 AS id")
    with open_clickhouse_sink(f"chdb:{scratch / SINK_DIRECTORY}") as named:
        client = connect_sink(named.sink.target).client
        for key, change in zip(DAMAGED, changes, strict=True):
            client.command(f"INSERT INTO {table} SELECT * REPLACE ({change}) FROM (SELECT * FROM {table} FINAL WHERE id = {key})")


def _pid(server: PrivateServer) -> int:
    assert server.pid is not None
    return server.pid


def _sent(server: PrivateServer) -> int:
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
        return int(cursor.fetchall()[0][1])


def _address(port: int) -> MySQLAddress:
    return MySQLAddress("127.0.0.1", port, USER, PASSWORD, DATABASE)


def _schema(address: MySQLAddress) -> TableSchema:
    with closing(connect(address)) as connection:
        return capture_schemas(connection, address, lambda name: name.table == TABLE)[0]


def _own(way: str) -> Callable[[PrivateServer, Path], list[str]]:
    return lambda server, scratch: [sys.executable, "-m", "bench.verify_cost", way, str(server.port), str(scratch)]


COMMANDS: Mapping[str, tuple[str, Callable[[PrivateServer, Path], list[str]]]] = {
    "sums": ("each server sums up its own rows", _own("sums")),
    "read": ("both sides read and compared, 2 threads", _own("read")),
    "verify": ("headrace verify, without Spark", _own("threads")),
    "spark": ("headrace verify, as Spark tasks", _own("spark")),
    "damaged": ("headrace verify, three rows differ", _own("threads")),
}


def main(way: str, port: str, scratch: str) -> None:
    """Compare in one way, in a separate process; write the result to the scratch directory."""
    address = _address(int(port))
    with open_clickhouse_sink(f"chdb:{Path(scratch) / SINK_DIRECTORY}") as named:
        schema = _schema(address)
        watch = Stopwatch()
        found = {"sums": _sums, "read": _read}.get(way, _verify(way))(Endpoints(address, named.sink, VerifyOptions().zero_dates), schema)
        seconds = watch.read()[0]
    Path(scratch, REPORT).write_text(json.dumps({**found, "seconds": seconds}))


def _sums(sides: Endpoints, schema: TableSchema) -> dict[str, int]:
    """The floor: compare nothing, but read every value of every row once, on its own server."""
    with closing(connect(sides.address)) as connection:
        query(connection, sides.address, f"CHECKSUM TABLE {schema.name} EXTENDED")
    columns = ", ".join(f"`{column.name}`" for column in schema.columns)
    _, rows = sides.sink.reader().query(f"SELECT count(), sum(cityHash64({columns})) FROM {schema.name} FINAL")
    return {"rows": int(rows[0][0])}


def _read(sides: Endpoints, schema: TableSchema) -> dict[str, int]:
    """The peer: what a tool without digests does."""
    table = describe(schema, sides.sink)
    with closing(connect(sides.address)) as connection:
        regions = plan_regions(connection, sides.address, sides.sink, table, READ_ROWS, None)
    own = threading.local()

    def compare(region: Region) -> Comparison:
        if not hasattr(own, "rows_reader"):
            own.rows_reader = RegionReader(sides)
        found: Comparison = own.rows_reader.read(table, region).comparison
        return found

    with ThreadPoolExecutor(READERS) as pool:
        whole = sum(pool.map(compare, regions), Comparison())
    return {"rows": whole.rows, "differences": whole.total}


def _verify(way: str) -> Callable[[Endpoints, TableSchema], dict[str, int]]:
    spark = SparkUse.ALWAYS if way == "spark" else SparkUse.NEVER

    def run(sides: Endpoints, schema: TableSchema) -> dict[str, int]:
        options = VerifyOptions(spark=spark, recheck=False)
        results = list(verify_tables(sides.address, sides.sink, Selection((str(schema.name),)), options))
        return {"rows": sum(one.comparison.rows for one in results), "differences": sum(one.comparison.total for one in results)}

    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
