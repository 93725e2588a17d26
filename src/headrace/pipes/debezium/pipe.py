"""A pipe from Debezium's topics to ClickHouse: Spark's Kafka source, tasks that decode and write, and schema evolution on the driver.

The order of writes makes every crash harmless. A batch is a range of offsets in Spark's log. Row versions come from the events, so a batch
may be written any number of times, in any order. It counts when its rows, new tables and columns and bad records are stored; until then the
same batch is read again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.debezium.bad_records import check_choice, is_record
from headrace.pipes.debezium.batch_runner import RecordBatchRunner
from headrace.pipes.debezium.definition_changes import DefinitionChanges
from headrace.pipes.debezium.kafka_cluster import ClusterTopics, check_offsets, compacted_topics, query_topics, topic_ids
from headrace.pipes.debezium.pipe_notes import DebeziumPipeNotes
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.schema_evolution import ClickHouseTables, SchemaEvolution, check_policy
from headrace.pipes.debezium.topic_settings import TopicSettings, check_chosen, is_named
from headrace.pipes.debezium.type_lookup import TypeLookup, read_topic, topic_end
from headrace.pipes.lifecycle.base import ChangeBlockPipe
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.sink_tables import targets_of
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.stored_progress import SinkRecord
from headrace.pipes.state.stored_settings import settings_in, store_settings
from headrace.retry import current_wait, pause, retrying
from headrace.runtime.checkpoint import planned_offset
from headrace.runtime.interface import LOOP_S, Runtime, RuntimeSession
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.registry import is_same_sink
from headrace.sources.debezium.events.event_versions import VersionRule
from headrace.sources.debezium.events.options import FIXED, DebeziumOptions
from headrace.sources.debezium.offset_range_reader import KafkaUnavailable, Subscription
from headrace.spark.connector import kafka_settings
from headrace.stage_report import enter_stage

log = logging.getLogger("headrace")

_MAX_FAILURES: Final = 20
"""How often in a row Spark may fail to reach a cluster that answers the driver."""
_PRELOAD: Final = (
    "headrace.sources.debezium.reader",
    "headrace.sources.debezium.offset_range_reader",
    "headrace.pipes.debezium.record_task",
)


class DebeziumPipe(ChangeBlockPipe):
    _targets: ClickHouseTables

    def __init__(
        self,
        address: KafkaAddress,
        topics: TopicSettings,
        sink: ClickHouseSink,
        sink_name: str,
        settings: PipeSettings,
        view: ProgressView,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(sink, sink_name, settings, view, runtime)
        self._targets = ClickHouseTables(sink, self._targets.local)
        self._address, self._topics, self._sink = address, topics, sink

    def _run(self, directory: StateDirectory) -> None:
        self._topics.check()
        check_policy(self._settings.schema_changes)
        check_choice(self._topics.choices)
        enter_stage(f"asking {self._address} for its topics")
        now = self._query_topics(self._settings.retry_timeout_s)
        if self._settings.once and not now.high.offsets and is_named(self._topics.pattern):
            raise DefiniteError(
                f"no topic matches {self._topics.pattern}",
                place=str(self._address),
                hint="check --topics, and whether the user may see them",
            )
        state = directory.load()
        is_new, record = state is None, SinkRecord()
        if state is None:
            state = self._new_state(now)
            directory.begin(state)
        else:
            state = self._checked(state, now)
            record = self._read_sink_record(directory, KafkaPosition.from_json, state.tables, can_resync=False)
        batches = self._batches(directory, state)
        enter_stage(f"preparing {len(batches.shown())} target tables")
        retrying(lambda: self._targets.claim(batches.shown()))
        batches.evolution.finish()
        self._check_age(directory, batches, record)
        retrying(lambda: self._targets.prepare(batches.shown().values()))
        retrying(lambda: self._targets.keep_only(batches.shown()))
        directory.save(state)
        check_chosen(self._topics.pattern, batches.reached.offsets)
        check_offsets(batches.reached, now, batches.notes.topics, self._address)
        batches.notes.note_topics(dict(now.ids))
        batches.reporter.begin(batches.reached, is_new=is_new)
        self._view.tables(targets_of(self._targets, batches.shown().values()))
        self._begin(directory, state, f"replicating {len(now.high.offsets)} topics from {self._address}")
        directory.clear_scratch()

        def ended() -> bool:
            return self._stop.is_set() or (self._settings.once and batches.covers(now))

        if not now.high.offsets:
            log.warning("no topic of %s matches %s; a topic that is created later will be read", self._address, self._topics.pattern)
        if ended():
            self._view.note(f"nothing new since {batches.reached}")
            return
        with self._session(directory, _PRELOAD, kafka_settings(self._topics.jars)) as session, batches.backlog.watched():
            self._follow(session, directory, batches, ended)
        self._view.note(f"stopped at {batches.reached}")

    def _can_skip(self, event: str) -> bool:
        return is_record(event)

    def _query_topics(self, retry_timeout_s: float) -> ClusterTopics:
        return retrying(lambda: query_topics(self._address, self._topics.pattern), deadline_s=retry_timeout_s)

    def _new_state(self, now: ClusterTopics) -> PipeState:
        return PipeState(
            str(self._address),
            now.cluster,
            self._sink_name,
            self._settings.selection.to_json(),
            dict(self._topics.start),
            self._topics.choices.epoch,
            {**self._settings.stored_options, "topics": self._topics.pattern},
        )

    def _checked(self, state: PipeState, now: ClusterTopics) -> PipeState:
        place = str(self._settings.state)
        if "topics" not in state.options or not is_same_sink(state.sink, self._sink_name) or state.identity not in ("", now.cluster):
            raise DefiniteError(
                f"the state belongs to {state.source} and {state.sink}",
                place=place,
                hint="use a new state directory, or give the same ends",
            )
        if state.options["columns"] != self._settings.stored_options["columns"]:
            raise DefiniteError(
                "the state was made with other --columns or --exclude-columns",
                place=place,
                hint="give the same ones, or start over: drop the tables in ClickHouse and use a new --state (the topics are read again "
                "from --start on)",
            )
        was = settings_in(state, place).debezium
        for name in sorted(FIXED):
            if state.tables and getattr(was, name) != getattr(self._topics.choices, name):
                raise DefiniteError(
                    f"the tables were begun with {name} = {getattr(was, name)}", place=f"{place}, {name}", hint="give it as it was"
                )
        if self._topics.choices.epoch < was.epoch:
            raise DefiniteError(
                f"the epoch is {self._topics.choices.epoch}, and was {was.epoch} before: changes would be taken for older than they are",
                place=f"{place}, epoch",
                hint="an epoch is only ever raised",
            )
        store_settings(state, self._settings.choices, place)
        state.sink, state.source, state.selection = self._sink_name, str(self._address), self._settings.selection.to_json()
        state.options["topics"] = self._topics.pattern
        return state

    def _check_age(self, directory: StateDirectory, batches: RecordBatchRunner, record: SinkRecord) -> None:
        """Refuse to repeat changes into tables that would count them twice, if the state is an old copy."""
        planned = planned_offset(directory.checkpoint)
        if not record.is_ahead(-1 if planned is None else KafkaPosition.from_json(planned).version):
            return
        targets = retrying(lambda: self._targets.sink.target_tables(batches.shown().values()))
        counting = sorted(str(name) for name, table in targets.items() if table.counts_duplicates)
        if counting:
            raise DefiniteError(
                f"the state is older than the sink, and changes that are read again would count twice in {', '.join(counting)}",
                place=str(self._settings.state),
                hint="restore a newer copy of the state directory, or start over: remove the state directory and the target tables",
            )

    def _batches(self, directory: StateDirectory, state: PipeState) -> RecordBatchRunner:
        settings, notes = self._settings, DebeziumPipeNotes.load(directory)
        self._targets.write_as(state.id, settings.pipe_name)
        self._own_targets(directory, state)
        topic = self._topics.choices.schema_topic
        in_topic = functools.partial(read_topic, self._address, topic) if topic else None

        def in_sink(names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
            return self._sink.infer_schemas(name for name in names if settings.transforms.of(name).is_empty)

        defaults, choices = DebeziumOptions(), self._topics.choices
        given = settings.choices.get("debezium", {})
        unset = {name for name in ("times", "decimals") if name not in given and getattr(choices, name) == getattr(defaults, name)}
        descriptions = TypeLookup(in_sink, in_topic, unset)
        orders = {name: order.rule for name, order in notes.orders.items()}
        # PostgreSQL has no unsigned integers.
        descriptions.check_known(table.schema for name, table in state.tables.items() if orders.get(name) is not VersionRule.LSN)
        context = PipeContext(settings, state, directory, self._targets, self._view, self._stop.is_set)
        evolution = SchemaEvolution(context, descriptions)
        reporter = ProgressReporter(self._targets, settings.pipe_name, str(self._address), tuple, directory.seal)
        identify, compacted = functools.partial(topic_ids, self._address), functools.partial(compacted_topics, self._address)
        end = topic_end(self._address, topic) if topic else lambda: 0
        changes = DefinitionChanges(self._topics.choices, in_topic or list, end)
        return RecordBatchRunner(context, self._address, self._topics, notes, evolution, reporter, identify, compacted, changes)

    def _follow(self, session: RuntimeSession, directory: StateDirectory, batches: RecordBatchRunner, ended: Callable[[], bool]) -> None:
        failures = 0
        while not ended():
            done = batches.done
            try:
                self._stream(session, directory, batches, ended)
            except KafkaUnavailable as error:
                failures = 1 if batches.done > done else failures + 1
                if self._stop.is_set():
                    return
                if failures > _MAX_FAILURES:
                    raise
                log.warning("waiting: %s", error)
                current_wait().note(error.message)
                check_offsets(batches.reached, self._query_topics(self._settings.retry_timeout_s), batches.notes.topics, self._address)
                pause(min(failures, 10))

    def _stream(self, session: RuntimeSession, directory: StateDirectory, batches: RecordBatchRunner, ended: Callable[[], bool]) -> None:
        topics = self._topics
        subscription = Subscription(
            self._address, topics.pattern, topics.start, topics.max_offsets, topics.min_partitions, topics.latency_s
        )
        stream = session.stream_records(subscription, directory.checkpoint, batches.run)
        try:
            with batches.reporter.heartbeats():
                while not stream.wait(LOOP_S) and not ended():
                    self._view.waiting(current_wait().current())
                    self._view.pending(batches.backlog.pending())
        finally:
            stream.stop()
            self._view.pending(batches.backlog.pending())
