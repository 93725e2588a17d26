"""Reads Debezium records into change blocks; runs in a task, on a piece of a partition.

Reading the same records again gives the same blocks: a version depends on the record and on the table's stored versioning
(`TableVersioning`). An unknown table or column is never guessed: its records are held back and it is reported (`DetectedSchema`); the
driver adapts the sink and replays the batch. A record that cannot be read is reported (`RejectedRecord`) and does not affect others.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.sources.debezium.events.records import DecodedRecords, ReadContext, Records


@dataclass(frozen=True, slots=True)
class DebeziumReader(ReadContext):
    def read(self, records: Records) -> DecodedRecords:
        """Decode the records. Raise `DefiniteError` only where continuing would be wrong for a whole table."""
        from headrace.sources.debezium.partition_reader import PartitionReader

        decoded = PartitionReader(self, records).decoded()
        if decoded.tail is not None and records.rows:
            ends = self._read.setdefault((records.topic, records.partition), {})
            ends[int(records.offset[-1].as_py())] = decoded.tail
        for key, mark in decoded.marks.items():
            self._passed.setdefault(key, {})[int(records.offset[-1].as_py())] = mark
        return decoded
