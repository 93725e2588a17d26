"""Records of Debezium's topics to change blocks: what a task does with a piece of a partition.

Reading the same records again gives the same blocks: what decides a version is in the record, or in what the driver remembers of the table
(`Order`). A table or a column that the reader does not know is not guessed at: its records are left out and it is reported (`Found`); the
driver adapts the sink and has the batch read again. A record that cannot be read never hides another: it is reported (`Refused`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.sources.debezium.events.records import DecodedRecords, Records
from headrace.sources.debezium.read_context import ReadContext


@dataclass(frozen=True, slots=True)
class DebeziumReader(ReadContext):
    """Picklable."""

    def read(self, records: Records) -> DecodedRecords:
        """What the records say. Raises `DefiniteError` only where going on would be wrong for the table as a whole."""
        from headrace.sources.debezium.partition_reader import PartitionReader

        decoded = PartitionReader(self, records).decoded()
        if decoded.tail is not None and records.rows:
            ends = self._read.setdefault((records.topic, records.partition), {})
            ends[int(records.offset[-1].as_py())] = decoded.tail
        return decoded
