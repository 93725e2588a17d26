"""A pipe from Debezium's topics to ClickHouse: Spark's Kafka source, tasks that decode and write, a driver that lets the sink follow.

The order of things makes every crash harmless. A batch is a range of offsets in Spark's log; its rows have versions that are made of what
events say, so it may be written any number of times, in any order. It counts when all of it is in the sink: rows, new tables and columns,
what could not be read. Until then whatever happens leads to the same batch again.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.bad_records import check_choice, handle_bad_records, is_passed, is_record
from headrace.pipes.debezium.kafka_cluster import Standing, check_ids, check_offsets, standing, topic_ids
from headrace.pipes.debezium.keyless_snapshots import newest_snapshots
from headrace.pipes.debezium.pipe_notes import Notes, Tails
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.schema_evolution import SchemaEvolution, check_policy
from headrace.pipes.debezium.topic_backlog import TopicBacklog
from headrace.pipes.debezium.topic_settings import TopicSettings, check_chosen, is_named
from headrace.pipes.debezium.type_lookup import Descriptions, read_topic
from headrace.pipes.lifecycle.base import ChangeBlockPipe
from headrace.pipes.lifecycle.progress_reporter import Reporter, written_in
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver, shaper_for
from headrace.pipes.lifecycle.sink_tables import SinkTables, targets_of
from headrace.pipes.state.event_skips import Skips
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.stored_settings import settings_of, take_settings
from headrace.retry import current_wait, pause, retrying
from headrace.runtime.checkpoint import committed_offset, initial_offset, offset_of
from headrace.runtime.interface import LOOP_S
from headrace.runtime.tasks import Report
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.clickhouse.server.url import same_sink
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.unchanged_values import UnchangedValueFiller
from headrace.sources.debezium.events.event_versions import Rule
from headrace.sources.debezium.events.keyless_snapshots import Snapshot
from headrace.sources.debezium.events.options import FIXED, Unavailable
from headrace.sources.debezium.events.records import Truncation
from headrace.sources.debezium.events.topic_tables import TopicMap
from headrace.sources.debezium.offset_range_reader import fetch
from headrace.sources.debezium.read_context import KnownTable
from headrace.sources.debezium.reader import DebeziumReader
from headrace.spark.connector import kafka_settings
from headrace.spark.kafka.record_reports import (
    CHANGES,
    IGNORED,
    read_filled_topics,
    read_found_tables,
    read_orders,
    read_refused_records,
    read_snapshots,
    read_tails,
    read_truncations,
)
from headrace.spark.kafka.record_stream import KafkaUnavailable, RecordTask, Subscription
from headrace.spark.spark_runtime import SparkRuntimeSession
from headrace.transforms.table_shape import Shape

log = logging.getLogger("headrace")

_MOST_ROUNDS: Final = 100
"""How often one batch may bring news of tables."""
_MOST_FAILURES: Final = 20
_IDENTIFY_S: Final = 10.0
"""How often batches compare the ids of their topics."""
"""How often in a row Spark may fail to reach a cluster that answers us."""
_PRELOAD: Final = (
    "headrace.sources.debezium.reader",
    "headrace.sources.debezium.offset_range_reader",
    "headrace.spark.kafka.record_stream",
)
Run = Callable[[RecordTask], list[Report]]


@dataclass(slots=True)
class ClickHouseTables(SinkTables):
    """The targets of a pipe whose sink is ClickHouse."""

    sink: ClickHouseSink


class DebeziumPipe(ChangeBlockPipe):
    """One replication of topics."""

    _targets: ClickHouseTables

    def __init__(
        self,
        address: KafkaAddress,
        topics: TopicSettings,
        sink: ClickHouseSink,
        sink_name: str,
        settings: PipeSettings,
        view: ProgressView,
    ) -> None:
        super().__init__(sink, sink_name, settings, view)
        self._targets = ClickHouseTables(sink, self._targets.local)
        self._address, self._topics, self._sink = address, topics, sink

    def _run(self, directory: StateDirectory) -> None:
        self._topics.check()
        check_policy(self._settings.schema_changes)
        check_choice(self._topics.choices)
        now = self._standing(self._settings.retry_timeout_s)
        if self._settings.once and not now.high.offsets and is_named(self._topics.pattern):
            raise DefiniteError(
                f"no topic matches {self._topics.pattern}",
                place=str(self._address),
                hint="check --topics, and whether the user may see them",
            )
        state = directory.load()
        is_new = state is None
        if state is None:
            state = self._new_state(now)
            directory.begin(state)
        else:
            state = self._checked(state, now)
            self._ask_witness(directory, KafkaPosition.from_json, state.tables, can_resync=False)
        batches = self._batches(directory, state)
        retrying(lambda: self._targets.claim(batches.shown()))
        batches.evolution.finish()
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
            assert isinstance(session, SparkRuntimeSession), "topics are read with Spark's Kafka source"
            self._follow(session, directory, batches, ended)
        self._view.note(f"stopped at {batches.reached}")

    def _can_skip(self, event: str) -> bool:
        return is_record(event)

    def _standing(self, retry_timeout_s: float) -> Standing:
        return retrying(lambda: standing(self._address, self._topics.pattern), deadline_s=retry_timeout_s)

    def _new_state(self, now: Standing) -> PipeState:
        return PipeState(
            str(self._address),
            now.cluster,
            self._sink_name,
            self._settings.selection.to_json(),
            dict(self._topics.start),
            self._topics.choices.epoch,
            {**self._settings.stored_options, "topics": self._topics.pattern},
        )

    def _checked(self, state: PipeState, now: Standing) -> PipeState:
        place = str(self._settings.state)
        if "topics" not in state.options or not same_sink(state.sink, self._sink_name) or state.identity not in ("", now.cluster):
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
        was = settings_of(state, place).debezium
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
        take_settings(state, self._settings.choices, place)
        state.sink, state.source, state.selection = self._sink_name, str(self._address), self._settings.selection.to_json()
        state.options["topics"] = self._topics.pattern
        return state

    def _batches(self, directory: StateDirectory, state: PipeState) -> Batches:
        settings, notes = self._settings, Notes.load(directory)
        self._targets.write_as(state.id, settings.pipe_name)
        self._own_targets(directory, state)
        topic = self._topics.choices.schema_topic
        in_topic = functools.partial(read_topic, self._address, topic) if topic else None
        descriptions = Descriptions(functools.partial(_recognised, self._sink, settings), in_topic)
        orders = {name: order.rule for name, order in notes.orders.items()}
        # PostgreSQL has no unsigned integers.
        descriptions.check_known(table.schema for name, table in state.tables.items() if orders.get(name) is not Rule.LSN)
        evolution = SchemaEvolution(
            state,
            directory,
            self._targets,
            SinkSchemaResolver(settings),
            settings.schema_changes,
            settings.pipe_name,
            settings.selection,
            self._view.note,
            descriptions,
            self._view.schema_change,
        )
        committed = committed_offset(directory.checkpoint)
        reached = KafkaPosition.from_json(committed) if committed is not None else KafkaPosition()
        reporter = Reporter(self._targets, settings.pipe_name, str(self._address), tuple, directory.seal)
        return Batches(
            self._address,
            self._topics,
            settings,
            self._targets,
            directory,
            state,
            notes,
            evolution,
            reporter,
            self._view,
            reached,
            functools.partial(topic_ids, self._address),
        )

    def _follow(self, session: SparkRuntimeSession, directory: StateDirectory, batches: Batches, ended: Callable[[], bool]) -> None:
        """Read until `ended`; while Kafka is away, wait for it."""
        failures = 0
        while not ended():
            done = batches.done
            try:
                self._stream(session, directory, batches, ended)
            except KafkaUnavailable as error:
                failures = 1 if batches.done > done else failures + 1
                if self._stop.is_set():
                    return
                if failures > _MOST_FAILURES:
                    raise
                log.warning("waiting: %s", error)
                current_wait().note(error.message)
                check_offsets(batches.reached, self._standing(self._settings.retry_timeout_s), batches.notes.topics, self._address)
                pause(min(failures, 10))

    def _stream(self, session: SparkRuntimeSession, directory: StateDirectory, batches: Batches, ended: Callable[[], bool]) -> None:
        topics = self._topics
        subscription = Subscription(self._address, topics.pattern, topics.start, topics.max_offsets, topics.min_partitions)
        stream = session.stream_records(subscription, directory.checkpoint, batches.run)
        try:
            with batches.reporter.beating():
                while not stream.wait(LOOP_S) and not ended():
                    self._view.waiting(current_wait().current())
                    self._view.pending(batches.backlog.pending())
        finally:
            stream.stop()
            self._view.pending(batches.backlog.pending())


@dataclass(slots=True)
class Batches:
    """What the driver does with each batch, and how far the pipe has come."""

    address: KafkaAddress
    topics: TopicSettings
    settings: PipeSettings
    targets: ClickHouseTables
    directory: StateDirectory
    state: PipeState
    notes: Notes
    evolution: SchemaEvolution
    reporter: Reporter
    view: ProgressView
    reached: KafkaPosition
    identify: Callable[[Iterable[str]], Mapping[str, str]]
    """What tells topics from others of their names."""
    done: int = 0
    """Batches of this run."""
    _left_out: set[str] = field(default_factory=set)
    _identify_at: float = 0.0
    backlog: TopicBacklog = field(init=False)
    """Which records are not read yet."""
    _skips: Skips = field(init=False)

    def __post_init__(self) -> None:
        self._skips = Skips(self.directory.path)
        self.backlog = TopicBacklog(self.address, self.topics.pattern, lambda: self.begun)
        self.reporter.backlog = self.backlog.pending

    @property
    def begun(self) -> KafkaPosition:
        """How far the topics were read, from where reading started on."""
        return self.reached if self.reached.offsets else KafkaPosition.from_json(initial_offset(self.directory.checkpoint) or {})

    def covers(self, now: Standing) -> bool:
        """Whether all that the topics held then was read."""
        ends = {
            topic: {partition: end for partition, end in inner.items() if end > now.low.offsets[topic][partition]}
            for topic, inner in now.high.offsets.items()
        }
        return self.begun.covers(KafkaPosition(ends))

    def shown(self) -> dict[TableName, TableSchema]:
        """The tables that are written, as the sink gets to see them."""
        return {name: shape.schema for name, shape in self._shapes().items()}

    def _shapes(self) -> dict[TableName, Shape]:
        showing, tables = SinkSchemaResolver(self.settings), self.state.tables.items()
        return {name: showing.shape(table.schema, table.hidden) for name, table in tables if self.settings.selection(name)}

    def run(self, over: Run, number: int) -> None:
        """See to it that all of a batch is in the sink."""
        # A batch that is begun says that the one before it counts for good.
        self._skips.pass_by(lambda place: is_passed(place, self.reached))
        self._check_topics()
        reports = self._read(over, self.notes.tails_for(number))
        own = self.targets.sink.own_tables()
        handle_bad_records(read_refused_records(reports), self.topics.choices, own, self.address, self.settings.pipe_name, self._skips)
        reached = KafkaPosition.from_json(offset_of(self.directory.checkpoint, number))
        self._note_topics(reached)
        self.notes.note_filled(read_filled_topics(reports))
        emptied = read_truncations(reports)
        if self.evolution.policy.of(ChangeKind.TRUNCATE_TABLE) is Policy.APPLY:
            check_emptied(emptied, self.topics.choices.topic_map, reached, self.notes.filled)
            self.notes.note_emptied(emptied)
        self.evolution.truncate(emptied)
        self._see_to_snapshots(read_snapshots(reports), reached)
        self.notes.note_batch(number, read_tails(reports))
        self.reached = reached
        self._tell(reports)
        self.done += 1

    def _check_topics(self) -> None:
        """Raise if a topic that is read was deleted and created again: its offsets mean other records now."""
        now = time.monotonic()
        if now >= self._identify_at and self.notes.topics:
            self._identify_at = now + _IDENTIFY_S
            check_ids(
                self.notes.topics,
                retrying(lambda: self.identify(sorted(self.notes.topics)), deadline_s=self.settings.retry_timeout_s),
                self.address,
            )

    def _note_topics(self, reached: KafkaPosition) -> None:
        """What tells topics that came meanwhile from others of their names."""
        new = reached.offsets.keys() - self.notes.topics.keys()
        if new:
            self.notes.note_topics(retrying(lambda: self.identify(sorted(new)), deadline_s=self.settings.retry_timeout_s))

    def _see_to_snapshots(self, seen: list[Snapshot], reached: KafkaPosition) -> None:
        def replaceable(name: TableName) -> bool:
            order = self.notes.orders.get(name)
            by_source = order is not None and order.rule is not Rule.OFFSET
            return by_source and len(topics_of(name, self.topics.choices.topic_map, reached, self.notes.filled)) < 2

        counting, anew = newest_snapshots(self.notes.snapshots, seen, self.topics.choices.second_snapshot, replaceable)
        self.notes.note_emptied(anew)
        self.evolution.begin_anew(anew)
        self.notes.note_snapshots(counting)

    def _read(self, over: Run, tails: Tails) -> list[Report]:
        """Read the batch, again as long as it brings news of tables."""
        for _ in range(_MOST_ROUNDS):
            reports = over(self.task(tails))
            orders = read_orders(reports)
            self.notes.note_orders(orders)
            found = [
                one
                for one in read_found_tables(reports)
                if _is_taken(self.settings.selection, frozenset(self.state.ignored), one.schema.name)
            ]
            # Pieces of nothing but tombstones did not know yet that those are deletions.
            if not found and not any(order.tombstones for order in orders.values()):
                return reports
            if found and not self.evolution.apply(found):
                break
            if found:
                self.view.tables(targets_of(self.targets, self.shown().values()))
        raise DefiniteError(
            f"records of table {found[0].schema.name} are not read by what is known of it",
            place=f"{found[0].topic}[{found[0].partition}]@{found[0].offset}",
            hint="this is a defect of Headrace; please report it with the record",
        )

    def task(self, tails: Tails) -> RecordTask:
        """A task that reads tables as they are known now."""
        shapes = self._shapes()
        written = [shape.schema for shape in shapes.values()]
        needs = retrying(lambda: self.targets.requirements(written))
        known = {
            name: KnownTable(self.state.tables[name].schema, shape.inputs_of(needs[name].key_columns), self.notes.orders.get(name))
            for name, shape in shapes.items()
        }
        choices = self.topics.choices
        reader = DebeziumReader(choices, choices.topic_map, known, tails, self.notes.emptied, self.state.epoch, self.notes.snapshots)
        retry = functools.partial(retrying, deadline_s=self.settings.retry_timeout_s)
        keeper = UnchangedValueFiller(self.targets.sink.scope) if choices.unavailable is Unavailable.KEEP else None
        ignored = frozenset(self.state.ignored)
        left_out = functools.partial(_is_left_out, choices.topic_map, self.settings.selection, ignored)
        news = functools.partial(_is_taken, self.settings.selection, ignored)
        # Events do not always say what a row was before.
        shaper = shaper_for(self.settings, shapes.values(), needs, whole=False)
        carried = {name: shape.source for name, shape in shapes.items()}
        fetched = functools.partial(fetch, self.address)
        return RecordTask(reader, self.targets.sink.with_tables(written), retry, carried, keeper, left_out, news, fetched, shaper)

    def _tell(self, reports: list[Report]) -> None:
        written = [report for report in reports if report.kind == CHANGES]
        newest, changes = max((report.commit_ts for report in written), default=0), sum(report.changes for report in written)
        self.reporter.batch(self.reached, changes, newest)
        current_wait().clear()
        self.view.written(written_in(written))
        pending = self.backlog.pending()
        self.view.pending(pending)
        self.view.batch(changes, None if pending is None else pending.lag_s(time.time()), _summary(self.reached))
        for why in sorted({report.subject for report in reports if report.kind == IGNORED} - self._left_out):
            log.info("records without a change of a row: %s", why)
            self._left_out.add(why)


def _recognised(sink: ClickHouseSink, settings: PipeSettings, names: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
    """Target tables that are the source's, as schemas: those of transformed tables are others."""
    return sink.infer_schemas(name for name in names if settings.transforms.of(name).is_empty)


def check_emptied(emptied: Iterable[Truncation], topics: TopicMap, reached: KafkaPosition, filled: Mapping[TableName, set[str]]) -> None:
    """Refuse to empty a table that several topics fill: versions do not tell which of its rows are of the source that was emptied."""
    for one in emptied:
        filling = topics_of(one.table, topics, reached, filled)
        if len(filling) > 1:
            raise DefiniteError(
                f"table {one.table} is filled from several topics ({', '.join(filling)}), and was emptied in the source of one of them: "
                "the rows of the others would go too",
                place=f"table {one.table}",
                hint="delete that source's rows from the copy yourself, and start again with --schema-changes truncate_table=ignore; or "
                "let the connectors leave truncations out (skipped.operations=t)",
            )


def topics_of(table: TableName, topics: TopicMap, reached: KafkaPosition, filled: Mapping[TableName, set[str]]) -> list[str]:
    """The topics that are led to a table, and those whose events named it so far."""
    return sorted({topic for topic in reached.offsets if _table_of(topics, topic) == table} | filled.get(table, set()))


def _table_of(topics: TopicMap, topic: str) -> TableName | None:
    try:
        return topics.table_of(topic)
    except DefiniteError:
        # It holds other records than rows.
        return None


def _is_left_out(topics: TopicMap, chosen: Selection, ignored: frozenset[TableName], topic: str) -> bool:
    """Whether all of a topic's records are of a table that is not replicated."""
    if topic not in topics.tables and "." not in topic:
        # The reader says what is wrong with its name, unless events name their tables.
        return False
    name = topics.table_of(topic)
    return name is not None and not _is_taken(chosen, ignored, name)


def _is_taken(chosen: Selection, ignored: frozenset[TableName], name: TableName) -> bool:
    return name not in ignored and chosen(name)


def _summary(position: KafkaPosition) -> str:
    """A position on one line."""
    text = str(position)
    return text if len(text) <= 80 else f"{len(position.offsets)} topics, {position.version} records"
