"""Converted files of other tools replicate exactly what the original does, and hold no password."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config.importers.connectors import translate_connector
from headrace.config.importers.mypipe import translate_mypipe
from headrace.config.load import load
from headrace.errors import DefiniteError

SERVER = "database.hostname=db\ndatabase.user=u\ndatabase.password=secret\nclickhouse.server.url=ch\n"
TOPICS = "topics=srv.shop.orders\nclickhouse.server.url=ch\n"
AVRO = "value.converter=io.confluent.connect.avro.AvroConverter\nvalue.converter.schema.registry.url=https://registry:8081\n"
MYPIPE = """
mypipe {
  CONDITION
  consumers {
    db-1 { source = "h1:3306:u:one${x" }
    db_1 { source = "h2:3306:u:two" }
    OTHER
  }
  producers { stdout { class = "mypipe.producer.stdout.StdoutProducer" } }
  pipes {
    a { consumers = [db-1], enabled = "yes", producer { stdout {} } }
    b { consumers = [db_1], enabled = "no", producer { stdout {} } }
  }
}
"""


def mypipe(condition: str = "", other: str = "") -> str:
    return MYPIPE.replace("CONDITION", condition).replace("OTHER", other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # A table must pass both lists.
        (SERVER + "database.include.list=shop.*\ntable.include.list=.*\\\\.orders\n", ["*.orders", "line 6", "name its database"]),
        (SERVER + "database.include.list=shop\ntable.include.list=crm.orders\n", ["crm.orders", "database.include.list"]),
        # A table without a listed column has no columns in the connector's events.
        (SERVER + "column.include.list=shop.users.(id|name)\n", ["names no columns of *.*", "line 5"]),
        # The same key for a connector and for Debezium Server.
        ("debezium.source.name=a\nname=b\n" + SERVER, ["name says again what debezium.source.name on line 1 says", "line 2"]),
        (SERVER.replace("url=ch", "url=http://ch:8123/shop?x=1"), ["more than a host", "line 4", "clickhouse.server.database"]),
        (TOPICS + "clickhouse.topic2table.map=orders:o\n", ["the topic orders", "line 3", "SERVER.DATABASE.TABLE"]),
        (TOPICS + "consumer.override.sasl.jaas.config=x\n", ["how Kafka is reached", "line 3", "kafka://user@host"]),
    ],
)
def test_settings_with_another_result_in_headrace_are_rejected(text: str, words: list[str]) -> None:
    with pytest.raises(DefiniteError) as error:
        translate_connector(text, "file.properties").text()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("text", [SERVER.partition("clickhouse.")[0] + "bootstrap.servers=k:9092\n", TOPICS], ids=["events", "topics"])
def test_the_remedy_names_a_converter_that_is_accepted(text: str) -> None:
    with pytest.raises(DefiniteError) as error:
        translate_connector(text + "value.converter=io.confluent.connect.protobuf.ProtobufConverter\n", "file.properties").text()
    remedy = re.search(r"remedy: set (value\.converter) to ([\w.]+)", str(error.value))
    assert remedy is not None, str(error.value)
    assert "sink" in translate_connector(f"{text}{remedy[1]}={remedy[2]}\n", "file.properties").text()


def test_a_refused_converter_of_events_leads_to_a_pipe_from_the_topics() -> None:
    events = SERVER.partition("clickhouse.")[0] + AVRO
    with pytest.raises(
        DefiniteError, match=r"or keep Debezium and read its topics with a source of kafka://host:port \(docs/kafka/debezium-source\.md\)"
    ):
        translate_connector(events, "file.properties").text()
    assert (Path(__file__).parents[2] / "docs/kafka/debezium-source.md").is_file()
    assert 'url = "kafka://' in translate_connector(TOPICS + AVRO, "file.properties").text()


def test_compatible_lists_are_combined() -> None:
    lists = "database.include.list=shop.*,crm\ntable.include.list=shop_1.orders,crm.users\n"
    columns = "column.include.list=shop_1.orders.id,crm\\\\..*\\\\..*\n"
    text = translate_connector(SERVER + lists + columns, "file.properties").text()
    assert 'tables = ["shop_1.orders", "crm.users"]' in text
    assert 'columns = ["shop_1.orders.id", "crm.*.*"]' in text


def test_keys_after_an_error_are_not_reported_as_unknown() -> None:
    text = SERVER + "table.include.list=shop.t[0-9]\ncolumn.exclude.list=shop.users.x\nsnapshot.mod=initial\n"
    with pytest.raises(DefiniteError) as error:
        translate_connector(text, "file.properties").text()
    assert "cannot be written as globs" in str(error.value)
    assert "snapshot.mod is not known" in str(error.value)
    assert "column.exclude.list" not in str(error.value)


def test_a_key_that_is_twice_in_json_is_named() -> None:
    with pytest.raises(DefiniteError, match=r"database\.hostname is given twice"):
        translate_connector('{"database.hostname": "a",\n"database.hostname": "b", "clickhouse.server.url": "ch"}', "file.json")


def test_the_registrys_account_is_kept() -> None:
    text = translate_connector(TOPICS + AVRO + "value.converter.basic.auth.user.info=reader:secret\n", "file.properties").text()
    assert 'registry = "https://reader@registry:8081"  # set HEADRACE_REGISTRY_PASSWORD to the password on line 5 of the file' in text
    assert "secret" not in text


def test_passwords_of_any_form_leave_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = translate_mypipe(mypipe(), "application.conf").text()
    assert "one" not in text
    assert ('password = "${DB_1_PASSWORD}"' in text, 'password = "${DB_1_PASSWORD_2}"' in text) == (True, True)
    assert "s${x" not in translate_connector(SERVER.replace("secret", "s${x"), "file.properties").text()
    (tmp_path / "headrace.toml").write_text(text)
    monkeypatch.setenv("DB_1_PASSWORD", "one${x")
    monkeypatch.setenv("DB_1_PASSWORD_2", "two")
    first, second = load(tmp_path / "headrace.toml").pipes
    assert (first.specs[0].source, second.specs[0].source) == ("mysql://u:one%24%7Bx@h1:3306", "mysql://u:two@h2:3306")
    assert (first.enabled, second.enabled) == (True, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (mypipe(condition='include-event-condition = """db == "a" && db == "b""""'), ["lets no table through", "line 3"]),
        (mypipe(other='"db 1" { source = "h3:3306:u:x" }'), ["another consumer would be called db_1", "rename"]),
        (mypipe(condition="data-dir = 5").replace("b {", '"a/" {').replace("a {", "a_ {"), ["another pipe would be called a_"]),
    ],
)
def test_what_mypipes_file_cannot_mean_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(DefiniteError) as error:
        translate_mypipe(text, "application.conf").text()
    for word in words:
        assert word in str(error.value)
