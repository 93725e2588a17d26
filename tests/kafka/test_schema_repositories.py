"""The contract of schema repositories: memory, a directory of files, and a real registry (Apicurio, by Confluent's interface)."""

from __future__ import annotations

import http.server
import json
import multiprocessing
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.avro.schema import AvroSchema, parse_schema, schema_of
from headrace.kafka.registry import DirectoryRepository, MemoryRepository, open_repository, secret_name_in
from headrace.kafka.registry_http import HttpRepository, client_settings
from headrace.kafka.schema_repository import Compatibility, SchemaRepository, find_conflicts
from headrace.settings.settings_file import parse_set_flag
from testkit.servers.schema_registry import PrivateRegistry


@pytest.fixture(params=["memory", "directory", "registry"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> SchemaRepository:
    if request.param == "memory":
        return MemoryRepository()
    if request.param == "directory":
        return open_repository(str(tmp_path / "schemas"))
    registry: PrivateRegistry = request.getfixturevalue("schema_registry")
    # In Apicurio each subject has the rule of its registry; Confluent's default is BACKWARD.
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.set_compatibility(level="BACKWARD")
    return open_repository(registry.url)


def record(*fields: dict[str, Any], name: str = "Row") -> AvroSchema:
    return schema_of({"type": "record", "name": name, "namespace": "shop", "fields": list(fields)})


ID: dict[str, Any] = {"name": "id", "type": "long"}
NOTE: dict[str, Any] = {"name": "note", "type": ["null", "string"], "default": None}


def test_schemas_by_subject_and_id(repository: SchemaRepository) -> None:
    subject = f"shop_orders_insert-{secrets.token_hex(4)}"
    name = f"Row{secrets.token_hex(4)}"
    first, second = record(ID, name=name), record(ID, NOTE, name=name)
    assert repository.latest(subject) is None
    assert repository.check(subject, first) == ()
    number = repository.register(subject, first)
    assert repository.register(subject, first) == number
    assert repository.by_id(number).root == first.root
    assert repository.check(subject, second) == ()
    other = repository.register(subject, second)
    assert other != number
    latest = repository.latest(subject)
    assert latest is not None
    assert (latest.id, latest.version, latest.schema.root) == (other, 2, second.root)
    # An old schema keeps its id.
    assert repository.register(subject, first) == number
    latest = repository.latest(subject)
    assert latest is not None
    assert latest.id == other
    # The same schema under another subject is the same schema.
    assert repository.register(f"{subject}_copy", second) == other


def test_a_schema_that_cannot_read_what_was_written_is_refused(repository: SchemaRepository) -> None:
    subject, name = f"strict-{secrets.token_hex(4)}", f"Row{secrets.token_hex(4)}"
    repository.register(subject, record(ID, name=name))
    wrong = record(ID, {"name": "must", "type": "string"}, name=name)
    assert repository.check(subject, wrong) != ()
    with pytest.raises(DefiniteError, match="cannot follow the last one") as caught:
        repository.register(subject, wrong)
    assert "compatibility" in caught.value.hint
    latest = repository.latest(subject)
    assert latest is not None
    assert latest.version == 1


def test_an_unknown_id_is_an_error(repository: SchemaRepository) -> None:
    with pytest.raises(DefiniteError):
        repository.by_id(2_000_000)


def test_what_confluents_client_registered_is_read_and_the_other_way(schema_registry: PrivateRegistry) -> None:
    ours = HttpRepository(schema_registry.url)
    name, subject = f"Row{secrets.token_hex(4)}", f"both-{secrets.token_hex(4)}"
    schema = record(ID, name=name)
    with SchemaRegistryClient({"url": schema_registry.url}) as theirs:
        number = theirs.register_schema(subject, Schema(schema.text, "AVRO"))
        assert ours.by_id(number).root == schema.root
        other = ours.register(subject, record(ID, NOTE, name=name))
        assert json.loads(theirs.get_schema(other).schema_str or "")["fields"][1]["name"] == "note"


def test_schemas_that_refer_to_others(schema_registry: PrivateRegistry) -> None:
    mark = secrets.token_hex(4)
    inner = schema_of({"type": "record", "name": f"Inner{mark}", "namespace": "shop", "fields": [ID]})
    outer = {"type": "record", "name": f"Outer{mark}", "namespace": "shop", "fields": [{"name": "a", "type": f"shop.Inner{mark}"}]}
    reference = SchemaReference(f"shop.Inner{mark}", f"inner-{mark}", 1)
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        client.register_schema(f"inner-{mark}", Schema(inner.text, "AVRO"))
        number = client.register_schema(f"outer-{mark}", Schema(json.dumps(outer), "AVRO", [reference]))
    found = HttpRepository(schema_registry.url).by_id(number)
    assert found.root.fields[0].type == inner.root


class _Answers(http.server.BaseHTTPRequestHandler):
    """A registry that answers with error statuses, then with a schema."""

    statuses: list[int]

    def do_GET(self) -> None:
        status = self.statuses.pop(0) if self.statuses else 200
        said = {"schema": '"string"'} if status == 200 else {"error_code": status * 100, "message": "no"}
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def troubled() -> Iterator[tuple[str, list[int]]]:
    statuses: list[int] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"statuses": statuses}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", statuses
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_registry_in_trouble_is_waited_for(troubled: tuple[str, list[int]]) -> None:
    url, statuses = troubled
    statuses += [503, 429]
    assert HttpRepository(url).by_id(1).text == '"string"'
    statuses += [500] * 100
    with pytest.raises(TransientError, match="cannot answer now"):
        HttpRepository(url, deadline_s=0.3).by_id(2)


@pytest.mark.parametrize(("status", "hint"), [(401, "password"), (403, "password"), (404, "register the schema")])
def test_what_a_registry_refuses_is_an_error_at_once(troubled: tuple[str, list[int]], status: int, hint: str) -> None:
    url, statuses = troubled
    statuses += [status]
    with pytest.raises(DefiniteError) as caught:
        HttpRepository(url).by_id(1)
    assert hint in caught.value.hint
    assert statuses == []


def test_another_registry_answers_for_one_that_is_away(troubled: tuple[str, list[int]]) -> None:
    assert HttpRepository(f"http://127.0.0.1:1,{troubled[0]}", deadline_s=5.0).by_id(1).text == '"string"'


def test_a_registry_that_is_away() -> None:
    with pytest.raises(TransientError, match="does not answer"):
        HttpRepository("http://127.0.0.1:1", deadline_s=0.2).by_id(1)


def test_the_address_of_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, shown = client_settings("https://us%40er:se%3Acret@host:8081/path?ssl.ca.location=/ca.pem&timeout=3")
    assert settings["basic.auth.user.info"] == "us@er:se:cret"
    assert (settings["ssl.ca.location"], settings["timeout"]) == ("/ca.pem", 3.0)
    assert shown == "https://host:8081/path"
    settings, shown = client_settings("http://me:secret@one:8081,http://two:8081?timeout=3")
    assert (settings["url"], settings["basic.auth.user.info"]) == ("http://one:8081,http://two:8081", "me:secret")
    monkeypatch.setenv("HEADRACE_REGISTRY_PASSWORD", "other")
    assert client_settings("http://me@host")[0]["basic.auth.user.info"] == "me:other"
    monkeypatch.setenv("HEADRACE_REGISTRY_PROPERTIES", "ssl.key.password=hidden&timeout=4")
    assert client_settings("http://host")[0] == {"url": "http://host", "max.retries": 0, "timeout": 4.0, "ssl.key.password": "hidden"}
    monkeypatch.delenv("HEADRACE_REGISTRY_PROPERTIES")
    assert "secret" not in repr(HttpRepository("http://me:secret@host:1"))
    for wrong in ("http://", "http://host:port", "http://host?timeout=soon"):
        with pytest.raises(DefiniteError):
            HttpRepository(wrong)
    with pytest.raises(DefiniteError, match="is invalid"):
        HttpRepository("http://host?no.such.property=1")
    with pytest.raises(DefiniteError, match="not the address"):
        open_repository("ftp://host")


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("http://host:8081/path?timeout=3", None),
        ("https://me@host:8081", None),
        ("/some/folder:with@signs", None),
        ("https://me:word@host", "its password"),
        ("http://one:8081,http://me:word@two:8081", "its password"),
        ("http://one:8081?ssl.key.password=word", "ssl.key.password"),
    ],
)
def test_a_setting_holds_no_secret(address: str, secret: str | None) -> None:
    assert secret_name_in(address) == secret
    if secret is None:
        assert parse_set_flag(f"debezium.registry={address}").debezium.registry == address
    else:
        with pytest.raises(DefiniteError, match="settings are kept") as caught:
            parse_set_flag(f"debezium.registry={address}")
        assert "word" not in str(caught.value).replace("password", "")


def _register_many(directory: str, names: list[str]) -> None:
    repository = DirectoryRepository(Path(directory))
    for name in names:
        repository.register(name, record(ID, name=name))


def test_two_processes_never_give_one_id_twice(tmp_path: Path) -> None:
    names = [f"table_{number}" for number in range(30)]
    workers = [
        multiprocessing.get_context("spawn").Process(target=_register_many, args=(str(tmp_path), part)) for part in (names, names[::-1])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    repository = DirectoryRepository(tmp_path)
    found = [repository.latest(name) for name in names]
    assert {one.id for one in found if one is not None} == set(range(1, 31))
    assert all(repository.by_id(one.id).root.name == f"shop.{one.subject}" for one in found if one is not None)


def test_a_directory_is_plain_files(tmp_path: Path) -> None:
    repository = DirectoryRepository(tmp_path)
    odd = "../shop/orders.insert"
    repository.register(odd, record(ID))
    (file,) = tmp_path.rglob("*.avsc")
    assert file.parent.parent == tmp_path
    assert unquote(file.parent.name) == odd
    assert file.name == "1.1.avsc"
    # A file that the user added counts.
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "1.77.avsc").write_text(record(ID, NOTE).text)
    assert repository.by_id(77).root.fields[1].name == "note"
    assert repository.register("next", record(ID, name="Next")) == 78
    (mine / "2.80.avsc").write_text("{")
    with pytest.raises(DefiniteError, match="not JSON") as caught:
        repository.by_id(80)
    assert "2.80.avsc" in caught.value.place


def test_compatibility_levels() -> None:
    narrow, wide = record({"name": "id", "type": "int"}), record(ID)
    added, must = record(ID, NOTE), record(ID, {"name": "must", "type": "string"})
    expected = {
        Compatibility.NONE: (True, True, True, True),
        Compatibility.BACKWARD: (True, False, True, False),
        Compatibility.FORWARD: (False, True, True, True),
        Compatibility.FULL: (False, False, True, False),
    }
    for level, outcome in expected.items():
        pairs = ((narrow, wide), (wide, narrow), (wide, added), (wide, must))
        assert tuple(find_conflicts(level, new, [old]) == () for old, new in pairs) == outcome, level
    # It would be compatible with the last version alone.
    history = [must, wide]
    assert find_conflicts(Compatibility.BACKWARD, added, history) == ()
    dropped = record({"name": "id", "type": "long"}, {"name": "must", "type": "int", "default": 1})
    assert find_conflicts(Compatibility.BACKWARD, dropped, history) == ()
    assert find_conflicts(Compatibility.BACKWARD_TRANSITIVE, dropped, history) != ()
    assert parse_schema(narrow.text).root.fields[0].type.kind == "int"
