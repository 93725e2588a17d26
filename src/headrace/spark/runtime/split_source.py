"""A Headrace source as a Spark streaming data source: Spark plans batches through it and checkpoints their offsets.

It emits no rows. The source's process writes the splits of a batch to a file, from which the driver reads them and makes tasks. After a
crash, a batch that was not committed is planned again from the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.runtime.reports import serialize_errors
from headrace.sources.base import Offset, Planner, Source
from headrace.sources.splits import encode_split
from headrace.spark.runtime.worker_logs import mark_log_lines

FORMAT = "headrace_addresses"


def make_split_format(source: Source, planned: Path, pipe: str = "") -> type[DataSource]:
    """Return a data source class that is bound to `source`, so that no password becomes a Spark option.

    `planned`: the file for the splits of a batch.
    """

    class SplitDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "nothing string"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            del schema
            return SplitStreamReader(source, planned, pipe)

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
    """Writes the splits of each batch to a file. Spark gets no partitions."""

    def __init__(self, source: Source, planned: Path, pipe: str = "") -> None:
        super().__init__(source, pipe)
        self._planned = planned

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for tasks that it never runs. A planner cannot be pickled.
        return {"_source": None, "_made": None, "_planned": self._planned}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with self._errors():
            splits = [encode_split(split) for split in self._planner.splits(start, end)]
            temporary = self._planned.with_suffix(".new")
            temporary.write_text(json.dumps({"end": end, "splits": splits}))
            temporary.replace(self._planned)
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        del partition
        return iter(())


def read_planned_splits(planned: Path, end: Offset) -> list[str]:
    """Return the splits of the batch that ends at `end`."""
    found = json.loads(planned.read_text())
    # Spark asks for the partitions of a batch before it hands the batch over.
    assert found["end"] == end, (found["end"], end)
    splits: list[str] = found["splits"]
    return splits
