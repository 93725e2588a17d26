"""A private Kafka broker: one process (broker and controller) with its own directory and ports on 127.0.0.1.

Topics are not created automatically.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.demo.private_process import PrivateProcess, find_free_port
from headrace.demo.private_server import run_to_end
from headrace.errors import TransientError
from testkit.servers.cache import cache_dir, class_data_options, hold_lock
from testkit.servers.certificates import Authority, Pair
from testkit.servers.maven_fetch import fetch_broker, java_program

REPLY_TIMEOUT_S = 60.0
CLUSTER = "headraceTestKafkaBrokA"
JAVA = (java_program(), "-Xms64m", "-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = ("-Xlog:disable", "-Xlog:all=off", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")

silent = logging.getLogger("headrace.testkit.servers.broker")
"""The logger of clients that lose their broker, which tests cause on purpose."""
silent.addHandler(logging.NullHandler())
silent.propagate = False


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """The certificates of a broker and its clients, signed by one authority. Both sides must present theirs."""

    authority: Authority
    broker: Pair
    client: Pair

    @classmethod
    def made(cls, directory: Path) -> Self:
        authority = Authority(directory, "authority")
        return cls(authority, authority.issue("broker", hosts=("127.0.0.1",)), authority.issue("client"))

    def client_properties(self) -> dict[str, str]:
        """By librdkafka's names."""
        own = {"ssl.certificate.location": str(self.client.cert), "ssl.key.location": str(self.client.key)}
        return {"ssl.ca.location": str(self.authority.cert), **own}

    def broker_properties(self, directory: Path) -> dict[str, object]:
        """Settings of the client listener; Kafka reads a key and its certificates from one file."""
        store = directory / "broker.pem"
        store.write_bytes(self.broker.key.read_bytes() + self.broker.cert.read_bytes())
        stores: dict[str, object] = {
            "keystore.type": "PEM",
            "keystore.location": store,
            "truststore.type": "PEM",
            "truststore.location": self.authority.cert,
            "client.auth": "required",
        }
        return {f"listener.name.clients.ssl.{name}": value for name, value in stores.items()}


class PrivateBroker(PrivateProcess):
    """One broker with its own directory. With `accounts` (name to password) its clients must log in by SASL/PLAIN; with `tls` they must
    present a certificate."""

    log_name = "broker.log"

    def __init__(
        self, directory: Path, accounts: Mapping[str, str] | None = None, tls: BrokerTls | None = None, **settings: object
    ) -> None:
        super().__init__("the broker", directory)
        self.accounts, self.tls = dict(accounts or {}), tls
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.port, self._controller_port = find_free_port(), find_free_port()
        self.java_options: Sequence[str] | None = None
        self._asking: AdminClient | None = None

    @property
    def servers(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def url(self, topic: str = "") -> str:
        """The broker's address in the form that the `headrace` command takes."""
        user = "".join(f"{user}:{password}@" for user, password in list(self.accounts.items())[:1])
        return f"kafka://{user}{self.servers}/{topic}" + (f"?{urlencode(self._security())}" if self._security() else "")

    def client_settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a client of confluent-kafka's; `more` with underscores for dots."""
        found: dict[str, Any] = {"bootstrap.servers": self.servers, "logger": silent}
        found |= self._security()
        if self.accounts:
            user, password = next(iter(self.accounts.items()))
            found |= {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
        return {**found, **{name.replace("_", "."): value for name, value in more.items()}}

    def create_topic(self, name: str | None = None, partitions: int = 1, *, compact: bool = False, **settings: object) -> str:
        """Create a topic (with a random name unless one is given); return when it is writable."""
        topic = name or f"topic_{secrets.token_hex(4)}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        if compact:
            config.setdefault("cleanup.policy", "compact")
        admin = self.admin()  # (kept: what a client promised goes with it)
        admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)])[topic].result(
            REPLY_TIMEOUT_S
        )
        return topic

    def produce(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Send records (arguments of confluent-kafka's `produce`: `key`, `value`, `headers`, `partition`…); return when all are
        acknowledged."""
        failures: list[object] = []
        producer = Producer(self.client_settings(acks="all", linger_ms=1))
        for record in records:
            while True:
                try:
                    producer.produce(topic, on_delivery=lambda error, _: failures.append(error) if error else None, **record)
                    break
                except BufferError:
                    producer.poll(0.1)
        left = producer.flush(REPLY_TIMEOUT_S)
        if left or failures:
            raise TransientError(f"{left or len(failures)} records were not taken in: {failures[:1]}", place=f"{self.servers}/{topic}")

    def admin(self) -> AdminClient:
        return AdminClient(self.client_settings())

    @property
    def _protocol(self) -> str:
        return ("SASL_" if self.accounts else "") + ("SSL" if self.tls is not None else "PLAINTEXT")

    def _security(self) -> dict[str, str]:
        plain = {} if self._protocol == "PLAINTEXT" else {"security.protocol": self._protocol}
        return {**plain, **(self.tls.client_properties() if self.tls is not None else {})}

    def _prepare(self) -> None:
        self._asking = None
        if not self.data_dir.exists():
            making = self.directory / "data.making"
            shutil.rmtree(making, ignore_errors=True)
            shutil.copytree(_template(), making)
            making.rename(self.data_dir)

    def _write_settings(self) -> Path:
        settings: dict[str, object] = {
            **_common_settings(self.data_dir, self._controller_port),
            "listeners": f"CLIENTS://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{self.port}",
            "inter.broker.listener.name": "CLIENTS",
            "listener.security.protocol.map": f"CLIENTS:{self._protocol},CONTROLLER:PLAINTEXT",
        }
        if self.tls is not None:
            settings |= self.tls.broker_properties(self.directory)
        if self.accounts:
            inner = secrets.token_hex(8)
            users = " ".join(f'user_{name}="{password}"' for name, password in {**self.accounts, "broker": inner}.items())
            login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="{inner}" {users};'
            settings |= {"sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
            settings["listener.name.clients.plain.sasl.jaas.config"] = login
        return _write(self.directory / "server.properties", {**settings, **self.settings})

    def _command(self) -> list[str]:
        options = _archive_options() if self.java_options is None else self.java_options
        return [*JAVA, *_QUIET, *options, "-cp", _class_path(), "kafka.Kafka", str(self._write_settings())]

    def _answers(self) -> bool:
        if self._asking is None:
            self._asking = AdminClient(self.client_settings(reconnect_backoff_ms=20, reconnect_backoff_max_ms=60))
        try:
            return bool(self._asking.list_topics(timeout=0.5).brokers)
        except KafkaException as error:
            self._refusal = str(error)
            return False

    def _complete(self) -> None:
        self._asking = None


def _common_settings(data_dir: Path, controller_port: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}",
        "inter.broker.listener.name": "CLIENTS",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data_dir,
        "auto.create.topics.enable": False,
        "delete.topic.enable": True,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 1,
        "num.io.threads": 2,
        "background.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.cleaner.backoff.ms": 200,
        # After a kill the controller accepts the broker only when the session of the killed one has ended.
        "broker.session.timeout.ms": 2500,
        "broker.heartbeat.interval.ms": 400,
        "initial.broker.registration.timeout.ms": 60000,
    }


def _write(path: Path, settings: Mapping[str, object]) -> Path:
    path.unlink(missing_ok=True)
    words = {True: "true", False: "false"}
    lines = [f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in settings.items()]
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


@functools.cache
def _class_path() -> str:
    return os.pathsep.join(map(str, sorted(fetch_broker().glob("*.jar"))))


@functools.cache
def _template() -> Path:
    """Return an empty data directory, made once by Kafka's own tool."""
    template = cache_dir() / f"data-{fetch_broker().name}"
    with hold_lock("data-kafka"):
        if not template.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-data-kafka-", dir=cache_dir()) as scratch:
                settings = _write(Path(scratch) / "server.properties", _common_settings(Path(scratch) / "data", 9093))
                tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
                run_to_end([*JAVA, *_QUIET, "-cp", _class_path(), *tool])
                (Path(scratch) / "data").rename(template)
    return template


@functools.cache
def _archive_options() -> Sequence[str]:
    return class_data_options(fetch_broker().name, _run_once)


def _run_once(directory: Path, options: Sequence[str]) -> None:
    broker = PrivateBroker(directory)
    broker.java_options = options
    with broker:
        broker.produce(broker.create_topic(), [{"value": b"x"}])
