"""Runs the batches of a pipe from Debezium's topics on the driver.

Invariant: a batch counts when its rows, its new tables and columns and its bad records are stored. Row versions come from the events, so a
batch may be written any number of times, in any order; a history gets the images that it lacks (`clickhouse.write.deduplication`), and
a target that counts rows drops the blocks that it knows (`counted_tables`).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.model.schema import TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.bad_records import handle_bad_records, is_passed
from headrace.pipes.debezium.counted_tables import (
    COUNTING,
    CountedTopics,
    check_continuity,
    check_emptied,
    check_partitions,
    counted_partitions,
    with_ends,
)
from headrace.pipes.debezium.definition_changes import DefinitionChanges, Periods
from headrace.pipes.debezium.kafka_cluster import ClusterTopics, TopicBacklog, check_ids
from headrace.pipes.debezium.pipe_notes import DebeziumPipeNotes
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.debezium.record_task import (
    RecordsRead,
    RecordTask,
    newest_snapshots,
    read_filled_topics,
    read_found_tables,
    read_orders,
    read_refused_records,
    read_tails,
    read_truncations,
    select_ranges,
)
from headrace.pipes.debezium.schema_evolution import ClickHouseTables, SchemaEvolution
from headrace.pipes.debezium.topic_settings import TopicSettings
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.sink_schema import transformer_for
from headrace.pipes.lifecycle.sink_tables import targets_of
from headrace.pipes.state.event_skips import EventSkips
from headrace.retry import retrying
from headrace.runtime.checkpoint import committed_offset, initial_offset, offset_of
from headrace.runtime.interface import RunRanges
from headrace.runtime.reports import Report, SplitDone, finished_splits
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.clickhouse.tables.target_table import EngineFamily
from headrace.sinks.clickhouse.unchanged_values import UnchangedValueFiller
from headrace.sources.debezium.events.event_versions import ADD_POSITION, VersionRule
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.options import TopicMap, UnavailablePolicy
from headrace.sources.debezium.events.records import KnownTable, Truncation
from headrace.sources.debezium.events.source_marks import FROM_SNAPSHOT, merge_marks
from headrace.sources.debezium.offset_range_reader import OffsetRange, classify_transient_error, read_offset_range
from headrace.sources.debezium.reader import DebeziumReader
from headrace.transforms.transform_plan import TransformPlan

log = logging.getLogger("headrace")

_MAX_ROUNDS: Final = 100
"""How often one batch may bring new tables or columns."""
_IDENTIFY_S: Final = 10.0
"""How often batches compare the ids of their topics."""


@dataclass(slots=True)
class RecordBatchRunner:
    """Runs each batch on the driver, and knows the pipe's position."""

    context: PipeContext[ClickHouseTables]
    address: KafkaAddress
    topics: TopicSettings
    notes: DebeziumPipeNotes
    evolution: SchemaEvolution
    reporter: ProgressReporter
    identify: Callable[[Iterable[str]], Mapping[str, str]]
    """Returns the ids of topics: a topic that was deleted and created again has another id."""
    compacted: Callable[[Iterable[str]], frozenset[str]]
    """Returns the topics from which Kafka removes older records of a key."""
    changes: DefinitionChanges
    reached: KafkaPosition = field(init=False)
    done: int = 0
    """Number of batches of this run."""
    _left_out: set[str] = field(default_factory=set)
    _identify_at: float = 0.0
    _compaction: tuple[float, frozenset[str], frozenset[str]] = (0.0, frozenset(), frozenset())
    """Until when it holds, the topics, and those of them that are compacted."""
    backlog: TopicBacklog = field(init=False)
    """The records that are not read yet."""
    _skips: EventSkips = field(init=False)
    _may_be_written: bool = True
    """Whether the sink may have some of the next records: of the first batch of a run, and of a batch that failed or is read again."""

    def __post_init__(self) -> None:
        directory = self.context.directory
        committed = committed_offset(directory.checkpoint)
        self.reached = KafkaPosition.from_json(committed) if committed is not None else KafkaPosition()
        self._skips = EventSkips(directory.path)
        self.backlog = TopicBacklog(self.address, self.topics.pattern, lambda: self.begun)
        self.reporter.backlog = self.backlog.pending
        self.context.view.unreadable(self.notes.sent)

    @property
    def begun(self) -> KafkaPosition:
        """The position up to which the topics were read; at first, the start position."""
        return self.reached if self.reached.offsets else KafkaPosition.from_json(initial_offset(self.context.directory.checkpoint) or {})

    def covers(self, now: ClusterTopics) -> bool:
        """Whether everything that the topics held then was read."""
        ends = {
            topic: {partition: end for partition, end in inner.items() if end > now.low.offsets[topic][partition]}
            for topic, inner in now.high.offsets.items()
        }
        return self.begun.covers(KafkaPosition(ends))

    def shown(self) -> dict[TableName, TableSchema]:
        """Return the sink's schemas of the written tables."""
        return {name: plan.schema for name, plan in self._transform_plans().items()}

    def _transform_plans(self) -> dict[TableName, TransformPlan]:
        resolver, tables = self.context.schemas, self.context.state.tables.items()
        return {
            name: resolver.transform_plan(table.schema, table.hidden) for name, table in tables if self.context.settings.selection(name)
        }

    def run(self, run_ranges: RunRanges, ranges: Sequence[OffsetRange], number: int) -> None:
        # Starting a batch proves that the previous one is committed.
        self._skips.drop_passed(lambda place: is_passed(place, self.reached))
        self._check_topics()
        reached = KafkaPosition.from_json(offset_of(self.context.directory.checkpoint, number))
        partitions = {topic: len(inner) for topic, inner in reached.offsets.items()}
        check_partitions(self.notes.partitions, partitions)
        self._check_offset_topics(partitions)
        check_continuity(self.notes.marks_for(number), ranges, self._counted_tables())
        reports, results = self._read(run_ranges, ranges, number, partitions)
        own = self.context.targets.sink.own_tables()
        sent = handle_bad_records(
            read_refused_records(results), self.topics.choices, own, self.address, self.context.settings.pipe_name, self._skips
        )
        self._note_topics(reached)
        marks = [result.marks for result in results]
        self.notes.note_partitions(counted_partitions(marks, partitions))
        self.notes.note_filled(read_filled_topics(results))
        emptied, counted = read_truncations(results), self._counted_tables()
        if self.evolution.policy.of(ChangeKind.TRUNCATE_TABLE) is Policy.APPLY:
            check_emptied(emptied, counted)
            check_truncations(emptied, self.topics.choices.topic_map, reached, self.notes.filled)
            self.notes.note_emptied(emptied)
        self.evolution.truncate(emptied)
        self._handle_snapshots([one for result in results for one in result.snapshots], reached)
        marked = with_ends(merge_marks(self.notes.marks_for(number), marks), reached, counted)
        self.notes.note_batch(number, read_tails(results), sent, marked)
        self.context.view.unreadable(self.notes.sent)
        self.reached = reached
        self.reporter.batch_written(self.reached, reports, self.context.view, _summary(self.reached))
        for why in sorted({why for result in results for why in result.ignored} - self._left_out):
            log.info("records without a change of a row: %s", why)
            self._left_out.add(why)
        self.done += 1
        self._may_be_written = False

    def _check_offset_topics(self, now: Mapping[str, int]) -> None:
        """Raise if a topic whose offsets order the changes of a row got more partitions: a row's records may be in another one now."""
        for name, table in self.context.state.tables.items():
            order = self.notes.orders.get(name)
            if (
                order is None
                or order.rule is not VersionRule.OFFSET
                or not table.schema.row_key
                or not self.context.settings.selection(name)
            ):
                continue
            known = len(self.reached.offsets.get(order.topic, {}))
            if known and now.get(order.topic, known) != known:
                raise DefiniteError(
                    f"the topic {order.topic} had {known} partitions, and has {now[order.topic]}, and offsets order the changes of {name}: "
                    "a row whose changes are in another partition now would keep its old values",
                    place=order.topic,
                    hint=f"{FROM_SNAPSHOT}; or {ADD_POSITION}, and then do so",
                )

    def _check_topics(self) -> None:
        """Raise if a topic that is read was deleted and created again: its offsets mean other records now."""
        now = time.monotonic()
        if now >= self._identify_at and self.notes.topics:
            self._identify_at = now + _IDENTIFY_S
            check_ids(
                self.notes.topics,
                retrying(lambda: self.identify(sorted(self.notes.topics)), deadline_s=self.context.settings.retry_timeout_s),
                self.address,
            )

    def _note_topics(self, reached: KafkaPosition) -> None:
        new = reached.offsets.keys() - self.notes.topics.keys()
        if new:
            self.notes.note_topics(retrying(lambda: self.identify(sorted(new)), deadline_s=self.context.settings.retry_timeout_s))

    def _handle_snapshots(self, seen: list[KeylessSnapshot], reached: KafkaPosition) -> None:
        def replaceable(name: TableName) -> bool:
            order = self.notes.orders.get(name)
            by_source = order is not None and order.rule is not VersionRule.OFFSET
            return by_source and len(topics_of(name, self.topics.choices.topic_map, reached, self.notes.filled)) < 2

        counting, restarted = newest_snapshots(self.notes.snapshots, seen, self.topics.choices.second_snapshot, replaceable)
        self.notes.note_emptied(restarted)
        self.evolution.start_over(restarted)
        self.notes.note_snapshots(counting)

    def _read(
        self, run_ranges: RunRanges, ranges: Sequence[OffsetRange], number: int, partitions: Mapping[str, int]
    ) -> tuple[list[Report], list[RecordsRead]]:
        """Read the batch, again while it brings new tables or columns."""
        for _ in range(_MAX_ROUNDS):
            task = self.task(number, ranges, partitions)
            self._may_be_written = True
            wanted, passed = select_ranges(ranges, task.reads)
            reports: list[Report] = [SplitDone(passed)]
            try:
                reports += run_ranges(task, wanted) if wanted else []
            except TransientError as error:
                classified = classify_transient_error(error)
                if classified is error:
                    raise
                raise classified from error
            results = [report.result_of(RecordsRead) for report in finished_splits(reports)]
            orders = read_orders(results)
            self.notes.note_orders(orders)
            found = [
                one
                for one in read_found_tables(results)
                if _is_taken(self.context.settings.selection, frozenset(self.context.state.ignored), one.schema.name)
            ]
            # Tasks that saw only tombstones did not know yet that these are deletions.
            if not found and not any(order.tombstones for order in orders.values()):
                if not any(result.deferred for result in results):
                    return reports, results
                self.notes.note_rows(number)
            if found and not self.evolution.apply(found):
                break
            if found:
                self.context.view.tables(targets_of(self.context.targets, self.shown().values()))
        raise DefiniteError(
            f"records of table {found[0].schema.name} are not read by what is known of it",
            place=found[0].place,
            hint="this is a defect of Headrace; please report it with the record",
        )

    def task(self, number: int, ranges: Sequence[OffsetRange], partitions: Mapping[str, int]) -> RecordTask:
        """Return a task that reads ranges of a batch with the tables' known schemas. `partitions`: their number, by topic."""
        transform_plans = self._transform_plans()
        written = [plan.schema for plan in transform_plans.values()]
        needs = retrying(lambda: self.context.targets.requirements(written))
        counted = self._counted_topics(number, ranges, partitions)
        if transform_plans:
            self.changes.follow()
        known = {
            name: KnownTable(
                self.context.state.tables[name].schema,
                plan.inputs_of(needs[name].key_columns),
                self.notes.orders.get(name),
                name in counted.tables,
                self._periods(name),
            )
            for name, plan in transform_plans.items()
        }
        choices, notes = self.topics.choices, self.notes
        reader = DebeziumReader(
            choices,
            choices.topic_map,
            known,
            notes.tails_for(number),
            notes.emptied,
            self.context.state.epoch,
            notes.snapshots,
            notes.marks_for(number),
        )
        retry = functools.partial(retrying, deadline_s=self.context.settings.retry_timeout_s)
        keeper = UnchangedValueFiller(self.context.targets.sink.scope) if choices.unavailable is UnavailablePolicy.KEEP else None
        ignored = frozenset(self.context.state.ignored)
        left_out = functools.partial(_is_left_out, choices.topic_map, self.context.settings.selection, ignored)
        news = functools.partial(_is_taken, self.context.settings.selection, ignored)
        # Events do not always include the row before the change.
        transformer = transformer_for(self.context.settings, transform_plans.values(), needs, whole=False)
        carried = {name: plan.source for name, plan in transform_plans.items()}
        fetched = functools.partial(read_offset_range, self.address)
        sink = self.context.targets.sink.with_tables(written).for_records(self._writers(counted, partitions))
        sink = sink.for_replay() if self._may_be_written else sink
        return RecordTask(reader, sink, retry, carried, keeper, left_out, news, fetched, transformer, counted)

    def _periods(self, name: TableName) -> Periods:
        table = self.context.state.tables[name]
        topics = {*self.notes.filled.get(name, ()), str(table.captured_at["topic"])}
        return self.changes.periods(table.schema, topics, functools.partial(self.context.schemas.read, table.schema, table.hidden))

    def _counted_topics(self, number: int, ranges: Sequence[OffsetRange], partitions: Mapping[str, int]) -> CountedTopics:
        tables = self._counted_tables()
        if not tables:
            return CountedTopics()
        if self.topics.min_partitions:
            raise DefiniteError(
                f"with --min-partitions several tasks read a partition at once, and the target of {min(tables)} counts rows: no task knows "
                "which events the one before it has read",
                place="--min-partitions",
                hint="leave it out",
            )
        topics = frozenset(one.topic for one in ranges)
        now, (expires, known, compacted) = time.monotonic(), self._compaction
        if now > expires or not topics <= known:
            compacted = retrying(lambda: self.compacted(sorted(topics | known)), deadline_s=self.context.settings.retry_timeout_s)
            self._compaction = now + _IDENTIFY_S, topics | known, compacted
        changed = frozenset(key for key, mark in self.notes.marks_for(number).items() if mark.has_changes)
        spread = frozenset(topic for topic, count in partitions.items() if count > 1)
        return CountedTopics(tables, spread, compacted, changed, self.notes.rows_batch == number)

    def _writers(self, counted: CountedTopics, partitions: Mapping[str, int]) -> int:
        """Return how many tasks may write a table that counts rows at the same time: one for each partition of its topics."""
        topics = [self.notes.filled.get(name, set()) for name in counted.tables]
        return max(partitions.values(), default=1) * max((len(names) for names in topics if names), default=1) if counted.tables else 1

    def _counted_tables(self) -> dict[TableName, bool]:
        """Return the tables whose target counts rows, and whether it needs the changes of a row in their order."""
        targets = retrying(lambda: self.context.targets.sink.target_tables(list(self.shown().values())))
        return {name: table.family is EngineFamily.COLLAPSING for name, table in targets.items() if table.family in COUNTING}


def check_truncations(
    emptied: Iterable[Truncation], topics: TopicMap, reached: KafkaPosition, filled: Mapping[TableName, set[str]]
) -> None:
    """Refuse to truncate a table that several topics fill: versions do not tell which rows belong to the truncated source."""
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
    return sorted({topic for topic in reached.offsets if _table_of(topics, topic) == table} | filled.get(table, set()))


def _table_of(topics: TopicMap, topic: str) -> TableName | None:
    try:
        return topics.table_of(topic)
    except DefiniteError:
        # The topic holds other records than rows.
        return None


def _is_left_out(topics: TopicMap, chosen: Selection, ignored: frozenset[TableName], topic: str) -> bool:
    """Whether all records of a topic belong to a table that is not replicated."""
    if topic not in topics.tables and "." not in topic:
        # The reader reports an invalid name, unless events name their tables.
        return False
    name = topics.table_of(topic)
    return name is not None and not _is_taken(chosen, ignored, name)


def _is_taken(chosen: Selection, ignored: frozenset[TableName], name: TableName) -> bool:
    return name not in ignored and chosen(name)


def _summary(position: KafkaPosition) -> str:
    text = str(position)
    return text if len(text) <= 80 else f"{len(position.offsets)} topics, {position.version} records"
