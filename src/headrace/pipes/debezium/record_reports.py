"""What tasks report about Kafka records, and how the driver merges the reports of a batch.

Invariant: reports are small, whatever the records contain. A task reports unreadable records whole up to `CARRIED_BYTES`. Of the others it
reports the offset, by which the driver fetches the record from the topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.runtime.reports import SplitDone, TableWrites, sum_writes
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.records import DecodedRecords, DetectedSchema, Records, RejectedRecord, Truncation
from headrace.sources.debezium.events.source_marks import MarkKey, SourceMark

MOST_REFUSED: Final = 1000
"""The maximum number of unreadable records per task: more indicate a wrong setting."""
CARRIED_BYTES: Final = 1 << 20
"""How many bytes of unreadable records a task reports."""
_REASON_CHARACTERS: Final = 2000


@dataclass(slots=True)
class RecordsRead:
    """What a task found in its records, for the driver."""

    found: dict[TableName, dict[TableSchema, DetectedSchema]] = field(default_factory=dict)
    refused: list[RejectedRecord] = field(default_factory=list)
    truncations: dict[TableName, int] = field(default_factory=dict)
    """The last version at which a table was emptied."""
    ignored: dict[str, int] = field(default_factory=dict)
    """How many records are no change of a row, by reason."""
    orders: dict[TableName, dict[TableVersioning, None]] = field(default_factory=dict)
    tails: dict[tuple[str, int], tuple[int, LogTail]] = field(default_factory=dict)
    """By topic and partition: the offset of the last record, and the tail after it."""
    snapshots: dict[KeylessSnapshot, None] = field(default_factory=dict)
    filled: set[tuple[TableName, str]] = field(default_factory=set)
    """Tables with changes, and the topics that brought them."""
    marks: dict[MarkKey, SourceMark] = field(default_factory=dict)
    """The marks after the last records, of tables whose target counts rows."""

    deferred: bool = False
    """Whether changes wait until all rows of snapshots in the batch are stored."""

    def ignore(self, why: str, count: int) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + count


class RecordTaskReport:
    """Collects what a task has done so far."""

    def __init__(self) -> None:
        self.result = RecordsRead()
        self._written: list[TableWrites] = []
        self._kept_bytes = 0

    def add(self, records: Records, decoded: DecodedRecords) -> None:
        result = self.result
        for found in decoded.found:
            result.found.setdefault(found.schema.name, {}).setdefault(found.schema, found)
        for truncation in decoded.truncations:
            result.truncations[truncation.table] = max(truncation.version, result.truncations.get(truncation.table, 0))
        for why, count in decoded.ignored.items():
            result.ignore(why, count)
        for name, order in decoded.orders.items():
            result.orders.setdefault(name, {})[order] = None
        if decoded.tail is not None:
            result.tails[records.topic, records.partition] = (int(records.offset[-1].as_py()), decoded.tail)
        result.marks.update(decoded.marks)
        result.snapshots.update(dict.fromkeys(decoded.snapshots))
        result.filled.update((block.schema.name, records.topic) for block in decoded.blocks)
        result.refused.extend(map(self._carried, decoded.refused))
        if len(result.refused) > MOST_REFUSED:
            first = result.refused[0]
            raise DefiniteError(
                f"more than {MOST_REFUSED} records of one batch cannot be read; the first: {first.reason}",
                place=f"{first.topic}[{first.partition}]@{first.offset}",
                hint=first.hint or "that is no matter of some records: check debezium.format and which topics are chosen",
            )

    def _carried(self, one: RejectedRecord) -> RejectedRecord:
        """Return an unreadable record as it is reported."""
        size = len(one.key or b"") + len(one.value or b"") + sum(len(name) + len(value or b"") for name, value in one.headers)
        one = replace(one, reason=one.reason[:_REASON_CHARACTERS])
        if self._kept_bytes + size > CARRIED_BYTES:
            return replace(one, key=None, value=None, headers=(), is_whole=False)
        self._kept_bytes += size
        return one

    def leave_out(self, block: ChangeBlock) -> None:
        self.result.ignore(f"table {block.schema.name} is not chosen", block.changes)

    def wrote(self, block: ChangeBlock, filtered: int) -> None:
        self._written.append(TableWrites(block.subject, block.changes, block.nbytes, block.newest, filtered))

    def report(self) -> SplitDone:
        return SplitDone(self.result, sum_writes(self._written))


def read_found_tables(results: Iterable[RecordsRead]) -> list[DetectedSchema]:
    """Return the schemas that tasks found, by table in the order in which the source committed them."""
    found = [one for result in results for schemas in result.found.values() for one in schemas.values()]
    return sorted(found, key=lambda one: (one.schema.name, one.told_at, one.topic, one.partition, one.offset))


def read_refused_records(results: Iterable[RecordsRead]) -> list[RejectedRecord]:
    return sorted((one for result in results for one in result.refused), key=lambda one: (one.topic, one.partition, one.offset))


def read_truncations(results: Iterable[RecordsRead]) -> list[Truncation]:
    """Return each emptied table once, with the last version at which it was emptied."""
    last: dict[TableName, int] = {}
    for result in results:
        for name, version in result.truncations.items():
            last[name] = max(version, last.get(name, 0))
    return [Truncation(name, version) for name, version in sorted(last.items())]


def read_orders(results: Iterable[RecordsRead]) -> dict[TableName, TableVersioning]:
    """Return the rules that first records have fixed; raise `DefiniteError` if two tasks found different ones of a table."""
    found: dict[TableName, TableVersioning] = {}
    for name, order in ((name, order) for result in results for name, orders in result.orders.items() for order in orders):
        if found.setdefault(name, order) != order:
            raise DefiniteError(
                f"records of table {name} are ordered by different rules: {_order_text(found[name])} and {_order_text(order)}",
                place=f"table {name}",
                hint="choose one with debezium.versions, or lead the topics to different tables with debezium.topics",
            )
    return found


def read_tails(results: Iterable[RecordsRead]) -> dict[tuple[str, int], LogTail]:
    """Return the tail of each partition, from the task that read its last records."""
    last: dict[tuple[str, int], tuple[int, LogTail]] = {}
    for result in results:
        for place, one in result.tails.items():
            last[place] = max(last.get(place, (-1, LogTail())), one, key=lambda tail: tail[0])
    return {place: tail for place, (_, tail) in last.items()}


def read_filled_topics(results: Iterable[RecordsRead]) -> dict[TableName, set[str]]:
    """Return the topics that brought changes, by table."""
    found: dict[TableName, set[str]] = {}
    for name, topic in (one for result in results for one in result.filled):
        found.setdefault(name, set()).add(topic)
    return found


def _order_text(order: TableVersioning) -> str:
    return f"{order.rule} ({order.topic})" if order.topic else str(order.rule)
