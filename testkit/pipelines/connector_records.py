"""Records as Debezium's connector for MySQL sends them, with the table that they describe, and checks of targets that count rows.

`TopicConnector` is a connector of one table: it sends a snapshot and changes to the partitions of a topic, again after a restart, and knows
the rows that the table has and how many images a target that counts rows must get.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.errors import DefiniteError
from headrace.pipes.debezium.record_task import RecordTask
from headrace.runtime.reports import SplitDone
from headrace.runtime.tasks import TASK_ATTEMPT
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables.target_cache import CacheValidity
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.sources.debezium.events.records import Records
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord

Row = dict[str, Any]
_EVENT_BYTES = 50
UNMERGED = (("max_bytes_to_merge_at_max_space_in_pool", "1"), ("max_bytes_to_merge_at_min_space_in_pool", "1"))
"""Settings of tables whose images stay as they were written."""


@dataclass
class TopicConnector:
    """A connector that reads one table with the key `id`."""

    topic: str = "srv.shop.goods"
    partitions: int = 1
    name: str = "srv"
    rows: dict[int, Row] = field(default_factory=dict)
    images: int = 0
    """How many images a target must get that counts rows: two of an update."""
    position: int = 100
    file: str = "bin.000007"
    gtid: str = ""
    """Its format, for example `server:{}`; empty: the source has no GTIDs."""
    transactions: int = 0
    clock_ms: int = 1_700_000_000_000
    schemas: bool = True
    """Whether records carry their schemas."""
    _ends: dict[int, int] = field(default_factory=dict)

    def snapshot(self, rows: Iterable[Row] | None = None, *, kind: str = "true") -> list[KafkaRecord]:
        """Return a snapshot of these rows; by default, of all that the table has."""
        if rows is not None:
            self.rows |= {row["id"]: row for row in rows}
        self.images += len(self.rows) if rows is not None else 0
        return [self._record("r", None, row, kind) for row in self.rows.values()]

    def insert(self, **row: Any) -> list[KafkaRecord]:
        self.rows[row["id"]] = row
        self.images += 1
        return [self._change("c", None, row)]

    def update(self, number: int, **changed: Any) -> list[KafkaRecord]:
        before, self.rows[number] = self.rows[number], {**self.rows[number], **changed}
        self.images += 2
        return [self._change("u", before, self.rows[number])]

    def delete(self, number: int) -> list[KafkaRecord]:
        """Return the deletion and its tombstone."""
        self.images += 1
        gone = self._change("d", self.rows.pop(number), None)
        return [gone, replace(gone, offset=self._offset(gone.partition), value=None)]

    def move(self, number: int, to: int) -> list[KafkaRecord]:
        """Return a change of the key: a deletion and an insertion of one position."""
        row = self.rows.pop(number)
        self.rows[to] = {**row, "id": to}
        self.images += 2
        self.position += _EVENT_BYTES
        gone = self._record("d", row, None, "false", (("__debezium.newkey", b"{}"),))
        return [gone, self._record("c", None, self.rows[to], "false", (("__debezium.oldkey", b"{}"),))]

    def resend(self, records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
        """Return records as the connector repeats them after a restart: the same events, at new offsets, sent at another time."""
        return [
            replace(one, offset=self._offset(one.partition), timestamp=one.timestamp + 60_000, value=_processed_later(one.value))
            for one in records
        ]

    def _change(self, op: str, before: Row | None, after: Row | None) -> KafkaRecord:
        self.position += _EVENT_BYTES
        self.transactions += 1
        return self._record(op, before, after, "false")

    def _record(
        self, op: str, before: Row | None, after: Row | None, snapshot: str, headers: tuple[tuple[str, bytes | None], ...] = ()
    ) -> KafkaRecord:
        self.clock_ms += 1000
        number = (after or before or {})["id"]
        source = {"connector": "mysql", "name": self.name, "ts_ms": self.clock_ms, "snapshot": snapshot, "db": "shop", "table": "goods"}
        source["gtid"] = self.gtid.format(self.transactions) if self.gtid and op != "r" else None
        source |= {"server_id": 0 if op == "r" else 1, "file": self.file, "pos": self.position, "row": 0}
        payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": self.clock_ms + 5}
        value = {"schema": _envelope(after or before or {}), "payload": payload} if self.schemas else payload
        key = {"schema": _row({"id": number}), "payload": {"id": number}} if self.schemas else {"id": number}
        partition = number % self.partitions
        encoded = (json.dumps(key).encode(), json.dumps(value).encode())
        return KafkaRecord(self.topic, partition, self._offset(partition), self.clock_ms, *encoded, headers)

    def _offset(self, partition: int) -> int:
        self._ends[partition] = self._ends.get(partition, -1) + 1
        return self._ends[partition]


def _processed_later(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    event = json.loads(value)
    payload = event.get("payload", event)
    payload["ts_ms"] += 60_000
    return json.dumps(event).encode()


def _envelope(row: Row) -> dict[str, Any]:
    sides = [{**_row(row), "optional": True, "field": side} for side in ("before", "after")]
    source = {"type": "struct", "name": "io.debezium.connector.mysql.Source", "optional": False, "field": "source", "fields": []}
    others = [source, {"type": "string", "optional": False, "field": "op"}]
    return {"type": "struct", "name": "srv.shop.goods.Envelope", "optional": False, "fields": [*sides, *others]}


def _row(row: Row) -> dict[str, Any]:
    kinds = {name: "int32" if isinstance(value, int) else "string" for name, value in row.items()}
    fields = [{"field": name, "type": kind, "optional": name != "id"} for name, kind in kinds.items()]
    return {"type": "struct", "name": "srv.shop.goods.Value", "optional": False, "fields": fields}


class CountingPipes:
    """Opens pipes from topics, each as a new process does."""

    def __init__(self, sink: ClickHouseSink, directory: Path) -> None:
        self._sink, self._directory, self._processes = sink, directory, itertools.count(1)

    def __call__(self, name: str = "state", more: dict[str, Any] | None = None, **chosen: Any) -> LocalTopicPipe:
        """Open the pipe of a state directory. `more`: arguments of the pipe; `chosen`: options of its tables."""
        options = ClickHouseOptions(tuple({"settings": UNMERGED, **chosen}.items()))
        # A new process knows no definitions of tables.
        process = 1000 * next(self._processes)
        made = replace(self._sink, options=options, validity=CacheValidity(generation=process, all_altered=process))
        return LocalTopicPipe(self._directory / name, made, **(more or {}))


def stored(pipe: LocalTopicPipe, table: str = "goods") -> tuple[int, int]:
    """Return the number of images, and the sum of their signs."""
    [[images, signs]] = pipe.sink.reader().query(f"SELECT count(), sum(_sign) FROM {pipe.sink.target.database}.{table}")[1]
    return int(images), int(signs)


def check_exact(pipe: LocalTopicPipe, connector: TopicConnector, table: str = "goods") -> None:
    """Compare the images and the rows of the target with those of the source."""
    assert stored(pipe, table) == (connector.images, len(connector.rows))
    query = f"SELECT id, name, sum(_sign) AS times FROM {pipe.sink.target.database}.{table} GROUP BY id, name HAVING times != 0 ORDER BY id"
    wanted = [[row["id"], row["name"], 1] for _, row in sorted(connector.rows.items())]
    assert pipe.sink.reader().query(query)[1] == wanted
    final = f"SELECT id, name FROM {pipe.sink.target.database}.{table} FINAL WHERE _sign = 1 ORDER BY id"
    assert pipe.sink.reader().query(final)[1] == [[row["id"], row["name"]] for _, row in sorted(connector.rows.items())]


def check_sums(pipe: LocalTopicPipe, connector: TopicConnector) -> None:
    """Compare what is left of images after merges with the rows of the source."""
    query = f"SELECT id, name, sum(_sign) AS times FROM {pipe.sink.target.database}.goods GROUP BY id, name HAVING times != 0 ORDER BY id"
    assert pipe.sink.reader().query(query)[1] == [[row["id"], row["name"], 1] for _, row in sorted(connector.rows.items())]


def first_rows(connector: TopicConnector, count: int = 4) -> list[KafkaRecord]:
    return connector.snapshot([{"id": number, "name": f"row {number}"} for number in range(count)])


def changes(connector: TopicConnector) -> list[KafkaRecord]:
    """Return one change of each kind, on the rows of `first_rows`."""
    return [
        *connector.insert(id=10, name="new"),
        *connector.update(1, name="one"),
        *connector.update(1, name="uno"),
        *connector.delete(2),
        *connector.move(3, 7),
        *connector.insert(id=2, name="again"),
    ]


def start_over(open_pipe: CountingPipes, connector: TopicConnector, more: dict[str, Any] | None = None, **chosen: Any) -> None:
    """Execute the remedy: drop the target, and read a new snapshot with another state."""
    pipe = open_pipe("fresh", more, **chosen)
    pipe.sink.reader().query(f"DROP TABLE {pipe.sink.target.database}.goods")
    again = TopicConnector(partitions=connector.partitions, position=connector.position + 500, clock_ms=connector.clock_ms)
    again._ends = connector._ends
    pipe.run([*again.snapshot(connector.rows.values()), *again.insert(id=99, name="after")])
    if chosen["engine"] == "replacing":
        assert pipe.rows("shop.goods", "id, name", "id") == [[row["id"], row["name"]] for _, row in sorted(again.rows.items())]
    else:
        check_exact(pipe, again)


def repeat_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each task twice, as Spark does with a task whose report is lost."""
    run = RecordTask.run

    def run_twice(self: RecordTask, pieces: Iterable[Records]) -> SplitDone:
        found = list(pieces)
        run(self, found)
        attempt = TASK_ATTEMPT.set(1)
        try:
            return run(self, found)
        finally:
            TASK_ATTEMPT.reset(attempt)

    monkeypatch.setattr(RecordTask, "run", run_twice)


@contextmanager
def killed_after(inserts: int) -> Iterator[None]:
    """The writer fails after this many INSERTs, and the failure ends the block as a kill ends a process."""
    send, sent = ClickHouseWriter._send, list[int]()

    def stop(self: ClickHouseWriter, *arguments: Any) -> None:
        if len(sent) == inserts:
            raise DefiniteError("killed")
        send(self, *arguments)
        sent.append(1)

    with mock.patch.object(ClickHouseWriter, "_send", stop), suppress(DefiniteError):
        yield


def in_log_order(records: Iterable[KafkaRecord]) -> list[KafkaRecord]:
    """Return records of a recording as a topic of one partition has them: in the order of the source's log."""
    places: dict[tuple[str, int], tuple[str, int, int, bool]] = {}
    ordered: list[tuple[str, tuple[str, int, int, bool], int, KafkaRecord]] = []
    for number, record in enumerate(records):
        if record.value is not None:
            event = json.loads(record.value)["payload"]
            source = event["source"]
            # A changed key is a deletion and an insertion of one position.
            places[record.topic, record.partition] = source["file"], source["pos"], source["row"], event["op"] != "d"
        # A tombstone follows its deletion.
        ordered.append((record.topic, places[record.topic, record.partition], number, record))
    ends: dict[str, Iterator[int]] = {}
    in_order = [record for *_, record in sorted(ordered, key=lambda one: one[:3])]
    return [replace(one, partition=0, offset=next(ends.setdefault(one.topic, itertools.count()))) for one in in_order]
