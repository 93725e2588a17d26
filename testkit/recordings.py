"""Recorded pieces of binary log: bytes beside the SQL and the server version that made them, and the images they must decode to.

A recording needs no server to be read. `tests/integration/test_decode_fixtures.py` writes them and holds today's servers to them.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.decoder import ReadOptions
from headrace.sources.mysql.reader import Catalog, Segment
from testkit.binlogs import Image

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"


@dataclass(frozen=True, slots=True)
class Recording:
    """A piece of log that starts and ends on transaction bounds."""

    server: str
    sql: tuple[str, ...]
    file: str
    start: int
    data: bytes
    schemas: tuple[TableSchema, ...]
    images: tuple[tuple[str, int, str, tuple[Any, ...]], ...]
    """Op, version, table and row of every image (every before image included), in log order."""

    def segment(self, directory: Path) -> Segment:
        """The recording as a file at its place in the log."""
        path = directory / self.file
        with path.open("wb") as file:
            file.seek(self.start)
            file.write(self.data)
        return Segment(str(path), self.file, self.start, self.start + len(self.data), 0, checksum=True)

    def catalog(self) -> Catalog:
        schemas: dict[TableName, TableSchema] = {schema.name: schema for schema in self.schemas}
        keys = {schema.name: schema.primary_key for schema in self.schemas}
        return Catalog(schemas, keys, lambda name: name in schemas, ReadOptions(every_before=True))


def told(image: Image) -> tuple[str, int, str, tuple[Any, ...]]:
    """An image as a recording keeps it."""
    return image.op.name, image.version, image.table.table, tuple(_kept(value) for value in image.row)


def load_recording(name: str) -> Recording:
    raw = json.loads((GOLDEN / f"{name}.json").read_text())
    return Recording(
        raw["server"],
        tuple(raw["sql"]),
        raw["file"],
        raw["start"],
        base64.b64decode("".join(raw["log"])),
        tuple(TableSchema.from_json(schema) for schema in raw["schemas"]),
        tuple((op, version, table, tuple(row)) for op, version, table, row in raw["images"]),
    )


def save_recording(name: str, recording: Recording) -> None:
    text = base64.b64encode(recording.data).decode()
    raw = {
        "server": recording.server,
        "sql": recording.sql,
        "file": recording.file,
        "start": recording.start,
        "log": [text[at : at + 120] for at in range(0, len(text), 120)],
        "schemas": [schema.to_json() for schema in recording.schemas],
        "images": recording.images,
    }
    (GOLDEN / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")


def _kept(value: Any) -> Any:
    """Bytes have no place in JSON; floats keep all their digits as text."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return repr(value) if isinstance(value, float) else value
