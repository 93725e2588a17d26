"""ScyllaDB's log in Kafka and on the terminal: a document for each log row, in order, repeated after a crash with the same positions."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from headrace.cli import main
from headrace.cql.session import CqlSession
from headrace.errors import DefiniteError
from headrace.kafka.mypipe.wire_format import POSITION_HEADER
from headrace.model.table_selection import Selection
from headrace.pipes.scylla.tail import Tail
from headrace.sinks.kafka.options import Cleanup, KafkaOptions, MessageFormat
from headrace.sinks.kafka.scylla.log_sink import KafkaLogSink
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.logged_cluster import LoggedCluster

Server = PrivateCassandra | GivenCluster


def _messages(broker: PrivateBroker, topic: str) -> list[Message]:
    """All of a topic, partition by partition."""
    consumer = Consumer(broker.client_settings(group_id="look", auto_offset_reset="earliest", enable_auto_commit=False))
    try:
        found: list[Message] = []
        for partition in consumer.list_topics(topic, timeout=20).topics[topic].partitions:
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=20)
            consumer.assign([place])
            taken: list[Message] = []
            while len(taken) < end:
                taken += consumer.consume(end - len(taken), timeout=5)
            found += taken
        return found
    finally:
        consumer.close()


def _document(message: Message) -> dict[str, Any]:
    return dict(json.loads(message.value() or b""))


def _position(message: Message) -> bytes:
    [(name, value)] = message.headers() or [("", b"")]
    assert name == POSITION_HEADER
    assert isinstance(value, bytes)
    return value


def _replicate(server: Server, cluster: LoggedCluster, broker: PrivateBroker, state: Path, *more: str) -> None:
    source, sink = server.url(cluster.keyspace), f"kafka://{broker.servers}/"
    assert main(["replicate", source, sink, "--state", str(state), "--once", *cluster.settings, *more]) == 0


def _tail(server: Server, cluster: LoggedCluster, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    capsys.readouterr()
    assert main(["tail", server.url(cluster.keyspace), "--once", *cluster.settings, *more]) == 0
    return capsys.readouterr().out.splitlines()


def _write(cluster: LoggedCluster, statements: Sequence[str]) -> None:
    for statement in statements:
        cluster.execute(statement.replace("ks.", f"{cluster.keyspace}."))


def test_the_log_in_kafka_and_on_the_screen(
    cql: CqlSession,
    keyspace: str,
    cassandra: Server,
    broker: PrivateBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    definitions = (
        f"CREATE TYPE {keyspace}.ut (a int, b text); "
        f"CREATE TABLE {keyspace}.t (pk int, ck int, v text, m map<int, text>, l list<int>, u ut, s int static, PRIMARY KEY (pk, ck))"
    )
    cluster = LoggedCluster(cql, keyspace, definitions)
    where = "WHERE pk = 1 AND ck = 1"
    _write(
        cluster,
        [
            "INSERT INTO ks.t (pk, ck, v, m) VALUES (1, 1, 'ä\"', {1: 'one'})",
            f"UPDATE ks.t SET m[2] = 'two', l = l + [7], u.a = 5 {where}",
            f"UPDATE ks.t USING TTL 3600 SET v = 'soon gone', m = m - {{1}} {where}",
            f"UPDATE ks.t SET v = null, u.a = null {where}",
            "UPDATE ks.t SET s = 3 WHERE pk = 1",
            "DELETE FROM ks.t WHERE pk = 1 AND ck >= 2 AND ck < 5",
            "BEGIN BATCH INSERT INTO ks.t (pk, ck) VALUES (2, 1); DELETE FROM ks.t WHERE pk = 3; APPLY BATCH",
        ],
    )
    without_spark(monkeypatch)
    state, topic = tmp_path / "state", f"headrace.{keyspace}.t"
    _replicate(cassandra, cluster, broker, state, "--start-at", "oldest")
    first = _messages(broker, topic)
    assert [_document(one)["operation"] for one in first if one.key() == b'{"pk":1}'] == [
        *("insert", "update", "update", "update", "update", "update", "range_delete")
    ]
    assert sorted((one.key(), _document(one)["operation"]) for one in first)[7:] == [
        (b'{"pk":2}', "insert"),
        (b'{"pk":3}', "partition_delete"),
    ]
    by_key = [_document(one) for one in first if one.key() == b'{"pk":1}']
    assert by_key[0]["set"] == {"v": 'ä"'}
    assert by_key[0]["elements"] == {"m": {"cleared": True, "added": {"1": "one"}}}
    assert list(by_key[1]["elements"]["l"]["added"].values()) == [7]
    # Values with and without TTL are two rows of one batch.
    assert by_key[2]["time"] == by_key[3]["time"]
    assert [by_key[at].get("end_of_batch", False) for at in (2, 3)] == [False, True]
    apart = {by_key[at].get("ttl", 0): by_key[at] for at in (2, 3)}
    assert (apart[3600]["set"], apart[0]["elements"]) == ({"v": "soon gone"}, {"m": {"removed": [1]}})
    assert (by_key[4]["deleted"], by_key[4]["elements"]) == (["v"], {"u": {"removed": ["a"]}})
    assert (by_key[5]["key"], by_key[5]["set"]) == ({"pk": 1}, {"s": 3})
    assert by_key[6]["from"] == {"bound": {"ck": 2}, "inclusive": True}
    assert by_key[6]["to"] == {"bound": {"ck": 5}, "inclusive": False}
    places = [_position(one) for one in first]
    assert len(set(places)) == len(places) == 9

    # The same by `headrace tail`.
    shown = [json.loads(line) for line in _tail(cassandra, cluster, capsys, "--json")]
    assert shown == [document for _, document in sorted(zip(places, map(_document, first), strict=True), key=lambda pair: pair[0])]
    text = _tail(cassandra, cluster, capsys, "--limit", "7")
    assert len(text) == 7
    assert f'{keyspace}.t UPDATE {{"pk":1,"ck":1}} deleted v u: removed ["a"]' in text[4]
    assert text[6].endswith('RANGE DELETE {"pk":1} from {"ck":2} to but not {"ck":5}')

    # The same by a pipe that prints.
    own = ["--state", str(tmp_path / "printing"), "--once", "--start-at", "oldest", *cluster.settings]
    assert main(["replicate", cassandra.url(cluster.keyspace), "stdout:", *own]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(map(json.dumps, printed)) == sorted(map(json.dumps, shown))

    # An uncommitted batch is written again, then the later changes follow. (Without the seal the checkpoint may be old.)
    (state / "seal.json").unlink()
    shutil.rmtree(state / "checkpoint" / "commits")
    for path in (state / "checkpoint" / "offsets").iterdir():
        if path.name != "0":
            path.unlink()
    _write(cluster, ["UPDATE ks.t SET v = 'later' WHERE pk = 1 AND ck = 1"])
    _replicate(cassandra, cluster, broker, state)
    both = _messages(broker, topic)
    assert {_position(one): one.value() for one in first}.items() <= {_position(one): one.value() for one in both}.items()
    assert len({_position(one) for one in both}) == 10
    assert len(both) > 10
    assert [_document(one).get("set") for one in both if one.key() == b'{"pk":1}'][-1] == {"v": "later"}


def test_tail_follows_an_altered_table(cql: CqlSession, keyspace: str, cassandra: Server) -> None:
    cluster = LoggedCluster(cql, keyspace, f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v int)")
    stop = threading.Event()
    documents = Tail(cassandra.address(keyspace), cluster.choices, Selection((f"{keyspace}.t",))).documents(stop)
    _write(cluster, ["UPDATE ks.t SET v = 1 WHERE pk = 0"])
    assert json.loads(next(documents))["set"] == {"v": 1}
    _write(cluster, ["ALTER TABLE ks.t ADD w set<int>", "UPDATE ks.t SET v = 2, w = w + {5} WHERE pk = 0"])
    found = json.loads(next(documents))
    assert (found["set"], found["elements"]) == ({"v": 2}, {"w": {"added": [5]}})
    _write(cluster, ["ALTER TABLE ks.t DROP v", "UPDATE ks.t SET w = null WHERE pk = 0"])
    found = json.loads(next(documents))
    assert ("set" in found, found["elements"]) == (False, {"w": {"cleared": True}})
    stop.set()
    assert list(documents) == []


def test_what_a_log_cannot_be_is_refused() -> None:
    for choices in (KafkaOptions(format=MessageFormat.DEBEZIUM), KafkaOptions(cleanup=Cleanup.COMPACT)):
        with pytest.raises(DefiniteError) as caught:
            KafkaLogSink.from_url("kafka://127.0.0.1:1/", choices)
        assert caught.value.hint
    named = KafkaLogSink.from_url("kafka://127.0.0.1:1/all")
    assert (named.choices.topic, named.address.topic) == ("all", "")
