"""The recordings in tests/golden decode to exactly their images, and equal the output of today's servers. `make record` writes them.

The log is reset before each scenario, so that a recording is a whole file. Its rows, replayed, must equal the server's own SELECT at the
end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import Op
from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.snapshot.table_scan import _selected
from testkit.oracles.binlogs import Image, Logbook, images_of, open_logbook, quoted
from testkit.oracles.chain import Chain
from testkit.recordings.recordings import GOLDEN, Recording, load_recording, recording_names, save_recording, stored_image, without_places
from testkit.recordings.scenarios import CLOCK, DATABASE, SCENARIOS, Scenario


@pytest.mark.parametrize("name", recording_names())
def test_a_recording_decodes_to_its_images(name: str, tmp_path: Path) -> None:
    recording = load_recording(name)
    chain = Chain(tmp_path, recording.file, mariadb=recording.flavour == "mariadb")
    images = images_of(chain.read(recording.log, recording.catalog(), checksum=recording.checksum))
    assert [stored_image(image) for image in images] == list(recording.images)
    assert {op for op, *_ in recording.images} >= {"INSERT"}


SERVER_SETTINGS: dict[str, Any] = {"server_id": 7}
"""An identity in every event's header: the same from run to run."""

_RESET = {"mariadb": "RESET MASTER", "mysql": "RESET BINARY LOGS AND GTIDS"}


def record(server: PrivateServer, scenario: Scenario, scratch: Path) -> Recording:
    """Run a scenario on its own server and read its log."""
    settings = scenario.settings.get(server.flavour, {})
    with _database(server, scenario, settings) as book:
        _run(book, scenario)
        place = book.place()
        log = (server.binlog_dir / place.file).read_bytes()[: place.offset]
        checksum = book.fetch("SELECT @@GLOBAL.binlog_checksum")[0][0] != "NONE"
        schemas = _schemas(book)
        packets = {schema.name.table: _packets(book, schema) for schema in schemas}
        bare = Recording(
            f"{server.flavour}-{scenario.name}",
            f"{server.flavour} {server.program.version}",
            settings,
            scenario.sql(),
            place.file,
            log,
            checksum,
            schemas,
            (),
            packets,
        )
        chain = Chain(scratch, place.file, mariadb=server.flavour == "mariadb")
        images = images_of(chain.read(log, bare.catalog(), checksum=checksum))
        _compare(book, schemas, images)
    return Recording(*(getattr(bare, name) if name != "images" else tuple(map(stored_image, images)) for name in bare.__slots__))


@contextmanager
def _database(server: PrivateServer, scenario: Scenario, settings: dict[str, Any]) -> Iterator[Logbook]:
    """An empty database, an empty log and the settings; a new connection, because sessions copy global settings when they start."""
    with server.root_connection() as root, root.cursor() as cursor:
        before = {}
        for name, value in settings.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            before[name] = cursor.fetchone()[0]
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        for statement in (*scenario.prepare, _RESET[server.flavour]):
            cursor.execute(statement)
        try:
            with open_logbook(server, DATABASE) as book:
                yield book
        finally:
            for name, value in before.items():
                cursor.execute(f"SET GLOBAL {name} = %s", (value,))
            for statement in scenario.restore:
                cursor.execute(statement)
            cursor.execute(f"DROP DATABASE {DATABASE}")


def _run(book: Logbook, scenario: Scenario) -> None:
    book.run(f"SET SESSION sql_log_bin = {int(scenario.logs_tables)}", CLOCK, *scenario.tables, "SET SESSION sql_log_bin = 1")
    book.run(*scenario.workload)


def _schemas(book: Logbook) -> tuple[TableSchema, ...]:
    with closing(connect(book.address)) as connection:
        found = capture_schemas(connection, book.address, lambda name: name.database == DATABASE)
    return tuple(sorted(found, key=lambda schema: schema.name))


def _packets(book: Logbook, schema: TableSchema) -> bytes:
    """Return the packets of a prepared SELECT of the table, from the first row on."""
    columns = ", ".join(_selected(column) for column in schema.columns)
    with closing(connect(book.address)) as opened:
        connection: Any = opened
        connection._execute_command(0x16, f"SELECT {columns} FROM {quoted(schema.name)} ORDER BY 1")
        statement, fields, _ = struct.unpack_from("<IHH", connection._read_packet().get_all_data(), 1)
        definitions = [connection._read_packet() for _ in range(fields + 1)]
        connection._execute_command(0x17, struct.pack("<IBI", statement, 0, 1))
        for _ in range(1 + len(definitions)):
            connection._read_packet()
        frames = []
        while not frames or frames[-1][:1] != b"\xfe":
            frames.append(connection._read_packet().get_all_data())
    return b"".join(struct.pack("<I", len(frame))[:3] + bytes([number & 255]) + frame for number, frame in enumerate(frames, fields + 3))


def _compare(book: Logbook, schemas: tuple[TableSchema, ...], images: list[Image]) -> None:
    tables: dict[TableName, list[str]] = {schema.name: [] for schema in schemas}
    for image in images:
        rows = tables[image.table]
        if image.op in (Op.DELETE, Op.BEFORE):
            rows.remove(repr(image.row))
        else:
            rows.append(repr(image.row))
    for schema in schemas:
        assert sorted(tables[schema.name]) == sorted(map(repr, book.select(schema))), schema.name


WRITE = bool(os.environ.get("HEADRACE_WRITE_FIXTURES"))


def test_the_recordings_are_what_this_server_writes(flavour: str, fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    server = fresh_server(**SERVER_SETTINGS)
    wanted = [scenario for scenario in SCENARIOS if flavour in scenario.flavours]
    if WRITE:
        for name in recording_names(flavour):
            (GOLDEN / f"{name}.json").unlink()
    for scenario in wanted:
        now = record(server, scenario, tmp_path)
        if WRITE:
            save_recording(now)
        kept = load_recording(now.name)
        assert without_places(kept) == without_places(now), now.name
    assert recording_names(flavour) == sorted(f"{flavour}-{scenario.name}" for scenario in wanted)


@pytest.mark.parametrize("flavour_name", ["mariadb", "mysql"])
def test_every_flavour_has_recordings(flavour_name: str) -> None:
    assert len(recording_names(flavour_name)) >= 4
