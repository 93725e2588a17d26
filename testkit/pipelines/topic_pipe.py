"""A pipe from topics without Spark and without a broker: the real driver, reader and writers, over given records.

Batches are ranges of offsets, noted in a checkpoint as Spark notes them; each partition's records go through a task that is pickled as
Spark pickles it. A run takes a fraction of a second.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.model.projection import Projection
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.batch_runner import RecordBatchRunner
from headrace.pipes.debezium.kafka_cluster import ClusterTopics
from headrace.pipes.debezium.pipe import DebeziumPipe
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.record_task import RecordTask
from headrace.pipes.debezium.topic_settings import TopicSettings
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.runtime.reports import Report
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.views import current_rows_from
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.offset_range_reader import OffsetRange
from testkit.pipelines.checkpoint_files import make_checkpoint, next_batch, write_batch_file
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches


class LocalTopicPipe:
    """Reads records that it is given, batch by batch, into a sink."""

    def __init__(
        self,
        state: Path,
        sink: ClickHouseSink,
        choices: DebeziumOptions | None = None,
        *,
        policy: SchemaPolicy | None = None,
        schema_records: Sequence[bytes] | None = None,
        exclude: tuple[str, ...] = (),
        exclude_columns: tuple[str, ...] = (),
        settings: dict[str, Any] | None = None,
        owner: bool = False,
        topics: TopicSettings | None = None,
        compacted: frozenset[str] = frozenset(),
    ) -> None:
        """`settings`: entries of a settings file; `owner`: check the state as a run does, until `close`; `topics`: settings of the source,
        instead of `choices`; `compacted`: topics with cleanup.policy=compact."""
        chosen = PipeSettings(
            Selection(("*.*",), exclude),
            state,
            schema_changes=policy or SchemaPolicy(),
            patience=5.0,
            projection=Projection(exclude=exclude_columns),
            choices=settings or {},
        )
        topics = topics or TopicSettings("unused", choices=choices or DebeziumOptions())
        self._compacted = compacted
        self._pipe = DebeziumPipe(KafkaAddress("127.0.0.1:1"), topics, sink, f"test:{sink.target.database}", chosen, LogView())
        self._directory = StateDirectory(state).acquire() if owner else StateDirectory(state)
        self._schema_records = schema_records
        self.sink, self.rounds = sink, 0
        try:
            self.batches = self._opened()
        except DefiniteError:
            self._directory.release()
            raise
        self.number = next_batch(self._directory.checkpoint)

    def _opened(self) -> RecordBatchRunner:
        state = self._directory.load()
        if state is None:
            state = self._pipe._new_state(ClusterTopics("cluster", KafkaPosition(), KafkaPosition(), ()))
            self._directory.begin(state)
        else:
            self._pipe._read_sink_record(self._directory, KafkaPosition.from_json, state.tables, can_resync=False)
        batches = self._pipe._batches(self._directory, state)
        if self._schema_records is not None:
            batches.evolution.descriptions.in_topic = batches.changes.records = lambda: list(self._schema_records or ())
            batches.changes.end = lambda: len(self._schema_records or ())
        batches.identify = lambda names: dict.fromkeys(names, "made here")
        batches.compacted = lambda _: self._compacted
        batches.evolution.finish()
        self._pipe._targets.prepare(batches.shown().values())
        self._directory.save(state)
        batches.reporter.begin(batches.reached, is_new=True)
        make_checkpoint(self._directory.checkpoint)
        return batches

    def close(self) -> None:
        """End the run of an owner."""
        self._directory.close()

    def run(self, records: Iterable[KafkaRecord], *, commit: bool = True) -> None:
        """Run one batch of all these records; without `commit`, the process ends before Spark's commit."""
        found = list(records)
        ends: dict[str, dict[str, int]] = {topic: dict(inner) for topic, inner in self.batches.reached.to_json().items()}
        for record in found:
            inner = ends.setdefault(record.topic, {})
            inner[str(record.partition)] = max(inner.get(str(record.partition), 0), record.offset + 1)
        write_batch_file(self._directory.checkpoint / "offsets" / str(self.number), "\n".join(("v1", "{}", json.dumps(ends))))
        begun = self.batches.reached.offsets
        pieces = {
            OffsetRange(
                piece.topic, piece.partition, begun.get(piece.topic, {}).get(piece.partition, 0), piece.offset[-1].as_py() + 1
            ): piece
            for piece in as_batches(found)
        }

        def run_ranges(task: RecordTask, ranges: Sequence[OffsetRange]) -> list[Report]:
            self.rounds += 1
            return [
                replace(pickle.loads(pickle.dumps(task)), fetch=lambda one: iter([replace(pieces[one], start=one.start)])).run_ranges([one])
                for one in ranges
            ]

        self.batches.run(run_ranges, list(pieces), self.number)
        if commit:
            write_batch_file(self._directory.checkpoint / "commits" / str(self.number), "v1\n{}")
            self.number += 1

    def rows(self, table: str, columns: str = "*", order: str = "1") -> list[list[object]]:
        """Return the rows of a table in the sink."""
        name = next(known for known in self.batches.context.state.tables if str(known) == table)
        layout = self.sink.target_table(self.batches.shown()[name])
        listed = ", ".join(f"`{column.name}`" for column in layout.columns) if columns == "*" else columns
        return self.sink.reader().query(f"SELECT {listed} FROM {current_rows_from(layout)} ORDER BY {order}")[1]

    @property
    def tables(self) -> list[TableName]:
        return sorted(self.batches.context.state.tables)
