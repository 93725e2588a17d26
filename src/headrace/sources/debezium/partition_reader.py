"""Reads one piece of a partition: parses records, groups them by table, compares them with the known schema, and builds blocks.

Invariant: every record ends up in exactly one part of the result: a block, a detected schema, a rejected record, a truncation or an
ignored count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.event_versions import (
    ADD_POSITION,
    ASKED_OF_LOGS,
    EventPositions,
    LogTail,
    TableVersioning,
    VersionRule,
    assign_epochs,
    check_ascending,
    rule_of,
    versions_of,
)
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot, check_first, find_snapshots
from headrace.sources.debezium.events.options import EventShape as ChosenShape
from headrace.sources.debezium.events.options import Format, SecondSnapshot, VersionSource
from headrace.sources.debezium.events.parsed_events import (
    CREATE,
    DELETE,
    MESSAGE,
    READ,
    SOURCE,
    TRUNCATE,
    UPDATE,
    EventParser,
    Events,
    ParsedEvents,
    Rejection,
    RowFields,
    Rows,
    may_be_unsigned,
    sends_zero_dates,
    take_events,
)
from headrace.sources.debezium.events.records import DecodedRecords, DetectedSchema, KnownTable, ReadContext, Records, Truncation
from headrace.sources.debezium.events.source_marks import MarkKey, SourceMark
from headrace.sources.debezium.formats.json_columns import ScannedRecords, TextColumn
from headrace.sources.debezium.formats.json_events import JsonParser
from headrace.sources.debezium.formats.json_records import group_records, names_program
from headrace.sources.debezium.lone_tombstones import find_lone, placed_tombstones
from headrace.sources.debezium.repeated_events import check_countable, repeated_records
from headrace.sources.debezium.row_images import BeforeImages, RowImages, build_blocks, build_row_images, take_images
from headrace.sources.debezium.types.column_mapping import with_numeric
from headrace.sources.debezium.types.definition_periods import check_periods, periods_of_topic
from headrace.sources.debezium.types.inferred_fields import completed_schema, described_schema, expected_fields
from headrace.sources.debezium.types.schema_widening import can_hold

_AVRO_MAGIC: Final = 0
_KEY_CHANGES: Final = pa.array(["__debezium.newkey", "__debezium.oldkey"])


class PartitionReader:
    def __init__(self, reader: ReadContext, records: Records) -> None:
        self._reader, self._options, self._records = reader, reader.options, records
        self._location = f"{records.topic}[{records.partition}]"
        self._images: list[RowImages] = []
        self._found: dict[TableSchema, DetectedSchema] = {}
        self._refused: list[Rejection] = []
        self._truncations: list[Truncation] = []
        self._snapshots: list[KeylessSnapshot] = []
        self._ignored: dict[str, int] = {}
        self._orders: dict[TableName, TableVersioning] = {}
        self._expected: dict[TableName, RowFields] = {}
        self._marks: dict[MarkKey, SourceMark] = {}
        self._repeated = np.zeros(records.rows, np.bool_)
        self._moving: npt.NDArray[np.bool_] | None = None
        self._unnamed: DefiniteError | None = None
        try:
            self._table = reader.topics.table_of(records.topic)
        except DefiniteError as error:
            # A topic without rows need not name a table.
            self._table, self._unnamed = None, error

    def decoded(self) -> DecodedRecords:
        records = self._records
        live = np.flatnonzero(records.value.is_valid().to_numpy(zero_copy_only=False))
        gone = np.flatnonzero(records.value.is_null().to_numpy(zero_copy_only=False))
        decoded_events: list[tuple[TableName, Events, EventParser]] = []
        for table, rows, parser in self._sorted(live):
            keys = self._keys_of(table)
            parsed = parser.parse(records, rows, keys)
            self._collect(parsed)
            gone = np.concatenate([gone, np.array(parsed.tombstones, dtype=np.int64)])
            decoded_events += [(name, events, parser) for name, events in self._named(table, parsed.events)]
        decoded_events += self._tombstones(np.sort(gone), decoded_events)
        tail = self._decode_events(decoded_events)
        return self._decoded(tail)

    # -- which records belong to which table

    def _sorted(self, live: Rows) -> list[tuple[TableName | None, Rows, EventParser]]:
        """Group rows by format and, if they have no schema, by table."""
        table = self._table
        avro, plain = self._formats(live)
        found: list[tuple[TableName | None, Rows, EventParser]] = []
        if len(avro):
            found.append((table, avro, self._avro_parser(table)))
        if len(plain) and (table is not None or self._unnamed is not None):
            found.append((table, plain, self._json_parser(table)))
        elif len(plain):
            found += [(name, rows, self._json_parser(name)) for name, rows in self._by_source(plain)]
        return found

    def _formats(self, live: Rows) -> tuple[Rows, Rows]:
        none = np.zeros(0, np.int64)
        if self._options.format is not Format.AUTO:
            return (live, none) if self._options.format is Format.AVRO else (none, live)
        texts = TextColumn.of(self._records.value).take(live)
        filled = texts.stops > texts.starts
        first = texts.data[np.where(filled, texts.starts, 0)]
        is_avro = filled & (first == _AVRO_MAGIC)
        return live[is_avro], live[~is_avro]

    def _by_source(self, rows: Rows) -> list[tuple[TableName | None, Rows]]:
        """Group rows by the table that their event names; those without one come last."""
        texts = TextColumn.of(self._records.value).take(rows)
        payloads = [(part.rows, part.payloads) for part in group_records(texts, TextColumn.of(self._records.key).take(rows)).parts]
        by_name: dict[TableName | None, list[Rows]] = {}
        seen = np.zeros(len(rows), np.bool_)
        for places, part in payloads:
            seen[places] = True
            scanned = ScannedRecords(part, names_program())
            names = [scanned.values(("source", name)).text_if_any() for name in ("db", "schema", "table")]
            for name, where in self._grouped(names):
                by_name.setdefault(name, []).append(rows[places[where]])
        if not seen.all():
            by_name.setdefault(None, []).append(rows[~seen])
        return [(name, np.sort(np.concatenate(parts))) for name, parts in by_name.items()]

    def _named(self, table: TableName | None, events: Sequence[Events]) -> list[tuple[TableName, Events]]:
        if table is not None:
            return [(table, each) for each in events]
        if self._unnamed is not None and events:
            raise self._unnamed
        found = []
        for each in events:
            for name, where in self._grouped([each.source[part] for part in ("db", "schema", "table")]):
                if name is None:
                    self._refused += [Rejection(int(row), "it does not name its table") for row in each.record[where]]
                else:
                    found.append((name, take_events(each, where)))
        return found

    def _grouped(self, names: Sequence[pa.Array]) -> list[tuple[TableName | None, Rows]]:
        joined = pc.binary_join_element_wise(*(pc.fill_null(name, "") for name in names), "\0").dictionary_encode()
        codes = joined.indices.to_numpy(zero_copy_only=False)
        found: list[tuple[TableName | None, Rows]] = []
        for code, text in enumerate(joined.dictionary.to_pylist()):
            database, schema, table = text.split("\0")
            name = self._reader.topics.table_of_source(database, schema, table) if table and (database or schema) else None
            found.append((name, np.flatnonzero(codes == code)))
        return found

    # -- parsers

    def _known(self, table: TableName | None) -> KnownTable | None:
        return None if table is None else self._reader.tables.get(table)

    def _expected_of(self, table: TableName | None) -> RowFields | None:
        known = self._known(table)
        if table is None or known is None:
            return None
        return self._expected.setdefault(table, expected_fields(known.schema, self._options))

    def _json_parser(self, table: TableName | None) -> JsonParser:
        known = self._known(table)
        by_log = known is not None and known.order is not None and known.order.rule is VersionRule.BINLOG and known.schema.row_key
        asked = ASKED_OF_LOGS if by_log and known is not None and not known.counts else None
        return JsonParser(self._options, self._expected_of(table), asked)

    def _avro_parser(self, table: TableName | None) -> EventParser:
        from headrace.sources.debezium.formats.avro_events import AvroParser, repository_at

        return AvroParser(self._options, repository_at(self._options.registry), self._expected_of(table))

    def _key_parser(self, table: TableName, rows: Rows) -> EventParser:
        """Return the parser for tombstones, whose keys are in Avro or in JSON."""
        keys = TextColumn.of(self._records.key).take(rows)
        filled = keys.stops > keys.starts
        in_avro = filled.any() and keys.data[keys.starts[filled][0]] == _AVRO_MAGIC
        return self._avro_parser(table) if in_avro and self._options.format is not Format.JSON else self._json_parser(table)

    def _keys_of(self, table: TableName | None) -> tuple[str, ...]:
        """Return the columns of before images that must be read."""
        known = self._known(table)
        if known is None or known.keys is None or set(known.keys) <= set(known.schema.primary_key):
            return ()
        return known.keys

    def _collect(self, parsed: ParsedEvents) -> None:
        self._refused += parsed.refused
        for what, number in parsed.ignored.items():
            self._ignored[what] = self._ignored.get(what, 0) + number

    def _ignore(self, what: str, number: int) -> None:
        if number:
            self._ignored[what] = self._ignored.get(what, 0) + number

    # -- tombstones

    def _tombstones(
        self, gone: Rows, decoded_events: Sequence[tuple[TableName, Events, EventParser]]
    ) -> list[tuple[TableName, Events, EventParser]]:
        """Return the tombstones that are deletes of their own; all others repeat a delete event."""
        if not len(gone):
            return []
        table = self._table
        known = self._known(table)
        parser = next((parser for _, _, parser in decoded_events), None)
        if known is not None and known.order is not None:
            deletes = known.order.tombstones
        elif parser is not None:
            deletes = parser.saw_flat and not parser.saw_deleted
        else:
            deletes = self._options.shape is ChosenShape.FLAT
        if not deletes:
            can_delete = known is not None and known.order is not None and known.schema.row_key and not known.counts
            lone = find_lone(self._records, gone) if can_delete else gone[:0]
            self._ignore("tombstone", len(gone) - len(lone))
            gone = lone
        if not len(gone):
            return []
        if table is None:
            self._refused += [Rejection(int(row), "it is a tombstone of an unknown table", "map its topic to a table") for row in gone]
            return []
        if known is None:
            # Its table is created first; then the batch is read again.
            self._ignore("tombstone of a table that is not known yet", len(gone))
            return []
        reader = parser or self._key_parser(table, gone)
        parsed = reader.parse_keys(self._records, gone)
        self._collect(parsed)
        return [(table, events, reader) for events in parsed.events]

    # -- events to images

    def _decode_events(self, decoded_events: Sequence[tuple[TableName, Events, EventParser]]) -> LogTail | None:
        ready: list[tuple[TableName, KnownTable | None, Events, EventParser]] = []
        for table, events, parser in decoded_events:
            known = self._known(table)
            if known is not None and known.order is None:
                known = replace(known, order=self._order(table, events, parser))
            if known is not None and known.order is not None:
                self._check_order(table, known.order, known.schema)
                if known.counts:
                    check_countable(table, known.order, parser, self._location)
            ready.append((table, known, events, parser))
        ordered = [(known.order, events) for _, known, events, _ in ready if known is not None and known.order is not None]
        ordered = [(order, events) for order, events in ordered if events.keys_only is None or order.tombstones]
        epochs, tail = self._epochs(ordered)
        others, before = [events for _, events in ordered], self._reader.tail_before(self._records)
        for place, (table, known, events, parser) in enumerate(ready):
            if known is not None and known.order is not None:
                ready[place] = (table, known, placed_tombstones(events, others, known.order, before, epochs), parser)
        self._pass_marks([(known, events) for _, known, events, _ in ready if known is not None and known.counts], epochs)
        for table, known, events, parser in ready:
            # Also for unknown tables: their rows in other partitions are older.
            if (events.op == TRUNCATE).any():
                order = known.order if known is not None else None
                self._truncate(table, order or self._order(table, events, parser), events, epochs)
        for table, known, events, parser in ready:
            if known is None or known.order is None or not self._can_hold(known, events):
                self._report_schema(table, known, events, parser)
                continue
            self._orders[table] = known.order
            self._build_images(known, known.order, events, epochs, parser)
        return tail

    def _pass_marks(self, counted: Sequence[tuple[KnownTable, Events]], epochs: npt.NDArray[np.uint64]) -> None:
        for table in dict.fromkeys(known.schema.name for known, _ in counted):
            parts = [(each, self._versions(known, each, epochs)) for known, each in counted if known.schema.name == table]
            repeated, mark = repeated_records(table, parts, self._records, self._reader.marks_before(self._records))
            self._repeated |= repeated
            self._ignore("event that the connector sent again", int(repeated.sum()))
            if mark is not None:
                self._marks[table, self._records.topic, self._records.partition] = mark

    def _can_hold(self, known: KnownTable, events: Events) -> bool:
        return can_hold(known.schema, self._table_schema(known.schema.name, known, events.fields), zeroes=sends_zero_dates(events.source))

    def _order(self, table: TableName, events: Events, parser: EventParser) -> TableVersioning:
        if table in self._orders:
            return self._orders[table]
        tombstones = parser.saw_flat and not parser.saw_deleted
        rule = rule_of(events.source)
        wanted = self._options.versions
        # An LSN orders changes only: a row of a snapshot has a higher one than changes that committed later.
        unmarked = rule is VersionRule.LSN and parser.lacks_op
        if wanted is VersionSource.OFFSET or unmarked or (wanted is VersionSource.AUTO and tombstones):
            rule = VersionRule.OFFSET
        if wanted is VersionSource.SOURCE and rule is VersionRule.OFFSET:
            lacking = "whether they are rows of a snapshot" if unmarked else "their position in the source's log"
            raise DefiniteError(
                f"events of {table} do not contain {lacking}, which versions = source requires",
                place=self._location,
                hint=f"{ADD_POSITION}, or set versions to offset",
            )
        return self._orders.setdefault(table, TableVersioning(rule, self._records.topic if rule is VersionRule.OFFSET else "", tombstones))

    def _check_order(self, table: TableName, order: TableVersioning, schema: TableSchema) -> None:
        if order.rule is VersionRule.OFFSET and order.topic != self._records.topic:
            raise DefiniteError(
                f"{table} is filled from the topic {order.topic}, and its changes are ordered by their offsets in it:"
                f" those of {self._records.topic} cannot be compared with them",
                place=self._location,
                hint=f"map the topics to different tables; or {ADD_POSITION} and start over",
            )
        if order.rule is VersionRule.LSN and not schema.row_key:
            raise DefiniteError(
                f"{table} has no key, and rows that one statement inserted have the same LSN: equal ones cannot be distinguished",
                place=self._location,
                hint="give the table a primary key, or configure one in the connector (message.key.columns)",
            )

    def _epochs(self, decoded_events: Sequence[tuple[TableVersioning, Events]]) -> tuple[npt.NDArray[np.uint64], LogTail | None]:
        """Return the epoch of each record. All events of a partition count, in order: they come from one log."""
        records = self._records
        epochs = np.full(records.rows, self._options.epoch, dtype=np.uint64)
        before = self._reader.tail_before(records)
        tail = None
        for rule in dict.fromkeys(order.rule for order, _ in decoded_events):
            mine = [events for order, events in decoded_events if order.rule is rule]
            rows = np.concatenate([events.record for events in mine])
            source = pa.Table.from_batches([events.source for events in mine], schema=SOURCE)
            ops = np.concatenate([events.op for events in mine])
            if len(mine) > 1:
                order = np.argsort(rows, kind="stable")
                rows, ops, source = rows[order], ops[order], source.take(pa.array(order))
            batch = source.combine_chunks().to_batches()
            if not batch:
                continue
            placed = self._positions(rows, batch[0], ops)
            found, tail = assign_epochs(before, rule, self._options.epoch, placed, self._reader.first_epoch(records.topic))
            epochs[rows] = found
        return epochs, tail

    def _positions(self, rows: Rows, source: pa.RecordBatch, op: npt.NDArray[np.uint8]) -> EventPositions:
        return EventPositions(source, self._records.offset.to_numpy(zero_copy_only=False)[rows], op == READ, self._location)

    def _table_schema(self, table: TableName, known: KnownTable | None, fields: RowFields) -> TableSchema:
        """Return the table as events describe it, with the configured type of unbounded numerics."""
        expected = self._expected.get(table)
        if known is None or expected is None:
            return with_numeric(described_schema(table, fields), self._options.numeric)
        return with_numeric(completed_schema(table, known.schema, expected, fields), self._options.numeric)

    def _report_schema(self, table: TableName, known: KnownTable | None, events: Events, parser: EventParser) -> None:
        changes = np.flatnonzero((events.op != TRUNCATE) & (events.op != MESSAGE))
        self._ignore("message", int((events.op == MESSAGE).sum()))
        if not len(changes):
            return
        row = int(events.record[changes[0]])
        schema = self._table_schema(table, known, events.fields)
        stamp = events.source["ts_us"][int(changes[0])].as_py() or self._records.timestamp[row].as_py() or 0
        place, source = (self._records.topic, self._records.partition, self._records.offset[row].as_py()), events.source
        countable = rule_of(source) is VersionRule.BINLOG and self._options.versions is not VersionSource.OFFSET and not parser.saw_flat
        found = DetectedSchema(schema, *place, stamp, sends_zero_dates(source), may_be_unsigned(source), countable)
        self._found.setdefault(schema, found)

    def _build_images(
        self, known: KnownTable, order: TableVersioning, events: Events, epochs: npt.NDArray[np.uint64], parser: EventParser
    ) -> None:
        records, schema = self._records, known.schema
        versions = self._versions(known, events, epochs)
        rows = events.op
        self._ignore("message", int((rows == MESSAGE).sum()))
        changes = np.flatnonzero((rows != TRUNCATE) & (rows != MESSAGE))
        if not len(changes):
            return
        if len(changes) < len(rows):
            events, versions = take_events(events, changes), (versions[0][changes], versions[1][changes])
        if events.keys_only is None:
            periods = periods_of_topic(known.periods, schema.name, records.topic)
            check_periods(periods, events, self._expected.get(schema.name), self._options.epoch, records.place)
            self._check_rising(order, events, versions)
        fresh = np.flatnonzero(~self._repeated[events.record])
        if not len(fresh):
            return
        if len(fresh) < len(events.record):
            events, versions = take_events(events, fresh), (versions[0][fresh], versions[1][fresh])
        commit = pc.coalesce(events.source["ts_us"], records.timestamp.take(pa.array(events.record)))
        commit_ts = np.asarray(pc.fill_null(commit, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        if not schema.row_key:
            self._record_snapshots(schema.name, order, events, versions[1])
        made = build_row_images(events, schema, self._options, versions, commit_ts, self._before_images(known, parser))
        self._refused += made.refused
        late = made.version < np.uint64(self._reader.emptied.get(schema.name, 0))
        if late.any():
            self._ignore("change of a row from before its table was emptied", int((late & (made.op != Op.BEFORE)).sum()))
            made = take_images(made, np.flatnonzero(~late))
        if len(made.op):
            self._images.append(made)

    def _versions(
        self, known: KnownTable, events: Events, epochs: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        assert known.order is not None
        placed = replace(
            self._positions(events.record, events.source, events.op),
            partition=self._records.partition,
            keyless=not known.schema.row_key,
            paired=(events.op == UPDATE) | self._key_changes()[events.record],
        )
        return versions_of(known.order, epochs[events.record], placed)

    def _record_snapshots(self, table: TableName, order: TableVersioning, events: Events, version: npt.NDArray[np.uint64]) -> None:
        read = np.flatnonzero((events.op == READ) & (version >= np.uint64(self._reader.emptied.get(table, 0))))
        if len(read):
            some, records = take_events(events, read), self._records
            offset = records.offset.to_numpy(zero_copy_only=False)[some.record]
            seen = find_snapshots(table, records.topic, records.partition, some.source, offset, version[read])
            if self._options.second_snapshot is SecondSnapshot.HALT:
                # Check before any of its rows is written; the driver checks across tasks.
                check_first(self._reader.snapshots, seen, replaceable=order.rule is not VersionRule.OFFSET)
            self._snapshots += seen

    def _key_changes(self) -> npt.NDArray[np.bool_]:
        if self._moving is None:
            self._moving = np.zeros(self._records.rows, np.bool_)
            headers = self._records.headers
            if headers is not None:
                named = pc.is_in(pc.struct_field(headers.flatten(), "key"), value_set=_KEY_CHANGES)
                if pc.any(named).as_py():
                    self._moving[pc.list_parent_indices(headers).filter(named).to_numpy()] = True
        return self._moving

    def _check_rising(
        self, order: TableVersioning, events: Events, versions: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
    ) -> None:
        def same(one: int, other: int) -> bool:
            if (events.op[one], events.op[other]) == (DELETE, CREATE):
                # A key change whose headers were lost: its two events are in order.
                return other - one == 1
            return bool(events.op[one] == events.op[other] and events.image.slice(one, 1).equals(events.image.slice(other, 1)))

        changes = np.flatnonzero(events.op != READ)
        version = np.where(events.op == DELETE, *versions)
        check_ascending(order, version, self._positions(events.record, events.source, events.op), changes, same)

    def _truncate(self, table: TableName, order: TableVersioning, events: Events, epochs: npt.NDArray[np.uint64]) -> None:
        emptied = np.flatnonzero(events.op == TRUNCATE)
        if order.rule is VersionRule.OFFSET:
            raise DefiniteError(
                f"{table} was truncated, and offsets do not order that relative to rows of other partitions",
                place=self._records.place(int(events.record[emptied[0]])),
                hint="exclude truncations in the connector (skipped.operations=t), and truncate the target table yourself",
            )
        some = take_events(events, emptied)
        version = versions_of(order, epochs[some.record], self._positions(some.record, some.source, some.op))[0]
        self._truncations.append(Truncation(table, int(version.max())))

    def _before_images(self, known: KnownTable, parser: EventParser) -> BeforeImages | None:
        if known.keys is None or (known.keys and set(known.keys) <= set(known.schema.primary_key)):
            return None

        def parse_whole(rows: Rows) -> Events | None:
            parsed = parser.parse(self._records, np.sort(rows), None)
            return parsed.events[0] if parsed.events else None

        return BeforeImages(known.keys, parse_whole, self._location)

    # -- the whole

    def _decoded(self, tail: LogTail | None) -> DecodedRecords:
        blocks, kept = build_blocks(self._images, self._records)
        known = self._reader.tables
        new = {table: order for table, order in self._orders.items() if table in known and known[table].order is None}
        return DecodedRecords(
            blocks,
            kept,
            tuple(self._found.values()),
            tuple(self._records.reject(one.record, one.reason, one.hint) for one in sorted(self._refused, key=lambda one: one.record)),
            tuple(self._truncations),
            self._ignored,
            new,
            tail,
            tuple(self._snapshots),
            self._marks,
        )
