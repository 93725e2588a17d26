"""The standard output as a sink: one line per change, in the order of the log within each batch.

After a crash the last batch may be printed again, with the same versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sinks.base import AppendOnlySchemaApplier, AppendOnlySink, BatchCommit
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.schema_changes import LedgerEntry, SchemaApplier
from headrace.sinks.stdout.batches import LineOptions
from headrace.sinks.stdout.encoder import LineEncoder, Lines
from headrace.sinks.stdout.options import BigNumbers, Colour, LineFormat
from headrace.sinks.stdout.output import NO_FRAME, STDOUT, OutputFrame, may_colour
from headrace.sinks.stdout.spool import Receiver, Sender, print_batch, print_line
from headrace.sinks.stdout.sql_format import SqlSchemaApplier

_PLACE: Final = "stdout:"
_KNOWN: Final[dict[str, type[StrEnum]]] = {"format": LineFormat, "colour": Colour, "color": Colour, "big": BigNumbers}


def parse_stdout(address: str, *, terminal: bool) -> LineOptions:
    """`stdout:?format=auto|json|text|sql&colour=auto|always|never&big=number|text`; on a terminal, `auto` is text."""
    chosen = {"format": "auto", "colour": "auto", "big": "number"}
    for name, value in parse_qsl(address.partition("?")[2], keep_blank_values=True):
        allowed = _KNOWN.get(name)
        if allowed is None or value not in list(allowed):
            known = "; ".join(f"{one} = {', '.join(values)}" for one, values in _KNOWN.items() if one != "color")
            raise DefiniteError(f"stdout: has no setting {name}={value}", place=_PLACE, hint=f"known: {known}")
        chosen["colour" if name == "color" else name] = value
    human = chosen["format"] == "text" or (chosen["format"] == "auto" and terminal)
    return LineOptions(human, human and may_colour(chosen["colour"]), chosen["big"] == "text", chosen["format"] == "sql")


@dataclass(frozen=True, slots=True)
class Handover:
    """Where tasks send their lines. Picklable."""

    address: tuple[str, int]
    token: str = field(repr=False)


@contextmanager
def handover(directory: Path, host: str, frame: OutputFrame = NO_FRAME) -> Iterator[Handover]:
    """Run the driver's receiver of lines while a pipe runs."""
    receiver = Receiver(STDOUT, directory, host, frame)
    try:
        yield Handover(receiver.address, receiver.token)
    finally:
        receiver.close()


@dataclass(frozen=True, slots=True)
class StdoutSink(AppendOnlySink):
    handover: Handover
    choices: LineOptions = field(default_factory=LineOptions)
    log: str = "binlog"

    def with_source(self, connector: str, log: str) -> Self:
        """Lines contain their position in the log."""
        del connector
        return replace(self, log=log)

    def schema_applier(self) -> SchemaApplier:
        return SqlSchemaApplier(self.record) if self.choices.sql else AppendOnlySchemaApplier(self.record)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        lines = LineEncoder(self.choices, self.log).statements(entries)
        if lines:
            print_line(self.handover.token, lines)

    def commit_batch(self, batch: BatchCommit) -> None:
        del batch
        print_batch(self.handover.token)

    def writer(self) -> LineWriter:
        return LineWriter(Sender(self.handover.address, self.handover.token), LineEncoder(self.choices, self.log))


@dataclass(slots=True)
class LineWriter:
    """Belongs to one task."""

    sender: Sender
    encoder: LineEncoder

    def write(self, block: ChangeBlock) -> None:
        waits = bool(block.rows) and block.op[0].as_py() != Op.SNAPSHOT
        for lines in self.encoder.encode(block):
            self.sender.send(lines, waits=waits)

    def close(self) -> None:
        self.sender.close()


@dataclass(frozen=True, slots=True)
class StdoutLogSink(LogSink):
    """Prints rows of ScyllaDB's log as the JSON documents of the Kafka sink, in the order of their times within a block."""

    handover: Handover
    choices: LineOptions = field(default_factory=LineOptions)

    def writer(self) -> LogLineWriter:
        return LogLineWriter(Sender(self.handover.address, self.handover.token))


@dataclass(slots=True)
class LogLineWriter:
    """Belongs to one task."""

    sender: Sender

    def write(self, block: LogBlock | RowBlock) -> None:
        # Only such a source loads its kernels.
        from headrace.sinks.kafka.debezium.json_fragments import join
        from headrace.sinks.kafka.scylla.log_documents import log_documents, row_documents
        from headrace.sinks.stdout.json_values import escape_unsafe

        made = log_documents(block).in_order() if isinstance(block, LogBlock) else row_documents(block)
        if len(made.value):
            text: Any = join(escape_unsafe(made.value), "\n")
            self.sender.send(Lines(text, pa.array(np.zeros(len(text), np.uint64))), waits=False)

    def close(self) -> None:
        self.sender.close()
