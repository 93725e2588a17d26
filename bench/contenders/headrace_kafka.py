"""Headrace with Kafka on one side: Debezium's topics into embedded ClickHouse, and the log into topics of mypipe's generic messages.

All processes are counted except the broker and the database. The window opens when the first batch is in the sink and closes when the
batch with the last change is. Afterwards, outside the measurement, the tables are compared with the source's by count and checksum, and
the topics must hold one message per change.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.contenders.base import Command, Window, python_command, read_window
from bench.contenders.headrace_replicate import SINK_DIRECTORY, address_of, checked_window
from bench.contenders.progress_timer import StreamTimer
from bench.kafka_topics import PREFIX, SERVERS_VARIABLE, records_in
from bench.process_accounting import Usage
from bench.schemas import capture_tables
from bench.target import Target
from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.pipe import DebeziumPipe
from headrace.pipes.debezium.topic_settings import TopicSettings, topic_pattern
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink, open_sink
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import UserSettings

BATCH_RECORDS = 200_000


class HeadraceFromTopics:
    """Debezium's JSON events without schemas into existing tables."""

    title = "Headrace, Debezium's topics to ClickHouse"
    note = f"JSON without schemas, types from the target's tables, {BATCH_RECORDS:,} records a batch; result compared with the source"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace-from-kafka", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return checked_window(target, scratch, target.changes)

    def read(self, target: Target) -> Window:
        timer = StreamTimer(target.changes)
        topics = TopicSettings(topic_pattern([f"{PREFIX}.{target.database}.*"], "", ""), max_offsets=BATCH_RECORDS)
        settings = PipeSettings(Selection((f"{target.database}.*",)), Path.cwd() / "state", once=True)
        with open_clickhouse_sink(f"chdb:{SINK_DIRECTORY}", creates=True) as named:
            named.sink.prepare(capture_tables(target))
            DebeziumPipe(KafkaAddress(os.environ[SERVERS_VARIABLE]), topics, named.sink, named.name, settings, timer).run()
        return timer.window()


class HeadraceIntoTopics:
    """The log into topics of mypipe's generic messages."""

    title = "Headrace, MySQL to Kafka"
    note = "mypipe's generic Avro messages, acks=all, idempotent, keyed, a header each; one message for each change"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("headrace-into-kafka", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        window = read_window(scratch)
        sent = records_in(os.environ[SERVERS_VARIABLE], lambda topic: topic.endswith("_generic"))
        if (window.total_changes, sent) != (target.changes, target.changes):
            raise DefiniteError(f"Headrace sent {sent} messages for {target.changes} changes", place=os.environ[SERVERS_VARIABLE])
        return window

    def read(self, target: Target) -> Window:
        timer = StreamTimer(target.changes)
        start = f"{target.start_file}:{target.start_position}"
        state = Path.cwd() / "state"
        settings = PipeSettings(Selection((f"{target.database}.*",)), state, once=True, start_at=start, snapshot=SnapshotMode.NONE)
        with open_sink(f"kafka://{os.environ[SERVERS_VARIABLE]}", UserSettings(), state, "127.0.0.1") as named:
            MySQLPipe(address_of(target), named.sink, named.name, settings, timer).run()
        return timer.window()
