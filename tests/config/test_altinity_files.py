"""`headrace convert` takes the files of Altinity's sink connector: every key of its `ConfigVariables`, and the forms of its samples and
tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config.importers.connectors import translate_connector
from headrace.config.importers.flat_files import read_entries
from headrace.config.load import load
from headrace.errors import DefiniteError
from headrace.model.schema import TableName

SERVER = "database.hostname=db\ndatabase.user=u\ndatabase.include.list=test\nclickhouse.server.url=ch\n"

# What a key with a value becomes: lines of the converted file ("… = …"), a reason ("key: reason"), or an error.
TRANSLATED = {
    "ignore_delete": ("true", 'deletes = "ignore"'),
    "clickhouse.topic2table.map": ("SERVER5432.test.users:people", '[pipes.pipe.tables."test.users"]\ntarget = "people"'),
    "clickhouse.database.override.map": ("test:copy", '[pipes.pipe.tables."test.*"]\ndatabase = "copy"'),
    "clickhouse.server.url": ("warehouse", 'url = "clickhouse://warehouse/"'),
    "clickhouse.server.user": ("root", 'url = "clickhouse://root@ch/"'),
    "clickhouse.server.password": ("root", 'password = "${SINK_PASSWORD}"'),
    "clickhouse.server.port": ("8123", 'url = "clickhouse://ch:8123/"'),
    "replacingmergetree.delete.column": ("is_deleted", 'delete_column = "is_deleted"'),
    "schema.evolution": ("false", 'add_column = "ignore"'),
    "clickhouse.datetime.timezone": ("Europe/Berlin", 'zone = "Europe/Berlin"'),
    "skip_replica_start": ("true", "enabled = false"),
}
UNNEEDED = {
    "thread.pool.size": ("10", "concurrent tasks"),
    "buffer.count": ("10000", "flush_rows"),
    "deduplication.policy": ("new", "by its version"),
    "provider": ("confluent", "brokers of all providers"),
    "task_id": ("1", "numbers its tasks"),
    "store.kafka.metadata": ("true", "_version is the log position"),
    "enable.kafka.offset": ("true", "state directory"),
    "kafka.offset.metadata.table": ("topic_offset_metadata", "state directory"),
    "store.raw.data.column": ("raw_data", "raw events are not stored"),
    "buffer.flush.time.ms": ("500", "flush_rows"),
    "buffer.max.records": ("100000", "flush_rows"),
    "buffer.flush.timeout.ms": ("1000", "flush_rows"),
    "metrics.enable": ("true", "/metrics"),
    "metrics.port": ("8084", "/metrics"),
    "auto.create.tables": ("false", "only if it is missing"),
    "snowflake.id": ("true", "log positions"),
    "persist.raw.bytes": ("true", "bytes are always stored as they are"),
    "restart.event.loop": ("true", "retried"),
    "restart.event.loop.timeout.period.secs": ("3000", "retried"),
    "clickhouse.jdbc.params": ("socket_timeout=10000", "sent as Arrow"),
    "replica.status.view": ("CREATE VIEW x AS SELECT 1", "headrace.lag"),
    "sink.connector.max.queue.size": ("500000", "memory"),
    "single.threaded": ("true", "concurrent tasks"),
}
REFUSED = {
    "store.raw.data": ("true", "raw events are not stored"),
    "deduplication.policy": ("old", "drop later ones"),
    "auto.create.tables.replicated": ("true", 'cluster = "NAME"'),
}
CONFIG_VARIABLES = {
    "ignore_delete",
    "thread.pool.size",
    "buffer.count",
    "deduplication.policy",
    "clickhouse.topic2table.map",
    "clickhouse.database.override.map",
    "clickhouse.server.url",
    "clickhouse.server.user",
    "clickhouse.server.password",
    "clickhouse.server.port",
    "provider",
    "task_id",
    "store.kafka.metadata",
    "store.raw.data",
    "enable.kafka.offset",
    "kafka.offset.metadata.table",
    "store.raw.data.column",
    "buffer.flush.time.ms",
    "buffer.max.records",
    "buffer.flush.timeout.ms",
    "metrics.enable",
    "metrics.port",
    "replacingmergetree.delete.column",
    "auto.create.tables",
    "auto.create.tables.replicated",
    "schema.evolution",
    "snowflake.id",
    "persist.raw.bytes",
    "clickhouse.datetime.timezone",
    "skip_replica_start",
    "restart.event.loop",
    "restart.event.loop.timeout.period.secs",
    "clickhouse.jdbc.params",
    "replica.status.view",
    "sink.connector.max.queue.size",
    "single.threaded",
}
"""The keys of ClickHouseSinkConnectorConfigVariables."""


def convert(text: str, name: str = "config.properties") -> str:
    return translate_connector(text, name).text()


def with_key(key: str, value: str) -> str:
    kept = "".join(f"{line}\n" for line in SERVER.splitlines() if not line.startswith(f"{key}="))
    return f"{kept}{key}={value}\n"


def test_delete_column_has_the_values_that_queries_of_its_name_compare() -> None:
    assert 'delete_column = "sign"\ndelete_type = "int8"' in convert(with_key("replacingmergetree.delete.column", "sign"))
    assert "delete_type" not in convert(with_key("replacingmergetree.delete.column", "is_deleted"))
    # The default of created tables.
    assert "delete_column" not in convert(with_key("replacingmergetree.delete.column", "_sign"))


def test_every_key_of_the_connector_is_listed() -> None:
    assert {*TRANSLATED, *UNNEEDED, *REFUSED} == CONFIG_VARIABLES


@pytest.mark.parametrize("key", sorted(TRANSLATED))
def test_key_is_translated(key: str) -> None:
    value, expected = TRANSLATED[key]
    text = convert(with_key(key, value))
    assert expected in text
    assert f"{key} (line" not in text


@pytest.mark.parametrize("key", sorted(UNNEEDED))
def test_key_is_unneeded_for_a_reason(key: str) -> None:
    value, reason = UNNEEDED[key]
    (line,) = [line for line in convert(with_key(key, value)).splitlines() if f"{key} (line" in line]
    assert reason in line


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_key_is_refused_for_a_reason(key: str) -> None:
    value, reason = REFUSED[key]
    with pytest.raises(DefiniteError) as error:
        convert(with_key(key, value))
    assert reason in str(error.value)
    assert f"line {SERVER.count(chr(10)) + 1}, {key}" in str(error.value)
    # The remedy: without the key, or with the connector's default, the file converts.
    convert(SERVER)
    convert(with_key(key, "off" if key == "deduplication.policy" else "false"))


E2E = {
    "connector.class": "com.altinity.clickhouse.sink.connector.ClickHouseSinkConnector",
    "tasks.max": "100",
    "topics": "SERVER5432.test.users1, SERVER5432.test.users",
    "clickhouse.topic2table.map": "",
    "clickhouse.server.url": "clickhouse",
    "clickhouse.server.user": "root",
    "clickhouse.server.database": "test",
    "clickhouse.server.port": 8123,
    "clickhouse.table.name": "users",
    "store.kafka.metadata": True,
    "topic.creation.default.partitions": 6,
    "store.raw.data": False,
    "buffer.flush.time": 3500,
    "fetch.min.bytes": 52428800,
    "enable.kafka.offset": False,
    "replacingmergetree.delete.column": "_sign",
    "auto.create.tables": False,
    "auto.create.tables.replicated": False,
    "deduplication.policy": "off",
    "metadata.max.age.ms": 10000,
}


def test_end_to_end_tests_of_the_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BROKERS", "k:9092")
    path = tmp_path / "sink.json"
    path.write_text(json.dumps({"name": "sink-connector", "config": E2E}, indent=2))
    (pipe,) = load(path).pipes
    assert pipe.specs[0].topics.topics == ("SERVER5432.test.users1", "SERVER5432.test.users")


def test_topic_without_database_takes_the_configured_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BROKERS", "k:9092")
    maps = "employees:employee, SERVER5432.test.users:people"
    config = {**E2E, "topics": "employees,SERVER5432.test.users", "clickhouse.topic2table.map": maps}
    path = tmp_path / "sink.json"
    path.write_text(json.dumps({"name": "sink-connector", "config": config}))
    (part,) = load(path).pipes[0].specs
    assert part.chosen.debezium.topics == (("employees", "test.employee"),)
    assert part.chosen.sink.of(TableName("test", "users")).target == "people"
    assert part.sink == "clickhouse://root@clickhouse:8123/test"
    with pytest.raises(DefiniteError, match=r"clickhouse\.server\.database"):
        convert(json.dumps({name: value for name, value in config.items() if name != "clickhouse.server.database"}), "sink.json")


YAML = """\
# texts in every form of YAML
name: >-
  my
  connector
database.hostname: mysql-master
database.user: 'it''s'   # a comment
database.include.list: test,
  shop

clickhouse.server.url: "click\\
  house"
clickhouse.topic2table.map: |
  SERVER5432.test.users:people,
  SERVER5432.test.products:goods

offset.storage.jdbc.offset.table.ddl: |-
  CREATE TABLE if not exists %s
  (
      `id` String,

      `offset_key` String
  )
  ENGINE = ReplacingMergeTree(_version)
schema.history.internal.jdbc.schema.history.table.ddl: "CREATE TABLE if not exists %s
(`id` VARCHAR(36) NOT NULL)

order by id"
auto.create.tables: "false"
connector.class:
  io.debezium.connector.mysql.MySqlConnector
"""


def test_yaml_texts_on_several_lines() -> None:
    entries = {one.key: one for one in read_entries(YAML, "config.yml")}
    assert {key: one.value for key, one in entries.items() if "ddl" not in key} == {
        "name": "my connector",
        "database.hostname": "mysql-master",
        "database.user": "it's",
        "database.include.list": "test, shop",
        "clickhouse.server.url": "clickhouse",
        "clickhouse.topic2table.map": "SERVER5432.test.users:people,\nSERVER5432.test.products:goods",
        "auto.create.tables": "false",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    }
    offsets = entries["offset.storage.jdbc.offset.table.ddl"]
    assert offsets.value.split("\n")[2:5] == ["    `id` String,", "", "    `offset_key` String"]
    assert offsets.line == 16
    history = entries["schema.history.internal.jdbc.schema.history.table.ddl"].value
    assert history == "CREATE TABLE if not exists %s (`id` VARCHAR(36) NOT NULL)\norder by id"
    text = convert(YAML, "config.yml")
    assert 'tables = ["test.*", "shop.*"]' in text
    assert 'target = "people"' in text
    assert 'target = "goods"' in text


# The values are PyYAML's, without final line breaks.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('k:\n  "text"\n', "text"),
        ("k:\n  'it''s' # c\n", "it's"),
        ('k: # c\n\n  # d\n  "a\n  b"\n', "a b"),
        ("k:\n  |-\n  a\n  b\n", "a\nb"),
        ("k:\n  >-\n    a\n    b\n", "a b"),
        ("k:\n  |2-\n    a\n", "  a"),
        ('k:\n  a\n  "b"\n', 'a "b"'),
        ('k: "a\\ \n  b"\n', "a  b"),
        ('k: "a\\  \n\n  b"\n', "a \nb"),
        ('k: "a\\\t\n  b"\n', "a\t b"),
        ('k: "a\\\\ \n  b"\n', "a\\ b"),
    ],
)
def test_yaml_texts_below_their_keys_and_escaped_blanks(text: str, value: str) -> None:
    assert [(one.key, one.value, one.line) for one in read_entries(f"{text}next: x\n", "config.yml")] == [
        ("k", value, 1),
        ("next", "x", text.count("\n") + 1),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: |x\n  b\n", ["|x begins no block", "line 1"]),
        ("a: |\n    b\n  c\n", ["indented less than the block", "line 3"]),
        ('a: "b",\n', [", follows the closing", "line 1"]),
        ("a: b\n  c: d\n", ["not KEY: VALUE", "line 2"]),
        ("a:\n  b: c\n", ["a is no plain text", "line 1"]),
        ("a:\n- b\n", ["a is no plain text", "line 1"]),
        ('a: "b\nc: d\n', ["never closed", "line 1"]),
        ('a:\n  "b" c\n', ["c follows the closing", "line 2"]),
        ("a:\n  |x\n  b\n", ["|x begins no block", "line 2"]),
        ("a:\n  |\n    b\n   c\n", ["indented less than the block", "line 4"]),
        ("a:\n  [b]\n", ["a is no plain text", "line 1"]),
        ("a:\n  &b c\n", ["a is no plain text", "line 1"]),
        ("a: b\n'': c\n", ["the key is empty", "line 2", "write KEY: VALUE"]),
        ('"": c\n', ["the key is empty", "line 1"]),
    ],
)
def test_yaml_that_is_no_text_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(DefiniteError) as error:
        read_entries(text, "config.yml")
    for word in words:
        assert word in str(error.value)


RESOURCE = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaConnector
metadata:
  name: sink-kctr
  labels:
    # the cluster of Kafka Connect
    strimzi.io/cluster: sink-kafkaconnect
spec:
  class: com.altinity.clickhouse.sink.connector.ClickHouseSinkConnector
  tasksMax: 1
  config:
    topics: "SERVER5432.test.users"
    clickhouse.server.url: "clickhouse"
    key.converter.schema.registry.url : "http://registry:8081"

    auto.create.tables: "true"
"""


def test_strimzis_resource() -> None:
    text = convert(RESOURCE, "sink.yaml")
    assert 'topics = ["SERVER5432.test.users"]' in text
    assert 'url = "clickhouse://clickhouse/"' in text
    assert "[pipes.sink-kctr]" in text
    assert "tasks.max (line 10)" in text
    with pytest.raises(DefiniteError, match=r"spec\.pause of a KafkaConnector is not known"):
        convert(RESOURCE.replace("tasksMax: 1", "pause: true"), "sink.yaml")
    with pytest.raises(DefiniteError, match=r"clickhouse\.server\.url is missing"):
        convert(RESOURCE.replace("clickhouse.server.url:", "clickhouse.table.name:"), "sink.yaml")


def test_properties_with_quotes_as_the_connectors_own_file() -> None:
    text = 'snapshot.mode= "initial"\noffset.storage.jdbc.ddl: "CREATE TABLE %s\n(\n`id` String\n)"\nclickhouse.server.password="a\n'
    assert [(one.key, one.value, one.line) for one in read_entries(text, "config.properties")] == [
        ("snapshot.mode", "initial", 1),
        ("offset.storage.jdbc.ddl", "CREATE TABLE %s\n(\n`id` String\n)", 2),
        # Quotes of a password are part of it, as in Java.
        ("clickhouse.server.password", '"a', 6),
    ]
    with pytest.raises(DefiniteError, match="never closed"):
        read_entries('name="x\n', "config.properties")


def test_file_without_a_server_is_refused_with_what_it_is() -> None:
    with pytest.raises(DefiniteError, match="defaults only"):
        convert("topic.prefix=x\nauto.create.tables=false\nreplacingmergetree.delete.column=_sign\n")


def test_key_of_another_kind_of_connector_is_named() -> None:
    with pytest.raises(DefiniteError, match=r"database\.hostname is no key of this kind of connector"):
        convert(json.dumps({**E2E, "database.hostname": "db"}), "sink.json")


def test_other_databases_are_refused_by_one_reason() -> None:
    text = f"{SERVER}connector.class=io.debezium.connector.postgresql.PostgresConnector\nschema.include.list=public\nslot.name=a\n"
    with pytest.raises(DefiniteError) as error:
        convert(text)
    assert "read by Debezium only" in str(error.value)
    assert "slot.name" not in str(error.value)
