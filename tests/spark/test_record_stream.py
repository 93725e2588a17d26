"""Spark's stream of Kafka records: when its batches begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from headrace.kafka.address import parse_kafka_url
from headrace.runtime.interface import RunRanges
from headrace.sources.debezium.offset_range_reader import OffsetRange, Subscription
from headrace.spark.connector import kafka_settings
from headrace.spark.spark_runtime import SparkRuntime
from testkit.machine.wait_condition import wait_until
from testkit.servers.broker import PrivateBroker

LATENCY_S = 2.0


def test_steady_records_are_batches_at_intervals(broker: PrivateBroker, tmp_path: Path) -> None:
    topic = broker.create_topic()
    ended = threading.Event()
    begun: list[float] = []
    counts: list[int] = []

    def run(run_ranges: RunRanges, ranges: Sequence[OffsetRange], number: int) -> None:
        del run_ranges, number
        begun.append(time.monotonic())
        counts.append(sum(one.end - one.start for one in ranges))

    def write() -> None:
        while not ended.wait(0.05):
            broker.produce(topic, [{"value": b"x"}])

    writer = threading.Thread(target=write)
    subscription = Subscription(parse_kafka_url(broker.url()), topic, latency_s=LATENCY_S)
    with SparkRuntime().session("local[2]", tmp_path, spark_log=False, preload=(), more=kafka_settings()) as session:
        stream = session.stream_records(subscription, tmp_path / "checkpoint", run)
        try:
            writer.start()
            wait_until(lambda: stream.wait(0.1) or len(begun) >= 5, 120)
            ended.set()
            writer.join()
            assert min(later - earlier for earlier, later in pairwise(begun[1:])) >= LATENCY_S
            # A record after a pause does not wait.
            time.sleep(2 * LATENCY_S)
            before, sent_s = len(begun), time.monotonic()
            broker.produce(topic, [{"value": b"x"}])
            wait_until(lambda: stream.wait(0.01) or len(begun) > before, 60)
            assert begun[-1] - sent_s < LATENCY_S
        finally:
            ended.set()
            stopped_s = time.monotonic()
            stream.stop()
        assert time.monotonic() - stopped_s < LATENCY_S
    assert sum(counts) >= 6
