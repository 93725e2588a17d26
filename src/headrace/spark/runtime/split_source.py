"""A Headrace source as a Spark streaming data source: it emits splits, never rows of tables.

Each row is one split as JSON. Spark checkpoints the offsets. After a crash, a batch that was not committed is planned again from the same
offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.runtime.error_transport import serialize_errors
from headrace.sources.base import Offset, Planner, Source
from headrace.sources.splits import encode_split
from headrace.spark.runtime.worker_logs import mark_log_lines

FORMAT = "headrace_addresses"


def make_split_format(source: Source, pipe: str = "") -> type[DataSource]:
    """Return a data source class that is bound to `source`, so that no password becomes a Spark option."""

    class SplitDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "work string"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            del schema
            return SplitStreamReader(source, pipe)

    return SplitDataSource


class PlannedStreamReader(DataSourceStreamReader):
    """Spark's stream reader over a planner, which it creates on first use. Subclasses read the splits."""

    _errors = staticmethod(serialize_errors)
    """How errors leave this process: encoded for the Headrace driver."""

    def __init__(self, source: Source, pipe: str = "") -> None:
        self._source: Source | None = source
        self._pipe = pipe
        self._made: Planner | None = None

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            assert self._source is not None
            mark_log_lines(self._pipe)
            self._made = self._source.planner()
        return self._made

    def initialOffset(self) -> Offset:
        with self._errors():
            return self._planner.initial()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        del limit
        with self._errors():
            return self._planner.plan(start)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with self._errors():
            return [InputPartition(encode_split(split)) for split in self._planner.splits(start, end)]

    def commit(self, end: Offset) -> None:
        with self._errors():
            self._planner.commit(end)

    def stop(self) -> None:
        if self._made is not None:
            self._made.stop()


class SplitStreamReader(PlannedStreamReader):
    """Returns each split as it is."""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only call `read`, which needs no state, so that workers do not import the source.
        return {"_source": None, "_made": None}

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)
