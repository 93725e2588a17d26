"""The reports of tasks over Kafka records: how tasks write them, and how the driver reads them.

Invariant: reports are small, whatever the records contain. A task reports unreadable records whole up to `CARRIED_BYTES`. Of the others it
reports the offset, by which the driver fetches the record from the topic.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.runtime.tasks import Report
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot
from headrace.sources.debezium.events.records import DecodedRecords, DetectedSchema, Records, RejectedRecord, Truncation

CHANGES, FOUND, REFUSED, TRUNCATED, IGNORED, RECORDS = "changes", "found", "refused", "truncated", "ignored", "records"
ORDER, TAIL, SNAPSHOT, FILLED = "order", "tail", "snapshot", "filled"
"""Kinds of reports."""
MOST_REFUSED: Final = 1000
"""The maximum number of unreadable records per task: more indicate a wrong setting."""
CARRIED_BYTES: Final = 1 << 20
"""How many bytes of unreadable records a task reports."""
_REASON_CHARACTERS: Final = 2000


class RecordTaskReport:
    """Collects what a task has done so far."""

    def __init__(self) -> None:
        self._changes: dict[str, list[int]] = {}
        self._found: dict[TableName, dict[TableSchema, DetectedSchema]] = {}
        self._refused: list[RejectedRecord] = []
        self._truncations: dict[TableName, int] = {}
        self._ignored: dict[str, int] = {}
        self._orders: dict[TableName, dict[TableVersioning, None]] = {}
        self._tails: dict[tuple[str, int], tuple[int, LogTail]] = {}
        self._snapshots: dict[KeylessSnapshot, None] = {}
        self._filled: dict[tuple[TableName, str], None] = {}
        self._records = self._bytes = self._kept_bytes = 0

    @property
    def found(self) -> Iterable[TableName]:
        return self._found

    def add(self, records: Records, decoded: DecodedRecords) -> None:
        self._records += records.rows
        self._bytes += int(records.value.nbytes)
        for found in decoded.found:
            self._found.setdefault(found.schema.name, {}).setdefault(found.schema, found)
        for truncation in decoded.truncations:
            self._truncations[truncation.table] = max(truncation.version, self._truncations.get(truncation.table, 0))
        for why, count in decoded.ignored.items():
            self._ignored[why] = self._ignored.get(why, 0) + count
        for name, order in decoded.orders.items():
            self._orders.setdefault(name, {})[order] = None
        if decoded.tail is not None:
            self._tails[records.topic, records.partition] = (int(records.offset[-1].as_py()), decoded.tail)
        self._snapshots |= dict.fromkeys(decoded.snapshots)
        self._filled |= dict.fromkeys((block.schema.name, records.topic) for block in decoded.blocks)
        self._refused += map(self._carried, decoded.refused)
        if len(self._refused) > MOST_REFUSED:
            first = self._refused[0]
            raise DefiniteError(
                f"more than {MOST_REFUSED} records of one batch cannot be read; the first: {first.reason}",
                place=f"{first.topic}[{first.partition}]@{first.offset}",
                hint=first.hint or "that is no matter of some records: check debezium.format and which topics are chosen",
            )

    def _carried(self, one: RejectedRecord) -> RejectedRecord:
        """A record that cannot be read, as it is reported."""
        size = len(one.key or b"") + len(one.value or b"") + sum(len(name) + len(value or b"") for name, value in one.headers)
        one = replace(one, reason=one.reason[:_REASON_CHARACTERS])
        if self._kept_bytes + size > CARRIED_BYTES:
            return replace(one, key=None, value=None, headers=(), is_whole=False)
        self._kept_bytes += size
        return one

    def leave_out(self, block: ChangeBlock) -> None:
        why = f"table {block.schema.name} is not chosen"
        self._ignored[why] = self._ignored.get(why, 0) + block.changes

    def wrote(self, block: ChangeBlock) -> None:
        totals = self._changes.setdefault(str(block.schema.name), [0, 0, 0])
        totals[0] += block.changes
        totals[1] += block.images.nbytes
        totals[2] = max(totals[2], int(pc.max(block.commit_ts).as_py() or 0))

    def reports(self) -> list[Report]:
        return [
            Report(RECORDS, "", self._records, self._bytes, 0, ""),
            *(Report(CHANGES, table, rows, size, newest, "") for table, (rows, size, newest) in self._changes.items()),
            *(Report(FOUND, str(name), 0, 0, 0, _found_text(one)) for name, all_of in self._found.items() for one in all_of.values()),
            *(Report(REFUSED, one.topic, 0, 0, 0, _refused_text(one)) for one in self._refused),
            *(
                Report(TRUNCATED, str(name), 0, 0, 0, json.dumps([name.database, name.table, version]))
                for name, version in self._truncations.items()
            ),
            *(Report(IGNORED, why, count, 0, 0, "") for why, count in self._ignored.items()),
            *(
                Report(ORDER, str(name), 0, 0, 0, json.dumps([name.database, name.table, order.to_json()]))
                for name, all_of in self._orders.items()
                for order in all_of
            ),
            *(
                Report(TAIL, topic, 0, 0, 0, json.dumps([topic, partition, offset, tail.to_json()]))
                for (topic, partition), (offset, tail) in self._tails.items()
            ),
            *(Report(SNAPSHOT, str(one.table), 0, 0, 0, json.dumps(one.to_json())) for one in self._snapshots),
            *(Report(FILLED, str(name), 0, 0, 0, json.dumps([name.database, name.table, topic])) for name, topic in self._filled),
        ]


def read_found_tables(reports: Iterable[Report]) -> list[DetectedSchema]:
    """What tasks found, table by table in the order in which the source came to be so, and alike each time."""
    found = []
    for report in reports:
        if report.kind == FOUND:
            raw = json.loads(report.detail)
            found.append(
                DetectedSchema(
                    TableSchema.from_json(raw["schema"]),
                    raw["topic"],
                    raw["partition"],
                    raw["offset"],
                    raw["told_at"],
                    raw["zeroes"],
                    raw["unsigned"],
                )
            )
    return sorted(found, key=lambda one: (one.schema.name, one.told_at, one.topic, one.partition, one.offset))


def read_refused_records(reports: Iterable[Report]) -> list[RejectedRecord]:
    found = [_refused(json.loads(report.detail)) for report in reports if report.kind == REFUSED]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.offset))


def read_truncations(reports: Iterable[Report]) -> list[Truncation]:
    """Each table once, with the last version at which it was emptied."""
    last: dict[TableName, int] = {}
    for report in reports:
        if report.kind == TRUNCATED:
            database, table, version = json.loads(report.detail)
            name = TableName(database, table)
            last[name] = max(version, last.get(name, 0))
    return [Truncation(name, version) for name, version in sorted(last.items())]


def read_orders(reports: Iterable[Report]) -> dict[TableName, TableVersioning]:
    """The rules that first records have fixed; raises `DefiniteError` if two tasks found different ones of a table."""
    found: dict[TableName, TableVersioning] = {}
    for report in reports:
        if report.kind == ORDER:
            database, table, raw = json.loads(report.detail)
            name, order = TableName(database, table), TableVersioning.from_json(raw)
            if found.setdefault(name, order) != order:
                raise DefiniteError(
                    f"records of table {name} are ordered by different rules: {_order_text(found[name])} and {_order_text(order)}",
                    place=f"table {name}",
                    hint="choose one with debezium.versions, or lead the topics to different tables with debezium.topics",
                )
    return found


def read_tails(reports: Iterable[Report]) -> dict[tuple[str, int], LogTail]:
    """Of each partition, the tail that the task with the last records of it told."""
    last: dict[tuple[str, int], tuple[int, LogTail]] = {}
    for report in reports:
        if report.kind == TAIL:
            topic, partition, offset, raw = json.loads(report.detail)
            last[topic, partition] = max(
                last.get((topic, partition), (-1, LogTail())), (offset, LogTail.from_json(raw)), key=lambda one: one[0]
            )
    return {place: tail for place, (_, tail) in last.items()}


def read_snapshots(reports: Iterable[Report]) -> list[KeylessSnapshot]:
    """Snapshots of tables without a key."""
    return [KeylessSnapshot.from_json(json.loads(report.detail)) for report in reports if report.kind == SNAPSHOT]


def read_filled_topics(reports: Iterable[Report]) -> dict[TableName, set[str]]:
    """The topics that brought changes, by table."""
    found: dict[TableName, set[str]] = {}
    for report in reports:
        if report.kind == FILLED:
            database, table, topic = json.loads(report.detail)
            found.setdefault(TableName(database, table), set()).add(topic)
    return found


def _order_text(order: TableVersioning) -> str:
    return f"{order.rule} ({order.topic})" if order.topic else str(order.rule)


def _found_text(one: DetectedSchema) -> str:
    place = {"topic": one.topic, "partition": one.partition, "offset": one.offset, "told_at": one.told_at, "zeroes": one.zeroes}
    return json.dumps({"schema": one.schema.to_json(), **place, "unsigned": one.unsigned})


def _refused_text(one: RejectedRecord) -> str:
    return json.dumps(
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "reason": one.reason,
            "hint": one.hint,
            "whole": one.is_whole,
            "key": _encoded(one.key),
            "value": _encoded(one.value),
            "headers": [[name, _encoded(value)] for name, value in one.headers],
        }
    )


def _refused(raw: dict[str, Any]) -> RejectedRecord:
    headers = tuple((name, _decoded(value)) for name, value in raw["headers"])
    place = (raw["topic"], raw["partition"], raw["offset"], raw["reason"], raw["hint"])
    return RejectedRecord(*place, _decoded(raw["key"]), _decoded(raw["value"]), headers, raw["whole"])


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
