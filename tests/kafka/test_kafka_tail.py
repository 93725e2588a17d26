"""`headrace tail` of topics: every message, and errors of its arguments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from headrace.errors import DefiniteError
from headrace.kafka.consumers.consumer import ConsumerSettings
from headrace.kafka.consumers.tail import tail
from headrace.kafka.mypipe.wire_format import (
    Mutation,
)
from testkit.generators.mypipe_messages import GUID, generic_message, insert_message, position_header
from testkit.servers.broker import PrivateBroker


def test_tail_prints_every_message_of_either_kind_and_follows_until_it_is_stopped(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    update = {"old_integers": {"id": 1}, "new_integers": {"id": 1}, "new_bytes": {"raw": b"\xff"}}
    envelope = {"before": None, "after": {"id": 3}, "source": {"db": "shop", "table": "orders", "ts_ms": 0}, "op": "c"}
    truncation = {"op": "t", "before": None, "after": None}
    broker.produce(
        topic,
        [
            {"value": insert_message(1), "headers": position_header(7)},
            {"value": generic_message(Mutation.UPDATE, **update)},
            {"value": b"?!", "key": b"odd"},
            {"value": json.dumps(envelope).encode()},
            {"value": json.dumps(truncation).encode()},
            {"value": None, "key": b'{"id":1}'},
        ],
    )
    command = [sys.executable, "-m", "headrace", "tail"]
    done = subprocess.run([*command, broker.url(topic), "--once", "--json"], check=True, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["insert", "update", "unreadable", "insert", "event", "tombstone"]
    assert [line["offset"] for line in lines] == list(range(6))
    assert (lines[0]["new"], lines[0]["position"], lines[0]["transaction"]) == ({"id": 1, "state": "s1"}, 7, str(GUID))
    assert lines[1]["new"] == {"id": 1, "raw": "0xff"}
    assert "neither JSON nor Avro" in lines[2]["text"]
    assert (lines[3]["table"], lines[3]["new"]) == ("orders", {"id": 3})
    assert json.loads(lines[4]["text"])["op"] == "t"
    assert lines[5]["key"] == '{"id":1}'

    with subprocess.Popen([*command, broker.url(topic), "--offset", "-1"], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == f'{topic}[0]@5 TOMBSTONE key {{"id":1}}\n'
        broker.produce(topic, [{"value": generic_message(Mutation.DELETE, integers={"id": 9}), "headers": position_header(30)}])
        line = following.stdout.readline()
        assert line.startswith(f"{topic}[0]@6 ")
        assert f'- DELETE shop.orders {{"id":9}} position=30 transaction={GUID}' in line
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130


def test_tail_says_what_is_wrong_with_its_arguments(broker: PrivateBroker) -> None:
    topic = broker.create_topic()
    reading = ConsumerSettings(broker.url(topic), start="soon")
    with pytest.raises(DefiniteError, match="no place to start"):
        next(tail(reading, once=True))
    with pytest.raises(DefiniteError, match="its next one is 0"):
        next(tail(ConsumerSettings(broker.url(topic), start="5"), once=True))
    with pytest.raises(DefiniteError, match="no topic is named"):
        next(tail(ConsumerSettings(broker.url("")), once=True))
    assert not list(tail(ConsumerSettings(broker.url(topic)), once=True))
