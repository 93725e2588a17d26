"""Values that PostgreSQL did not log: filled from the row's previous image, never from a row that was deleted.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`), with the embedded ClickHouse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord

Open = Callable[..., LocalTopicPipe]
LEFT_OUT = "__debezium_unavailable_value"


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> Open:
    """Opens the pipe of the test's state directory."""

    def opened(name: str = "state", **more: Any) -> LocalTopicPipe:
        return LocalTopicPipe(tmp_path / name, replace(sink), **more)

    return opened


def change(op: str, number: int, offset: int, big: str = "", *, lsn: int = 0) -> KafkaRecord:
    """A record of a PostgreSQL connector, without a schema."""
    source = {"connector": "postgresql", "db": "any", "schema": "shop", "table": "t", "lsn": lsn or 100 + offset, "snapshot": "false"}
    old, new = ({"id": number, "big": None}, None) if op == "d" else (None, {"id": number, "big": big})
    value = {"before": old, "after": new, "source": source, "op": op}
    return KafkaRecord("srv.shop.t", 0, offset, 1, json.dumps({"id": number}).encode(), json.dumps(value).encode(), ())


STORED = [change("c", 5, 0, "OLD"), change("c", 3, 1, "OTHER")]
# DELETE 5; UPDATE t SET id = 5 WHERE id = 3
MOVED = [change("d", 5, 2), change("d", 3, 3, lsn=110), change("c", 5, 4, LEFT_OUT, lsn=110)]


@pytest.mark.parametrize("cuts", [(2, 5), (2, 3, 5), (5,)])
def test_a_row_that_was_deleted_before_gives_no_value(open_pipe: Open, cuts: tuple[int, ...]) -> None:
    """In the same block as in another batch."""
    pipe, records = open_pipe(), [*STORED, *MOVED]
    for start, end in pairwise((0, *cuts[:-1])):
        pipe.run(records[start:end])
    with pytest.raises(DefiniteError, match="there is no row to take it from: id=5") as refused:
        pipe.run(records[(0, *cuts)[-2] :])
    assert "REPLICA IDENTITY FULL" in refused.value.hint


def test_an_image_since_the_deletion_gives_the_value(open_pipe: Open) -> None:
    pipe = open_pipe()
    pipe.run(STORED)
    block = [change("u", 5, 2, LEFT_OUT), change("d", 5, 3), change("c", 5, 4, "NEW"), change("u", 5, 5, LEFT_OUT)]
    pipe.run([*block, change("u", 3, 6, LEFT_OUT)], commit=False)
    assert pipe.rows("shop.t", "id, big") == [[3, "OTHER"], [5, "NEW"]]
    # The connector sends events again that are older than the block's deletion.
    again = [replace(one, offset=one.offset + 5) for one in block]
    pipe = open_pipe()
    pipe.run([*block, change("u", 3, 6, LEFT_OUT), *again])
    assert pipe.rows("shop.t", "id, big") == [[3, "OTHER"], [5, "NEW"]]
