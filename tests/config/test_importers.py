"""Files of other tools run as they are, or converted; no key is ignored."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.config import load
from headrace.config.configuration import Configuration
from headrace.config.importers.flat_files import globs_of, read_entries
from headrace.config.importers.hocon import parse_hocon
from headrace.config.importers.mypipe import TableCondition, parse_condition
from headrace.config.load import translate
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.kafka.options import KeyChanges, MessageFormat

SEED = """\
    mypipe {
    
      # Avro schema repository client class name
      schema-repo-client = "mypipe.avro.schema.SchemaRepo"
    
      # consumers represent sources for mysql binary logs
      consumers {
    
      database1  {
          # database "host:port:user:pass" array
          source = "localhost:3306:mypipe:mypipe"
        }
      }
    
      # data producers export data out (stdout, other stores, external services, etc.)
      producers {
    
        stdout {
           class = "mypipe.producer.stdout.StdoutProducer"
        }
    
    	  kafka-generic {
    	    class = "mypipe.producer.KafkaMutationGenericAvroProducer"
    	  }
      }
    
      # pipes join consumers and producers
      pipes {
    
        # prints queries to standard out
        stdout {
          consumers = ["database1"]
          producer {
            stdout {}
          }
        }
    
        # push events into kafka topics
        # where each database-table tuple
        # get their own topic
        kafka-generic {
          enabled = true
          consumers = ["database1"]
          producer {
            kafka-generic {
              metadata-brokers = "localhost:9092"
            }
          }
        }
      }
    }
"""  # noqa: E101, W293  (verbatim: mypipe's README)


def put(directory: Path, name: str, text: str) -> Path:
    (directory / name).write_text(textwrap.dedent(text) if not name.endswith(".conf") else text)
    return directory / name


def refused(directory: Path, name: str, text: str) -> str:
    with pytest.raises(DefiniteError) as error:
        load(put(directory, name, text))
    return str(error.value)


def converted(path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """Convert the file, put its passwords into the environment, and load it."""
    translation = translate(path)
    assert translation is not None
    for keys, variable in translation.secrets.items():
        value: Any = translation.written.content
        for key in keys:
            value = value[key]
        monkeypatch.setenv(variable, value.replace("$${", "${"))
    text = translation.text()
    for variable in translation.secrets.values():
        assert f"{variable}: {path}, line " in text
    target = path.parent / "headrace.toml"
    target.write_text(text)
    return replace(load(target), file=str(path))


def test_mypipes_sample_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "application.conf", SEED)
    configuration = load(path)
    stdout, kafka = configuration.pipes
    assert [(pipe.name, pipe.enabled) for pipe in configuration.pipes] == [("stdout", True), ("kafka-generic", True)]
    (part,) = stdout.specs
    assert (part.source, part.sink) == ("mysql://mypipe:mypipe@localhost:3306", "stdout:")
    assert (part.settings.start_at, part.settings.selection.include) == ("now", ("*.*",))
    (part,) = kafka.specs
    assert (part.sink, part.chosen.kafka.format, part.chosen.kafka.key_changes) == (
        "kafka://localhost:9092",
        MessageFormat.GENERIC,
        KeyChanges.UPDATE,
    )
    assert converted(path, monkeypatch) == configuration
    text = (tmp_path / "headrace.toml").read_text()
    assert text.startswith("#:schema ")
    assert 'password = "${DATABASE1_PASSWORD}"' in text
    assert "mypipe.schema-repo-client (line 4): registry of the sink sets" in text


MYPIPE = """\
akka { loglevel = off }
mypipe {
  data-dir = "%s"
  include-event-condition = \"\"\" db == "shop" && (table == "orders" || table == "users") \"\"\"
  error { quit-on-event-decode-failure = true }
  consumers {
    east { source = ["east:3306:repl:a:b${c", "east2:3307:repl:x"] }
    west.source = "west:3306:repl:"
  }
  kafka.specific-producer.topic-format = "$db.$table"
  producers {
    k { class = mypipe.producer.KafkaMutationSpecificAvroProducer }
  }
  pipes {
    both { consumers = [east, west], producer { k { metadata-brokers = "k1:9092, k2:9092" } }, enabled = false }
    one { consumers = [west], producer.k.metadata-brokers = "k3:9092" }
  }
}
"""


def test_mypipes_consumers_conditions_and_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one-west-3306.pos").write_text("binlog.000007:4711\n")
    path = put(tmp_path, "application.conf", MYPIPE % (tmp_path / "data"))
    configuration = load(path)
    both, one = configuration.pipes
    assert (both.enabled, both.merged, [part.name for part in both.specs]) == (False, True, ["both/east", "both/east-2", "both/west"])
    assert both.specs[0].source == "mysql://repl:a%3Ab%24%7Bc@east:3306"
    assert both.specs[0].settings.selection.include == ("shop.orders", "shop.users")
    assert (both.specs[0].sink, both.specs[0].chosen.kafka.topic) == ("kafka://k1:9092,k2:9092", "${db}.${table}")
    assert both.specs[2].settings.start_at == "now"
    (part,) = one.specs
    assert (part.source, part.sink, part.settings.start_at) == ("mysql://repl@west:3306", "kafka://k3:9092", "binlog.000007:4711")
    assert converted(path, monkeypatch) == configuration


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("enabled = true", "enabld = true"), ["mypipe.pipes.kafka-generic.enabld is no setting", "line 42", "did you mean enabled?"]),
        (("stdout {}", "stdout { colour = 1 }"), ["colour", "mypipe's stdout producer has no settings"]),
        (("mypipe.producer.stdout.StdoutProducer", "com.us.Own"), ["class 'com.us.Own' is not known", "line 19", "docs/producers.md"]),
        (('["database1"]', '["database2"]'), ["no consumer 'database2'", "did you mean database1?"]),
        (("localhost:3306:mypipe:mypipe", "localhost:mypipe"), ["line 11", "host:3306:user:password"]),
        (("schema-repo-client =", "schema-repo-clint ="), ["mypipe.schema-repo-clint", "did you mean schema-repo-client?"]),
        (('metadata-brokers = "localhost:9092"', ""), ["metadata-brokers is missing"]),
        (("# Avro schema", 'include "other"\n# Avro schema'), ["include", "line 3", "put that file's content here"]),
        (("mypipe {", "mypipes {"), ["no pipes of mypipe's"]),
    ],
)
def test_mypipes_keys_are_known_or_named(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    message = refused(tmp_path, "application.conf", SEED.replace(*change))
    for word in words:
        assert word in message


STANDALONE = """\
# Some of the properties are part of the Debezium MySQL connector
name: "company-1"
topic.prefix: "sink-connector-1"
database.hostname: "mysql-master"
database.port: "3306"
database.user: "root"
database.password: "r''t"
database.server.id: "12345"
database.server.name: 'ER54'
database.include.list: sbtest,shop  # two of them
table.exclude.list: "shop\\\\.tmp_.*"
clickhouse.server.url: "clickhouse"
clickhouse.server.user: "root"
clickhouse.server.password: 'it''s'
clickhouse.server.port: "8123"
database.allowPublicKeyRetrieval: "true"
snapshot.mode: "initial"
offset.flush.interval.ms: 5000
connector.class: "io.debezium.connector.mysql.MySqlConnector"
offset.storage: "io.debezium.storage.jdbc.offset.JdbcOffsetBackingStore"
offset.storage.jdbc.table.ddl: "CREATE TABLE if not exists %s
(
    `id` String
)
ENGINE = ReplacingMergeTree(_version)"
schema.history.internal: "io.debezium.storage.jdbc.history.JdbcSchemaHistory"
enable.snapshot.ddl: "true"
persist.raw.bytes: "false"
auto.create.tables: "true"
database.connectionTimeZone: "America/Chicago"
errors.max.retries: 20
clickhouse.database.override.map: "shop:ch_shop, sbtest:bench"
clickhouse.datetime.timezone: "America/Chicago"
skip_replica_start: "true"
ignore_delete: "true"
disable.drop.truncate: "true"
replacingmergetree.delete.column: "is_deleted"
ignore.ddl.regex: "(?i)(ANALYZE PARTITION).*"
restart.event.loop: "true"
buffer.flush.time.ms: "1000"
buffer.max.records: "10000"
clickhouse.jdbc.params: "keepalive.timeout=3,socket_timeout=30000"
thread.pool.size: 10
metrics.enable: "true"
connection.pool.disable: "true"
database.ssl.mode: "verify_ca"
non.default.value: "true"
"""


def test_altinitys_connector_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "config.yml", STANDALONE)
    configuration = load(path)
    (pipe,) = configuration.pipes
    (part,) = pipe.specs
    assert (pipe.name, pipe.enabled) == ("company-1", False)
    assert part.source == "mysql://root:r%27%27t@mysql-master:3306?tls=verify-ca"
    assert part.sink == "clickhouse://root:it%27s@clickhouse:8123/"
    settings = part.settings
    assert (settings.selection.include, settings.selection.exclude) == (("sbtest.*", "shop.*"), ("shop.tmp_*",))
    assert settings.start_at == ""
    assert settings.schema_changes.of(ChangeKind.DROP_TABLE) is settings.schema_changes.of(ChangeKind.TRUNCATE_TABLE) is Policy.IGNORE
    chosen = part.chosen.sink.of(TableName("shop", "orders"))
    assert (chosen.database, chosen.zone, chosen.delete_column, chosen.deletes) == ("ch_shop", "America/Chicago", "is_deleted", "ignore")
    assert converted(path, monkeypatch) == configuration
    text = (tmp_path / "headrace.toml").read_text()
    for key in (
        "offset.storage.jdbc.table.ddl (line 21)",
        "buffer.max.records (line 41)",
        "thread.pool.size (line 43)",
        "ignore.ddl.regex (line 38)",
    ):
        assert key in text
    assert "it's" not in text


SINK = """\
{
  "name": "sink-connector",
  "config": {
    "connector.class": "com.altinity.clickhouse.sink.connector.ClickHouseSinkConnector",
    "tasks.max": "10",
    "topics": "SERVER5432.test.users, SERVER5432.sbtest.sbtest1",
    "clickhouse.topic2table.map": "SERVER5432.test.users:people",
    "clickhouse.server.url": "https://clickhouse",
    "clickhouse.server.user": "root",
    "clickhouse.server.password": "${env:CH_PASSWORD}",
    "clickhouse.server.database": "test",
    "clickhouse.server.port": 8443,
    "value.converter": "io.confluent.connect.avro.AvroConverter",
    "key.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter.schema.registry.url": "http://registry:8081",
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.drop.tombstones": "false",
    "store.kafka.metadata": true,
    "store.raw.data": false,
    "buffer.flush.time.ms": 500,
    "buffer.max.records": 20000,
    "schema.evolution": false,
    "replacingmergetree.delete.column": "_sign"
  }
}
"""


def test_altinitys_connector_behind_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "sink.json", SINK)
    monkeypatch.setenv("CH_PASSWORD", "s3")
    monkeypatch.delenv("KAFKA_BROKERS", raising=False)
    assert "the environment variable KAFKA_BROKERS is not set" in refused(tmp_path, "sink.json", SINK)
    monkeypatch.setenv("KAFKA_BROKERS", "k1:9092,k2:9092")
    configuration = load(path)
    (pipe,) = configuration.pipes
    (part,) = pipe.specs
    assert (part.source, part.sink) == ("kafka://k1:9092,k2:9092", "clickhouses://root:s3@clickhouse:8443/test")
    assert part.topics.topics == ("SERVER5432.test.users", "SERVER5432.sbtest.sbtest1")
    assert (part.chosen.debezium.format, part.chosen.debezium.registry) == ("avro", "http://registry:8081")
    assert part.chosen.sink.of(TableName("test", "users")).target == "people"
    assert part.settings.schema_changes.of(ChangeKind.ADD_COLUMN) is Policy.IGNORE
    assert converted(path, monkeypatch) == configuration


DEBEZIUM = """\
# Debezium Server
debezium.source.connector.class=io.debezium.connector.mysql.MySqlConnector
debezium.source.database.hostname = db
debezium.source.database.user: repl
debezium.source.database.password=se\\
    cret
debezium.source.topic.prefix=shop
debezium.source.table.include.list=inventory\\\\.(orders|users),inventory\\\\.items_.*
debezium.source.column.exclude.list=inventory.users.secret
debezium.source.snapshot.mode=no_data
debezium.source.skipped.operations=t
debezium.source.offset.storage.file.filename=data/offsets.dat
debezium.sink.kafka.producer.bootstrap.servers=k:9092
"""


def test_debezium_to_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "application.properties", DEBEZIUM)
    configuration = load(path)
    (pipe,) = configuration.pipes
    (part,) = pipe.specs
    assert (pipe.name, part.source, part.sink) == ("shop", "mysql://repl:secret@db:3306", "kafka://k:9092")
    assert part.settings.selection.include == ("inventory.orders", "inventory.users", "inventory.items_*")
    assert (part.settings.projection.exclude, part.settings.start_at) == (("inventory.users.secret",), "now")
    assert (part.chosen.kafka.format, part.chosen.kafka.prefix) == (MessageFormat.DEBEZIUM, "shop")
    assert converted(path, monkeypatch) == configuration


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ('metrics.enable: "true"', 'metrics.enabled: "true"'),
            ["metrics.enabled is not known", "line 44", "did you mean metrics.enable?"],
        ),
        (('snapshot.mode: "initial"', 'snapshot.mode: "always"'), ["line 17", "'always'", "initial"]),
        (("mysql.MySqlConnector", "oracle.OracleConnector"), ["OracleConnector is read by Debezium only", "line 19"]),
        (('"(?i)(ANALYZE PARTITION).*"', '"DROP TABLE.*"'), ["ignore.ddl.regex", "by kind: schema_changes"]),
        (("sbtest,shop ", "(?!x)shop "), ["cannot be written as globs", "line 10"]),
        (
            ('auto.create.tables: "true"', 'auto.create.tables.replicated: "true"'),
            ["replicated cannot be 'true'", "cluster"],
        ),
        (("name: ", "nested:\n  name: "), ["nested is no plain text", "line 2"]),
        (("thread.pool.size: 10", "metrics.enable: 10"), ["metrics.enable is given twice", "line 44", "the other"]),
    ],
)
def test_connectors_keys_are_known_or_named(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    message = refused(tmp_path, "config.yml", STANDALONE.replace(*change))
    for word in words:
        assert word in message


def test_hocon_is_read_as_it_is_meant() -> None:
    text = """
    // a comment
    a { b = 1, c: "x y" # another
      d.e.f = plain text here
      "q.r" = true
    }
    a.b = 2
    a { g = [1, "two", three four
      5,] }
    base { x = 1, y = 2 }
    derived = ${base} { y = 3 }
    later = ${base}
    later { z = 4 }
    joined = ${a.c}-${?NOTHING}suffix
    absent = ${?NOTHING}
    given = ${NAME}
    long = \"\"\"two
"lines\"\"\"\"
    list = [1]
    list += 2
    path = "a"
    path = ${path}":b"
    url = http://host:80/x
    """
    content = parse_hocon(text.replace("url = http://host:80/x", 'url = "http://host:80/x"'), "f", {"NAME": "v"}).content
    assert content == {
        "a": {"b": 2, "c": "x y", "d": {"e": {"f": "plain text here"}}, "q.r": True, "g": [1, "two", "three four", 5]},
        "base": {"x": 1, "y": 2},
        "derived": {"x": 1, "y": 3},
        "later": {"x": 1, "y": 2, "z": 4},
        "joined": "x y-suffix",
        "given": "v",
        "long": 'two\n"lines"',
        "list": [1, 2],
        "path": "a:b",
        "url": "http://host:80/x",
    }
    assert parse_hocon('{"a": [1, {"b": null}]}', "f").content == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a { b = [1] }\na { b = ${a.b} [2] }", {"a": {"b": [1, 2]}}),
        ("a { b = [1] }\na { b += 2 }", {"a": {"b": [1, 2]}}),
        ("x { a { b = 1 } }\nx { a { b = ${x.a.b}2 } }", {"x": {"a": {"b": "12"}}}),
        ("b = 1\na { b = 3 }\na { b = ${b}4 }", {"b": 1, "a": {"b": "14"}}),
        ("a { b += 1, b += 2 }\nc += 3\nd = ${?d}\ne = [{ f += 4 }]", {"a": {"b": [1, 2]}, "c": [3], "e": [{"f": [4]}]}),
    ],
)
def test_hocon_merges_what_refers_to_itself(text: str, content: object) -> None:
    assert parse_hocon(text, "f", {}).content == content


@pytest.mark.parametrize(
    "text", ["a {", 'a = "x', "a = ${b}", "a = ${a}", "a", "= 1", "a = ", 'a = """x', "a = [1", "a = 1 }", "a..b = 1", r'a = "\x"']
)
def test_hocon_that_is_none_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(DefiniteError) as error:
        parse_hocon(f"\n{text}\n", "f", {})
    assert "f, line " in str(error.value)


def test_conditions_and_regular_expressions_as_globs() -> None:
    assert parse_condition('db == "a" && table == "b" || db == "c"', "") == TableCondition(("a.b", "c.*"))
    assert parse_condition("  ", "") == TableCondition(("*.*",))
    for wrong in ("db < 1", 'table.startsWith("x")', 'db == "a" &&', '(db == "a"'):
        with pytest.raises(DefiniteError, match="more than comparisons"):
            parse_condition(wrong, "here")
    assert globs_of(r"^shop\.(a|b)_.*$") == ["shop.a_*", "shop.b_*"]
    assert globs_of("x.y|z.+") == ["x.y", "z?*"]
    assert globs_of(r"shop\.a\*") == ["shop.a[*]"]
    for wrong in ("a{2}", "[ab]", "(a)*", r"\d", "a?"):
        with pytest.raises(ValueError, match=r".*"):
            globs_of(wrong)


def test_properties_as_java_reads_them() -> None:
    text = "a=1\n! no\nb : two words \nc\\=d=e\\u0041\\n\nlong=x\\\n   y\nempty\n"
    assert [tuple(one) for one in read_entries(text, "x.properties")] == [
        ("a", "1", 1),
        ("b", "two words", 3),
        ("c=d", "eA", 4),
        ("long", "xy", 5),
        ("empty", "", 7),
    ]


def test_convert_writes_a_file_that_was_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "application.conf", SEED)
    target = tmp_path / "headrace.toml"
    assert cli.main(["convert", str(path), "-o", str(target)]) == cli.OK
    monkeypatch.setenv("DATABASE1_PASSWORD", "x")
    assert len(load(target).pipes) == 2
    assert cli.main(["convert", str(path), "-o", str(target)]) == cli.FAILED
    assert "already exists" in capsys.readouterr().err
    assert cli.main(["convert", str(path)]) == cli.OK
    assert capsys.readouterr().out == target.read_text()
    assert cli.main(["convert", str(target)]) == cli.FAILED
    assert cli.main(["config", "check", str(path)]) == cli.OK
    assert cli.main(["config", "show", str(path)]) == cli.OK
    assert 'password = "***"' in capsys.readouterr().out
