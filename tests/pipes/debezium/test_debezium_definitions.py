"""Events without a schema whose values have another meaning since an ALTER: never misread.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`), with the embedded ClickHouse.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium.events.options import DebeziumOptions
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord

Open = Callable[..., LocalTopicPipe]
NOW_MS = 1767225600000
ALTERED = "ALTER TABLE goods MODIFY c …"


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> Open:
    def opened(schema_records: list[bytes] | None = None, choices: DebeziumOptions | None = None, **more: Any) -> LocalTopicPipe:
        return LocalTopicPipe(tmp_path / "state", sink, choices, schema_records=schema_records, **more)

    return opened


def definition(pos: int, word: str, *, ddl: str = "CREATE …", server: int = 1, more: tuple[str, ...] = (), **column: Any) -> bytes:
    """A record of the topic of schema changes: goods(id INT, c `word`)."""
    columns = [
        {"name": "id", "typeName": "INT", "typeExpression": "INT", "optional": False, "position": 1},
        {"name": "c", "typeName": word, "typeExpression": word, "optional": True, "position": 2, **column},
        *({"name": name, "typeName": "INT", "typeExpression": "INT", "optional": True, "position": 3} for name in more),
    ]
    table = {"defaultCharsetName": "utf8mb4", "primaryKeyColumnNames": ["id"], "columns": columns}
    change = {"type": "ALTER" if ddl == ALTERED else "CREATE", "id": '"shop"."goods"', "table": table}
    source = {"connector": "mysql", "file": "bin.000007", "pos": pos, "server_id": server}
    return json.dumps({"source": source, "ddl": ddl, "tableChanges": [change]}).encode()


def event(number: int, value: object, pos: int, *, server: int | None = 1, file: str = "bin.000007", **more: object) -> KafkaRecord:
    source = {"connector": "mysql", "db": "shop", "table": "goods", "server_id": server, "file": file, "pos": pos, "row": 0}
    body = {"before": None, "after": {"id": number, "c": value, **more}, "source": source, "op": "c"}
    return KafkaRecord("srv.shop.goods", 0, number, 1, json.dumps({"id": number}).encode(), json.dumps(body).encode(), ())


def digits(unscaled: int) -> str:
    return base64.b64encode(unscaled.to_bytes(4, "big", signed=True)).decode()


FORMS = {
    "scale": (("DECIMAL", {"length": 10, "scale": 2}), ("DECIMAL", {"length": 12, "scale": 4}), digits(1234), digits(123400), "12.34"),
    "fraction": (("DATETIME", {"length": 6}), ("DATETIME", {"length": 3}), NOW_MS * 1000, NOW_MS, "2026-01-01 00:00:00"),
    "date": (("DATETIME", {}), ("DATE", {}), NOW_MS, NOW_MS // 86_400_000, "2026-01-01 00:00:00"),
    "unsigned": (("BIGINT", {}), ("BIGINT UNSIGNED", {}), -1, -1, "-1"),
    "bytes": (("VARCHAR", {"length": 9}), ("VARBINARY", {"length": 9}), "abcd", "abcd", "abcd"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_alter_halts_a_running_pipe_at_the_first_event_after_it(form: str, open_pipe: Open) -> None:
    (old, old_more), (new, new_more), value, altered, shown = FORMS[form]
    topic = [definition(50, old, server=0, **old_more)]
    pipe = open_pipe(topic)
    pipe.run([event(1, value, 100)])
    topic.append(definition(200, new, ddl=ALTERED, **new_more))
    pipe.run([event(2, value, 150)])
    with pytest.raises(DefiniteError, match=f"c had another type than the copy knows.*{ALTERED}") as halted:
        pipe.run([event(3, value, 160), event(4, altered, 250)])
    assert halted.value.place == "srv.shop.goods[0]@4"
    assert "schemas.enable=true" in halted.value.hint
    assert [str(row[0])[: len(shown)] for row in pipe.rows("shop.goods", "toString(c)")] == [shown, shown]


@pytest.mark.parametrize("form", ["scale", "fraction", "unsigned", "bytes"])
def test_a_backlog_from_before_an_alter_halts(form: str, open_pipe: Open) -> None:
    (old, old_more), (new, new_more), value, altered, _ = FORMS[form]
    topic = [definition(50, old, server=0, **old_more), definition(200, new, ddl=ALTERED, **new_more)]
    pipe = open_pipe(topic)
    with pytest.raises(DefiniteError, match=f"c had another type than the copy knows.*{ALTERED}") as halted:
        pipe.run([event(1, altered, 250), event(2, value, 100)])
    assert halted.value.place == "srv.shop.goods[0]@2"
    assert pipe.rows("shop.goods") == []


def test_events_that_are_all_from_after_an_alter_are_read(open_pipe: Open) -> None:
    topic = [
        definition(50, "DECIMAL", server=0, length=10, scale=2),
        definition(200, "DECIMAL", ddl=ALTERED, length=12, scale=4),
        definition(300, "DECIMAL", ddl=ALTERED, more=("d",), length=12, scale=4),
    ]
    pipe = open_pipe(topic)
    pipe.run([event(1, digits(123400), 250), event(2, digits(123400), 350, d=5), event(3, digits(123400), 10, file="bin.000008", d=6)])
    assert pipe.rows("shop.goods", "id, toString(c), d") == [[1, "12.34", None], [2, "12.34", 5], [3, "12.34", 6]]
    # Positions of another server, and those of another log, prove nothing.
    for record in (event(4, digits(123400), 400, file="bin.000009", server=server) for server in (2, None)):
        with pytest.raises(DefiniteError, match="may be from a time"):
            pipe.run([record])


def test_changes_that_keep_the_meaning_of_values_do_not_halt(open_pipe: Open) -> None:
    topic = [definition(50, "DECIMAL", server=0, length=10, scale=2)]
    pipe = open_pipe(topic)
    pipe.run([event(1, digits(1234), 100)])
    topic += [definition(200, "DECIMAL", ddl=ALTERED, length=14, scale=2), definition(210, "DECIMAL", length=14, scale=2, more=("d",))]
    pipe.run([event(2, digits(1235), 250, d=1)])
    assert pipe.rows("shop.goods", "id, toString(c), d") == [[1, "12.34", None], [2, "12.35", 1]]


def test_decimals_as_text_do_not_depend_on_the_scale(open_pipe: Open) -> None:
    topic = [definition(50, "DECIMAL", server=0, length=10, scale=2), definition(200, "DECIMAL", ddl=ALTERED, length=12, scale=4)]
    pipe = open_pipe(topic, DebeziumOptions(decimals="string"))
    pipe.run([event(1, "12.34", 100), event(2, "12.3456", 250)])
    assert pipe.rows("shop.goods", "id, toString(c)") == [[1, "12.34"], [2, "12.3456"]]


def with_target(sink: ClickHouseSink, form: str) -> None:
    ask, database = sink.reader().query, sink.target.database
    ask(f"CREATE DATABASE `{database}`")
    marks = "_sign Int8, _version UInt64"
    ask(f"CREATE TABLE `{database}`.goods (id Int32, c {form}, {marks}) ENGINE = ReplacingMergeTree(_version) ORDER BY id")


@pytest.mark.parametrize(
    ("form", "value", "doubt", "confirmed", "shown"),
    [
        ("DateTime64(6, 'UTC')", NOW_MS * 1000, "milliseconds", {"times": "adaptive_time_microseconds"}, "2026-01-01 00:00:00.000000"),
        ("Decimal(12, 4)", digits(123400), "after the point", {"decimals": "precise"}, "12.34"),
    ],
)
def test_a_target_alone_does_not_show_what_values_mean(
    form: str, value: object, doubt: str, confirmed: dict[str, str], shown: str, open_pipe: Open, sink: ClickHouseSink
) -> None:
    with_target(sink, form)
    with pytest.raises(DefiniteError, match=doubt) as halted:
        open_pipe().run([event(1, value, 100)])
    [setting] = confirmed
    assert f"debezium.{setting}" in halted.value.hint
    pipe = open_pipe(settings={"debezium": confirmed})
    pipe.run([event(1, value, 100)])
    assert pipe.rows("shop.goods", "toString(c)") == [[shown]]


def test_a_target_with_milliseconds_shows_their_form(open_pipe: Open, sink: ClickHouseSink) -> None:
    with_target(sink, "DateTime64(3, 'UTC')")
    pipe = open_pipe()
    pipe.run([event(1, NOW_MS, 100)])
    assert pipe.rows("shop.goods", "toString(c)") == [["2026-01-01 00:00:00.000"]]


def test_an_excluded_column_does_not_halt(open_pipe: Open) -> None:
    topic = [definition(50, "DECIMAL", server=0, length=10, scale=2), definition(200, "DECIMAL", ddl=ALTERED, length=12, scale=4)]
    pipe = open_pipe(topic, exclude_columns=("shop.goods.c",))
    pipe.run([event(1, digits(1234), 100), event(2, digits(123400), 250)])
    assert pipe.rows("shop.goods", "id") == [[1], [2]]
