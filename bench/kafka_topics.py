"""Kafka on both sides, with one broker: Debezium's rate into it, its topics into ClickHouse, and the binary log into topics by Headrace.

Debezium runs as in production, as a connector of Kafka Connect with default settings, and writes JSON without schemas. Its window opens
when its first records are in the broker and closes when all are. The broker's CPU time is reported separately.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from bench.command_usage import read_cpu_s
from bench.contender_run import run_contender
from bench.contenders import load_contender
from bench.contenders.debezium import HEAP_OPTIONS
from bench.corpus import Corpus, default_cache, open_corpus
from bench.process_accounting import descendants, tree_cpu_s
from bench.target import Target
from bench.verdicts import Verdict, at_least
from bench.workload import Workload
from headrace.errors import DefiniteError
from testkit.servers.broker import PrivateBroker
from testkit.servers.debezium import Worker, json_converters, mysql_settings

PREFIX: Final = "debezium"
SERVERS_VARIABLE: Final = "HEADRACE_BENCH_BROKER"
FROM_PER_S, INTO_PER_S = 150_000, 100_000
TIMEOUT_S, POLL_S = 900.0, 0.05
HEADRACE = ("headrace-from-kafka", "headrace-into-kafka")


@dataclass(frozen=True, slots=True)
class Passage:
    """The result of one way."""

    title: str
    note: str
    changes: int
    wall_s: float
    cpu_s: float
    broker_cpu_s: float
    """CPU seconds of the broker during the whole run, not only the window."""

    @property
    def rate(self) -> float:
        return self.changes / self.wall_s


@dataclass(frozen=True, slots=True)
class Topics:
    """The result of the measurement."""

    changes: int
    bytes_per_change: float
    passages: Mapping[str, Passage]

    def table(self) -> Table:
        found = Table(title=f"Kafka: {self.changes:,} changes, {self.bytes_per_change:,.0f} bytes each in Debezium's topics")
        found.add_column("way")
        for heading in ("changes/s", "changes/CPU s", "CPU s per M", "x Debezium", "x Debezium by CPU", "broker CPU s per M"):
            found.add_column(heading, justify="right")
        debezium = self.passages["debezium"]
        for passage in self.passages.values():
            found.add_row(
                passage.title,
                f"{passage.rate:,.0f}",
                f"{passage.changes / passage.cpu_s:,.0f}",
                f"{passage.cpu_s / passage.changes * 1e6:.2f}",
                f"{passage.rate / debezium.rate:.1f}",
                f"{passage.changes / passage.cpu_s / (debezium.changes / debezium.cpu_s):.1f}",
                f"{passage.broker_cpu_s / self.changes * 1e6:.2f}",
            )
        return found

    def verdicts(self) -> list[Verdict]:
        wanted = dict(zip(HEADRACE, (FROM_PER_S, INTO_PER_S), strict=True))
        return [at_least(f"{self.passages[name].title}, changes per second", self.passages[name].rate, wanted[name]) for name in HEADRACE]


def measure_topics(flavour: str, changes: int, console: Console) -> Topics:
    """Measure each way from the same log, one at a time, with the same broker."""
    console.print(f"kafka: {changes:,} changes on {flavour}", highlight=False)
    with (
        open_corpus(flavour, Workload(changes), default_cache()) as corpus,
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        PrivateBroker(Path(directory) / "broker") as broker,
    ):
        passages = {"debezium": _debezium(corpus, broker, Path(directory))}
        _print_rates(console, "debezium", passages["debezium"])
        kept = sum(file.stat().st_size for file in broker.data_dir.glob(f"{PREFIX}.*/*.log"))
        with _broker_address(broker.servers):
            for name in HEADRACE:
                contender = load_contender(name)
                before = _broker_cpu_s(broker)
                window = run_contender(contender, corpus).window
                spent = _broker_cpu_s(broker) - before
                passages[name] = Passage(contender.title, contender.note, window.changes, window.wall_s, window.cpu_s, spent)
                _print_rates(console, name, passages[name])
        return Topics(changes, kept / changes, passages)


def _print_rates(console: Console, name: str, passage: Passage) -> None:
    console.print(f"  {name}: {passage.rate:,.0f}/s, {passage.changes / passage.cpu_s:,.0f} per CPU second", highlight=False)


def records_in(servers: str, wanted: Callable[[str], bool]) -> int:
    """Return the number of records in the wanted topics, provided that none has been deleted."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    try:
        parts = [
            TopicPartition(name, partition)
            for name, topic in consumer.list_topics(timeout=30).topics.items()
            if wanted(name)
            for partition in topic.partitions
        ]
        return sum(consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts)
    finally:
        consumer.close()


def _debezium(corpus: Corpus, broker: PrivateBroker, directory: Path) -> Passage:
    target = corpus.target()
    # A delete produces two records: the event and its tombstone.
    expected = target.changes + target.changes // 10
    before = _broker_cpu_s(broker)
    with Worker(directory / "connect", broker.servers, mariadb=target.flavour == "mariadb", java_options=HEAP_OPTIONS) as worker:
        pid = worker.pid
        assert pid is not None
        worker.add_at("bench", _connector(corpus, target, worker), {"server": PREFIX}, _place(target))
        first = _await(broker, lambda seen: seen > 0)
        began, spent = time.perf_counter(), tree_cpu_s(pid)
        _await(broker, lambda seen: seen >= expected)
        wall_s, cpu_s = time.perf_counter() - began, tree_cpu_s(pid) - spent
    changes = round((expected - first) * target.changes / expected)
    note = "a connector of Kafka Connect, defaults, JSON without schemas"
    return Passage("Debezium to Kafka", note, changes, wall_s, cpu_s, _broker_cpu_s(broker) - before)


def _connector(corpus: Corpus, target: Target, worker: Worker) -> dict[str, str]:
    return {
        **mysql_settings(corpus.server, PREFIX, worker.history_file("bench"), [target.database]),
        **json_converters(schemas=False),
        # Only the definitions of the tables are read, not their rows. The changes then start at the stored offset.
        "snapshot.mode": "recovery",
        "include.schema.changes": "false",
    }


def _place(target: Target) -> dict[str, object]:
    place: dict[str, object] = {"file": target.start_file, "pos": target.start_position}
    return {**place, "gtids": target.start_gtids} if target.flavour == "mysql" else place


def _await(broker: PrivateBroker, holds: Callable[[int], bool]) -> int:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds(seen := records_in(broker.servers, lambda topic: topic.startswith(f"{PREFIX}."))):
        if time.monotonic() > deadline:
            raise DefiniteError(f"Debezium has sent {seen} records after {TIMEOUT_S:.0f} s", place=broker.servers)
        time.sleep(POLL_S)
    return seen


def _broker_cpu_s(broker: PrivateBroker) -> float:
    assert broker.pid is not None
    assert not descendants(broker.pid)
    return read_cpu_s(broker.pid)


@contextmanager
def _broker_address(servers: str) -> Iterator[None]:
    """Pass the broker's address to the contenders and to the checks of their results."""
    os.environ[SERVERS_VARIABLE] = servers
    try:
        yield
    finally:
        del os.environ[SERVERS_VARIABLE]
