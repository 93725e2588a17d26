"""Where a batch of log rows is: those of one stream with one `cdc$time`. Errors name it so, and `headrace skip` takes it so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

import pyarrow as pa

from headrace.cql.log import STREAM, TIME
from headrace.cql.timeuuid import micros

_FORM: Final = re.compile(r"log of (?P<table>\S+), stream 0x(?P<stream>[0-9a-f]{32}), cdc\$time (?P<time>[0-9a-f-]{36})")


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """A batch in the log of a table."""

    table: str
    """`keyspace.table`."""
    stream: bytes
    time: bytes

    @classmethod
    def of_row(cls, table: str, rows: pa.RecordBatch, row: int) -> Self:
        """Of one of some log rows."""
        return cls(table, rows.column(STREAM)[row].as_py() or bytes(16), rows.column(TIME)[row].as_py() or bytes(16))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text form; None if it is not a batch position."""
        found = _FORM.fullmatch(text)
        return cls(found["table"], bytes.fromhex(found["stream"]), UUID(found["time"]).bytes) if found else None

    @property
    def micros(self) -> int:
        """Its time, in microseconds since 1970."""
        return micros(UUID(bytes=self.time))

    @property
    def id(self) -> bytes:
        """Stream and `cdc$time`, which identify a batch within its log."""
        return self.stream + self.time

    def __str__(self) -> str:
        return f"log of {self.table}, stream 0x{self.stream.hex()}, cdc$time {UUID(bytes=self.time)}"
