"""`spark.read.format("headrace")` and `spark.readStream.format("headrace")`: a table's changes as a typed frame.

Spark creates this source in several short-lived processes, which need only its options and the frame's columns. The planner and the reader
import the compiled kernels, so they are imported in the functions that use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.runtime.reports import hide_traceback
from headrace.sources.base import Planner
from headrace.sources.mysql.server.connection import connect
from headrace.sources.splits import decode_split, encode_split
from headrace.spark.frames.table_frame import TableRequest, frame_type
from headrace.spark.runtime.split_source import PlannedStreamReader

FORMAT: Final = "headrace"


class TableChanges(DataSource):
    """The data source, which Spark creates from a query's options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with hide_traceback():
            request = TableRequest.from_options(self.options)
            with closing(connect(request.address)) as connection:
                return frame_type(request.captured(connection))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with hide_traceback():
            return TableStreamReader(TableSource(TableRequest.from_options(self.options), schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        with hide_traceback():
            return TableReader(TableRequest.from_options(self.options), schema)


@dataclass(frozen=True, slots=True)
class TableSource:
    request: TableRequest
    frame: StructType

    def planner(self) -> Planner:
        from headrace.spark.frames.planner import TablePlanner

        return TablePlanner(self.request, self.frame)


class TableStreamReader(PlannedStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of changes; in a task it reads one split."""

    _errors = staticmethod(hide_traceback)

    def __init__(self, source: TableSource) -> None:
        super().__init__(source)
        self._request = source.request

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read; they never plan.
        return {"_source": None, "_made": None, "_request": self._request}

    def prepareForTriggerAvailableNow(self) -> None:
        with hide_traceback():
            planner: Any = self._planner
            planner.end_at_latest()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.frames.planner import STREAM_SPLITS, read_changes

        with hide_traceback():
            yield from read_changes(self._request, decode_split(partition.value, STREAM_SPLITS))


class TableReader(DataSourceReader):
    def __init__(self, request: TableRequest, frame: StructType) -> None:
        self._request, self._frame = request, frame

    def partitions(self) -> list[InputPartition]:
        from headrace.spark.frames.planner import plan_frame

        with hide_traceback():
            return [InputPartition(encode_split(split)) for split in plan_frame(self._request, self._frame)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.frames.planner import FRAME_SPLITS, read_frame

        with hide_traceback():
            yield from read_frame(self._request, self._frame, decode_split(partition.value, FRAME_SPLITS))
