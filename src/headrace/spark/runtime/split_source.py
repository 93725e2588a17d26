"""A source of ours as a Spark streaming data source: it emits addresses, never data.

Each row is one piece of work as JSON. Spark checkpoints the offsets; a batch that was planned but not committed is planned again from the
same offsets after a crash.
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
    """A data source class bound to `source`; settings travel inside the class, so no password becomes a Spark option."""

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
    """Spark's reader over our planner, which is made on first use. What a partition's work becomes is the heirs' business."""

    _errors = staticmethod(serialize_errors)
    """How errors leave: encoded for a driver of ours, which decodes them."""

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
    """Hands each piece of work on as it is."""

    def __getstate__(self) -> dict[str, Any]:
        # What tasks get for `read`: it needs nothing, and so its workers import nothing of the source.
        return {"_source": None, "_made": None}

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)
