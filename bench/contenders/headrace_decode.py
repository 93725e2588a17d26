"""Headrace's decoder alone: from log files on disk to change blocks in one process. The blocks are discarded.

This is what a task of a pipe does before it writes. The window opens when the kernel modules are imported (`make setup` compiles them) and
closes with the last block. It includes the extra cost of the first calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.process_accounting import Usage
from bench.schemas import capture_tables
from bench.target import Target
from headrace.errors import DefiniteError
from headrace.kernels.compile import compile_kernels
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, plan_tables, read_segment


class HeadraceDecode:
    """The segment reader on complete files."""

    title = "Headrace, decode alone"
    note = "local log files to Arrow blocks in one process, without checksums (the relay verifies them)"
    repeats = 3
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace-decode", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        window = read_window(scratch)
        if window.total_changes != target.changes:
            raise DefiniteError(f"the decoder gave {window.total_changes} changes of {target.changes}", place=target.start_file)
        return window

    def read(self, target: Target) -> Window:
        schemas = {schema.name: schema for schema in capture_tables(target)}
        keys = {name: schema.primary_key for name, schema in schemas.items()}
        catalog = ReadCatalog(plan_tables(schemas, keys), lambda name: name.database == target.database)
        compile_kernels()
        watch = Stopwatch()
        changes = sum(block.changes for segment in segments(target) for block in read_segment(segment, catalog))
        return Window(changes, *watch.read(), changes)


def segments(target: Target) -> Iterator[Segment]:
    """Return each file of the workload as one segment."""
    for file in target.files:
        start = target.start_position if file.name == target.start_file else 4
        yield Segment(str(Path(target.binlog_directory) / file.name), file.name, start, file.size, epoch=0, checksum=True)
