"""Recorded binary logs: whole files of real servers with the SQL, the settings and the version that made them, and the decoded rows.

Reading a recording needs no server. `make record` writes all of them from `testkit.recordings.scenarios`; the test that does so also
compares today's servers with the recordings in the repository.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables
from testkit.oracles.binlogs import Image

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
_LINE = 120

StoredImage = tuple[str, int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Recording:
    """One log file, from its first byte to the end of the workload."""

    name: str
    server: str
    settings: dict[str, Any]
    sql: tuple[str, ...]
    file: str
    log: bytes
    checksum: bool
    schemas: tuple[TableSchema, ...]
    images: tuple[StoredImage, ...]
    """Op, version, table and row of every image (every before image included), in log order."""
    packets: dict[str, bytes]
    """Per table, the packets of the rows of a prepared SELECT at the end, and of the end of the result."""

    @property
    def flavour(self) -> str:
        return self.name.partition("-")[0]

    def catalog(self, *, every_before: bool = True) -> ReadCatalog:
        schemas: dict[TableName, TableSchema] = {schema.name: schema for schema in self.schemas}
        keys = {schema.name: schema.primary_key for schema in self.schemas}
        return ReadCatalog(plan_tables(schemas, keys), lambda name: name in schemas, ReadOptions(every_before=every_before))


def stored_image(image: Image) -> StoredImage:
    """Return an image in the form of a recording."""
    return image.op.name, image.version, image.table.table, tuple(_json_value(value) for value in image.row)


def recording_names(flavour: str = "") -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob(f"{flavour}*.json"))


def load_recording(name: str) -> Recording:
    raw = json.loads((GOLDEN / f"{name}.json").read_text())
    return Recording(
        name,
        raw["server"],
        raw["settings"],
        tuple(raw["sql"]),
        raw["file"],
        _bytes(raw["log"]),
        raw["checksum"],
        tuple(TableSchema.from_json(schema) for schema in raw["schemas"]),
        tuple((op, version, table, tuple(row)) for op, version, table, row in raw["images"]),
        {table: _bytes(lines) for table, lines in raw["packets"].items()},
    )


def save_recording(recording: Recording) -> None:
    raw = {
        "server": recording.server,
        "settings": recording.settings,
        "sql": recording.sql,
        "file": recording.file,
        "checksum": recording.checksum,
        "log": _lines(recording.log),
        "packets": {table: _lines(packets) for table, packets in recording.packets.items()},
        "schemas": [schema.to_json() for schema in recording.schemas],
        "images": recording.images,
    }
    (GOLDEN / f"{recording.name}.json").write_text(json.dumps(raw, indent=1) + "\n")


def without_places(recording: Recording) -> Recording:
    """Return what must be equal in every run: not the bytes, which hold times and identities and compress differently, but the rows."""
    images = tuple((op, 0, table, row) for op, _, table, row in recording.images)
    return replace(recording, log=b"", packets={}, server="", images=images)


def _lines(data: bytes) -> list[str]:
    text = base64.b64encode(data).decode()
    return [text[at : at + _LINE] for at in range(0, len(text), _LINE)]


def _bytes(lines: list[str]) -> bytes:
    return base64.b64decode("".join(lines))


def _json_value(value: Any) -> Any:
    """JSON cannot hold bytes; floats keep all their digits as text."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return repr(value) if isinstance(value, float) else value
