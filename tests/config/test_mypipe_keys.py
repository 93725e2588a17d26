"""Every key of mypipe's reference and example files is translated, unneeded with a reason, or rejected with a reason."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace.config import load
from headrace.config.importers.mypipe import TableCondition, parse_condition, translate_mypipe
from headrace.errors import DefiniteError

KAFKA = "mypipe.kafka.producer.KafkaMutation{}AvroProducer"
FILE_POSITIONS = "mypipe.api.repo.ConfigurableFileBasedBinaryLogPositionRepository"
TABLE_POSITIONS = "mypipe.api.repo.ConfigurableMySQLBasedBinaryLogPositionRepository"
BASE = """
mypipe.consumers.localhost.source = "localhost:3306:mypipe:mypipe"
mypipe.producers.stdout.class = "mypipe.kafka.producer.stdout.StdoutProducer"
mypipe.pipes.stdout.consumers = [localhost]
mypipe.pipes.stdout.producer.stdout {}
"""
GENERIC = f"""
mypipe.producers.kafka-generic.class = "{KAFKA.format("Generic")}"
mypipe.pipes.k {{ consumers = [localhost], producer.kafka-generic.metadata-brokers = "localhost:9092" }}
"""
SPECIFIC = GENERIC.replace("Generic", "Specific").replace("generic", "specific")
REPO = "mypipe.pipes.stdout.binlog-position-repo"
MYSQL_REPO = f"""
{REPO} {{ class = "{TABLE_POSITIONS}", config {{ source = "h:3306:u:p", database = "mypipe", table = "binlogpos", id = "kafka-generic" }} }}
"""
ON_ERROR = "an error halts the pipe; headrace skip skips one event"
REGISTRY = "registry of the sink sets the place of Avro schemas"

UNNEEDED = [
    # mypipe-api: reference.conf
    ('mypipe.data-dir = "/tmp/mypipe/data"', "mypipe.data-dir (line 2): the state directory stores positions"),
    ('mypipe.log-dir = "/tmp/mypipe/logs"', "mypipe.log-dir (line 2): the log is written to the standard error"),
    ("mypipe.shutdown-wait-time-seconds = 300", "pipes stop after the current batch"),
    ("mypipe.flush-interval-seconds = 10", "flush_seconds of a source limits its time"),
    ("mypipe.group-events-by-tx = true", "mypipe.group-events-by-tx (line 2): transactions are never split"),
    ("mypipe.group-mutations-by-tx = true", "mypipe.group-mutations-by-tx (line 2): transactions are never split"),
    ('mypipe.error.handler.default.class = "mypipe.mysql.ConfigBasedErrorHandler"', f"mypipe.error.handler (line 2): {ON_ERROR}"),
    ("mypipe.error.quit-on-event-handler-failure = true", f"mypipe.error.quit-on-event-handler-failure (line 2): {ON_ERROR}"),
    ("mypipe.error.quit-on-event-decode-failure = true", f"mypipe.error.quit-on-event-decode-failure (line 2): {ON_ERROR}"),
    ("mypipe.error.quit-on-listener-failure = true", f"mypipe.error.quit-on-listener-failure (line 2): {ON_ERROR}"),
    ("mypipe.error.quit-on-empty-mutation-commit-failure = false", f"quit-on-empty-mutation-commit-failure (line 2): {ON_ERROR}"),
    ("mypipe.mysql-server-id-prefix = 1456", "Headrace chooses a free id"),
    ("akka.log-dead-letters-during-shutdown = off", "akka (line 2): there is no Akka here"),
    # mypipe-runner: application.example.conf
    ('mypipe.schema-repo-client = "mypipe.avro.schema.SchemaRepo"', f"mypipe.schema-repo-client (line 2): {REGISTRY}"),
    (f'{REPO}.class = "{FILE_POSITIONS}"', f"{REPO} (line 2): the state directory stores positions"),
    (f"{REPO}.config {{ file-prefix = stdout-00, data-dir = /tmp/none }}", f"{REPO} (line 2): the state directory stores positions"),
    (MYSQL_REPO, "SELECT CONCAT(filename, ':', position) FROM mypipe.binlogpos WHERE id = 'kafka-generic' as start_at of the source"),
    # mypipe's README and test.conf
    (SPECIFIC + "mypipe.pipes.k.producer.kafka-specific.schema-repo-client = mypipe.avro.schema.SchemaRepo", REGISTRY),
    (GENERIC + "mypipe.pipes.k.producer.kafka-generic.schema-repo-client = any", "the schemas of generic messages are built in"),
    (GENERIC + 'mypipe.pipes.k.producer.kafka-generic.zk-connect = "localhost:2181"', "Headrace does not use ZooKeeper"),
    ("mypipe.test { max-latency = 10.0, database.info = x }", "mypipe.test (line 2): only mypipe's own tests read it"),
    ("mypipe.consumers.localhost.class = mypipe.mysql.MySQLBinaryLogConsumer", "localhost.class (line 2): sources read the binary log"),
]
TRANSLATED = [
    ("", 'url = "stdout:"'),
    ("", 'url = "mysql://mypipe@localhost:3306"'),
    ("mypipe.pipes.stdout.enabled = false", "enabled = false"),
    ('mypipe.include-event-condition = ""', 'tables = ["*.*"]'),
    ('mypipe.include-event-condition = """ table != "binlogpos" """', 'exclude = ["*.binlogpos"]'),
    ('mypipe.include-event-condition = """ db == "mypipe" && table =="user" """', 'tables = ["mypipe.user"]'),
    (GENERIC, 'url = "kafka://localhost:9092"'),
    (GENERIC + 'mypipe.kafka.generic-producer.topic-format = "${db}_${table}_g"', 'topic = "${db}_${table}_g"'),
    (SPECIFIC + 'mypipe.kafka.specific-producer.topic-format = "${db}_${table}_s"', 'topic = "${db}_${table}_s"'),
    (SPECIFIC, 'registry = "schemas"'),
]
REJECTED = [
    # mypipe-runner and mypipe-snapshotter: application.conf
    ('include "application.overrides"', "include", "put that file's content here"),
    # mypipe-snapshotter: application.example.conf
    ("mypipe.snapshotter.database.info = x", "mypipe.snapshotter", "each pipe then begins with a snapshot"),
    ("mypipe.consumers.localhost.class = mypipe.snapshotter.SelectConsumer", "SelectConsumer", "remove it: sources read the binary log"),
    ("mypipe.error.handler.default.class = com.us.Handler", "error handler 'com.us.Handler'", f"remove it: {ON_ERROR}"),
    ("mypipe.error.quit-on-anything = true", "mypipe.error.quit-on-anything", "known: handler"),
    (f"{REPO}.class = mypipe.api.repo.ConfigurableKafkaBasedBinaryLogPositionRepository", "cannot read the positions", "remove it"),
    (f"{REPO}.config.id = x", "binlog-position-repo.config.id is no setting", "known: file-prefix, data-dir"),
    (SPECIFIC + "mypipe.pipes.k.producer.kafka-specific.schema-repo-client = com.us.Repo", "client 'com.us.Repo'", "remove it: registry"),
]


@pytest.mark.parametrize(("line", "note"), UNNEEDED)
def test_an_unneeded_key_has_a_reason(line: str, note: str) -> None:
    assert note in translate_mypipe(f"\n{line.strip()}\n{BASE}", "application.conf").text()


@pytest.mark.parametrize(("line", "written"), TRANSLATED)
def test_a_key_is_translated(tmp_path: Path, line: str, written: str) -> None:
    file = tmp_path / "application.conf"
    file.write_text(f"{line}\n{BASE}")
    assert written in translate_mypipe(file.read_text(), str(file)).text()
    load(file)


@pytest.mark.parametrize(("line", "message", "remedy"), REJECTED)
def test_a_rejected_key_has_a_reason_and_a_remedy(line: str, message: str, remedy: str) -> None:
    with pytest.raises(DefiniteError) as error:
        translate_mypipe(f"{BASE}\n{line}\n", "application.conf").text()
    assert message in str(error.value)
    assert remedy in str(error.value)
    # The remedy: without the key, the file is valid.
    assert translate_mypipe(BASE, "application.conf").text()


def test_a_position_in_a_table_is_reported_and_files_of_other_pipes_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "stdout-localhost-3306.pos").write_text("binlog.000007:4711")
    with caplog.at_level(logging.WARNING):
        text = translate_mypipe(f"mypipe.data-dir = {tmp_path}\n{MYSQL_REPO}\n{BASE}", "application.conf").text()
    assert 'start_at = "now"' in text
    assert "SELECT CONCAT(filename, ':', position) FROM mypipe.binlogpos" in caplog.text
    # The remedy: the result of the query is a value of start_at.
    (tmp_path / "headrace.toml").write_text(text.replace('start_at = "now"', 'start_at = "binlog.000007:4711"').replace("${", "$${"))
    assert load(tmp_path / "headrace.toml").pipes[0].specs[0].settings.start_at == "binlog.000007:4711"


def test_the_file_of_a_position_repository_is_read(tmp_path: Path) -> None:
    (tmp_path / "stdout-00-localhost-3306.pos").write_text("binlog.000007:4711")
    repository = f'{REPO} {{ class = "{FILE_POSITIONS}", config {{ file-prefix = "stdout-00", data-dir = "{tmp_path}" }} }}'
    assert 'start_at = "binlog.000007:4711"' in translate_mypipe(f"{BASE}\n{repository}", "application.conf").text()


def test_a_snapshotters_file_runs_after_its_remedy(tmp_path: Path) -> None:
    text = translate_mypipe(BASE, "application.conf").text().replace("${", "$${")
    without = "\n".join(line for line in text.splitlines() if not line.startswith("start_at"))
    (tmp_path / "headrace.toml").write_text(without)
    assert load(tmp_path / "headrace.toml").pipes[0].specs[0].settings.start_at != "now"


def test_conditions_exclude_tables() -> None:
    assert parse_condition('table != "a" && db != "b"', "") == TableCondition(("*.*",), ("*.a", "b.*"))
    assert parse_condition('db == "x" && (table != "a")', "") == TableCondition(("x.*",), ("*.a",))
    assert parse_condition('db == "x" && db != "y"', "") == TableCondition(("x.*",))
    assert parse_condition('(db == "x" || db == "y") && table != "a"', "") == TableCondition(("x.*", "y.*"), ("*.a",))
    with pytest.raises(DefiniteError, match="exclude different tables"):
        parse_condition('table != "a" || db != "b"', "here")
    with pytest.raises(DefiniteError, match="lets no table through"):
        parse_condition('table != "a" && table == "a"', "here")
