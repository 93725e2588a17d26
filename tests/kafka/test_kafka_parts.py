"""Downloads from Maven Central: their checksums are verified, and they run."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

import headrace.kafka
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.spark.connector import (
    CONNECTOR,
    JARS_VARIABLE,
    REPOSITORY_VARIABLE,
    Pin,
    cached,
    fetch,
    kafka_settings,
    parse_pin,
    repositories,
)
from testkit.servers.broker import PrivateBroker, silent
from testkit.servers.schema_registry import PrivateRegistry


def test_a_broker_with_accounts_requires_a_login(fresh_broker: Callable[..., PrivateBroker]) -> None:
    broker = fresh_broker(accounts={"reader": "s3cret/word"})
    topic = broker.create_topic("guarded")
    address = parse_kafka_url(broker.url(topic).replace("s3cret/word", "s3cret%2Fword"))
    metadata = AdminClient({**address.client_settings(), "logger": silent}).list_topics(timeout=10)
    assert "guarded" in metadata.topics
    broker.produce(topic, [{"value": b'{"op":"c","before":null,"after":{"id":1},"source":{"table":"t"}}'}])
    url = broker.url(topic).replace("s3cret/word", "s3cret%2Fword")
    assert [change.new for change in headrace.kafka.changes(url, until_end=True)] == [{"id": 1}]
    with pytest.raises(DefiniteError, match="Authentication failed") as refused:
        list(headrace.kafka.changes(url.replace("s3cret%2Fword", "wrong"), until_end=True))
    assert "password" in refused.value.hint
    assert "wrong" not in str(refused.value)


def test_the_registry_speaks_as_confluents_does(schema_registry: PrivateRegistry) -> None:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        _use(client)


def _use(client: SchemaRegistryClient) -> None:
    first = Schema('{"type":"record","name":"t","fields":[{"name":"a","type":"int"}]}', "AVRO")
    number = client.register_schema("parts-value", first)
    assert client.register_schema("parts-value", first) == number
    assert client.get_latest_version("parts-value").schema_id == number
    client.set_compatibility("parts-value", "BACKWARD")
    worse = Schema('{"type":"record","name":"t","fields":[{"name":"b","type":"string"}]}', "AVRO")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("parts-value", worse)
    assert refused.value.http_status_code == 409


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private Maven repository, and an empty cache."""
    root = tmp_path / "repository"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(REPOSITORY_VARIABLE, f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
        yield root
        server.shutdown()


def _publish(root: Path, content: bytes) -> Pin:
    pin = Pin("org.example", "part", "1.0", hashlib.sha256(content).hexdigest())
    (root / pin.path).parent.mkdir(parents=True, exist_ok=True)
    (root / pin.path).write_bytes(content)
    return pin


def test_a_jar_is_kept_only_if_it_is_the_one_that_is_pinned(repository: Path) -> None:
    pin = _publish(repository, b"the jar")
    assert parse_pin(str(pin)) == pin
    folder = fetch("parts", [pin])
    assert (folder / "part-1.0.jar").read_bytes() == b"the jar"
    (repository / pin.path).unlink()
    assert fetch("parts", [pin]) == folder  # (from the cache)

    other = Pin("org.example", "part", "1.0", "0" * 64)
    _publish(repository, b"another jar")
    with pytest.raises(DefiniteError, match="is not the one that is pinned"):
        fetch("parts", [other])
    assert not cached("parts", [other]).exists()
    with pytest.raises(DefiniteError, match=r"has no gone-2\.0\.jar"):
        fetch("parts", [Pin("org.example", "gone", "2.0", "0" * 64)])


def test_the_connector_is_found_in_a_folder_by_coordinates_or_fetched(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    with pytest.raises(DefiniteError, match="has no spark-sql-kafka-0-10"):
        kafka_settings(str(folder))
    jar = folder / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    jar.touch()
    assert kafka_settings(str(folder)) == {"spark.jars": str(jar)}
    monkeypatch.setenv(JARS_VARIABLE, "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0")
    assert kafka_settings() == {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"}
    monkeypatch.delenv(JARS_VARIABLE)
    with pytest.raises(DefiniteError, match="no folder of jars") as wrong:
        kafka_settings(str(tmp_path / "nowhere"))
    assert "--kafka-jars" in wrong.value.hint
    with pytest.raises(DefiniteError, match="is not here and cannot be fetched"):
        kafka_settings()
    assert not cached("spark-kafka", CONNECTOR).exists()
    assert not list(repository.iterdir())


def test_the_default_repository_is_the_one_that_spark_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(REPOSITORY_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    known = repositories()
    assert known
    assert all(address.startswith("https://") for address in known)
    settings = "<settings><mirrors><mirror><mirrorOf>central</mirrorOf><url>https://mirror.example/m2/</url></mirror></mirrors></settings>"
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(settings)
    assert repositories()[0] == "https://mirror.example/m2"
