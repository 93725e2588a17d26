"""Custom producers: found, checked, created; their errors are reported as theirs."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink, open_sink
from headrace.settings.settings_file import UserSettings, parse_set_flag, parse_settings
from headrace.sinks.base import BatchCommit
from headrace.sinks.producer import Producer, open_producer, parse_producer
from headrace.sinks.producer_connector import is_producer
from headrace.sinks.registry import is_same_sink, sink_connector
from testkit.generators.kind_values import block_of_rows

PAGE = Path(__file__).parents[2] / "docs" / "producers.md"
MODULE = """
import headrace
from headrace.errors import TransientError

class Good(headrace.Producer):
    ordered = False
    before_images = False
    calls = []

    def __init__(self, path="", times=1, names=()):
        self.path, self.times, self.names = path, times, names

    def prepare(self, schemas):
        self.calls.append(("prepare", [str(schema.name) for schema in schemas]))

    def committed(self, written):
        self.calls.append(("committed", written.position))

    def open(self):
        self.calls.append(("open", self.path))

    def write(self, block):
        self.calls.append(("write", block.rows))
        if self.times == 13:
            raise KeyError("thirteen")
        if self.times == 7:
            raise TransientError("later")

    def close(self):
        self.calls.append(("close", ""))
        if self.times == 13:
            raise ValueError("and this")

class NoWrite(headrace.Producer):
    pass

class WrongWrite(headrace.Producer):
    def write(self):
        pass

class Other:
    def write(self, block):
        pass
"""
TABLE = TableSchema(TableName("shop", "orders"), (Column("id", Kind.INT32, False),), ("id",))
BLOCK = block_of_rows(TABLE, [(1,)], versions=[77])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with modules in it."""
    (tmp_path / "own_sinks.py").write_text(MODULE)
    (tmp_path / "broken_sinks.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    path = sys.path[:]
    yield tmp_path
    sys.path[:] = path
    for name in ("own_sinks", "broken_sinks"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("folder")
def test_a_class_by_its_name() -> None:
    with open_producer("class:own_sinks:Good?path=there", {"times": 2, "names": ["a", "b"]}) as (sink, name):
        assert name == "class:own_sinks:Good"
        sink.prepare([TABLE])
        [needs] = sink.requirements([TABLE]).values()
        assert (needs.key_columns, needs.ordered, needs.exact, needs.keeps) == (("id",), False, True, True)
        writer = pickle.loads(pickle.dumps(sink)).writer()
        writer.write(BLOCK)
        writer.close()
        sink.commit_batch(BatchCommit("binlog.1:4", 4))
        calls = sys.modules["own_sinks"].Good.calls
        assert calls == [("prepare", ["shop.orders"]), ("open", "there"), ("write", 1), ("close", ""), ("committed", "binlog.1:4")]
    assert "there" not in repr(sink)
    assert headrace.Producer is Producer


@pytest.mark.parametrize(
    ("address", "settings", "message"),
    [
        ("class:no_such_module:Sink", {}, "cannot be imported"),
        ("class:broken_sinks:Sink", {}, "fails when it is imported: ZeroDivisionError"),
        ("class:own_sinks:Sink", {}, "has no 'Sink'.*Good, NoWrite, WrongWrite"),
        ("class:own_sinks:Other", {}, "is not a producer"),
        ("class:own_sinks:NoWrite", {}, "has no method write"),
        ("class:own_sinks:WrongWrite", {}, "method write of own_sinks:WrongWrite cannot be called"),
        ("class:own_sinks:Good", {"colour": "red"}, "colour.*it takes path, times, names"),
        ("class:own_sinks", {}, "names no class"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong_with_a_class(address: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(DefiniteError) as failure, open_producer(address, settings):
        pass
    assert re.search(message, str(failure.value), re.DOTALL), str(failure.value)


@pytest.mark.usefixtures("folder")
def test_errors_of_a_producer() -> None:
    writer = parse_producer("class:own_sinks:Good", {"times": 13})
    with open_producer("class:own_sinks:Good", {"times": 13}) as (sink, _):
        written = sink.writer()
        with pytest.raises(DefiniteError, match="own_sinks:Good failed to write: KeyError: 'thirteen'") as failure:
            written.write(BLOCK)
        # An error of its close() does not hide the first one.
        written.close()
    assert "table shop.orders" in failure.value.place
    assert "own_sinks.py line" in failure.value.place
    assert str(writer) == "own_sinks:Good"
    with open_producer("class:own_sinks:Good", {"times": 7}) as (sink, _), pytest.raises(TransientError, match="later"):
        sink.writer().write(BLOCK)


def claim_schemes(folder: Path, *schemes: str) -> None:
    """Make an installed package of a directory, which claims schemes."""
    package = folder / "own_sinks-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own-sinks\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("\n".join(["[headrace.sinks]", *(f"{one} = own_sinks:Good" for one in schemes), ""]))


def test_a_scheme_of_an_installed_package(folder: Path) -> None:
    claim_schemes(folder, "files")
    assert not is_producer("files:/data")
    sys.path.insert(0, str(folder))
    assert is_producer("files:/data")
    assert not is_producer("files")
    with open_sink("files:/data/out%20s?times=3", UserSettings(), folder, "local[2]") as named:
        assert named.name == "files:/data/out%20s"
        named.sink.prepare([TABLE])
    found = parse_producer("files:/data/out%20s?times=3", {"times": 4})
    assert (found.module, found.name, found.settings) == ("own_sinks", "Good", '{"times": 4, "path": "/data/out s"}')
    assert is_same_sink("files:/data?times=3", "files:/data")
    assert not is_same_sink("files:/data", "files:/other")


def test_an_installed_package_replaces_a_built_in_sink(folder: Path) -> None:
    claim_schemes(folder, "kafka", "clickhouse", "chdb", "stdout")
    assert sink_connector("kafka://broker:9092").name == "kafka"
    sys.path.insert(0, str(folder))
    assert {sink_connector(address).name for address in ("kafka://broker:9092", "clickhouse://server/db", "chdb:x")} == {"producer"}
    assert sink_connector("stdout:").name == "stdout"
    with open_sink("kafka://broker:9092?times=3", UserSettings(), folder, "local[2]") as named:
        assert named.name == "kafka://broker:9092"
    with open_clickhouse_sink("clickhouse://server/db") as table_store:
        assert table_store.sink.target.host == "server"
    with pytest.raises(DefiniteError, match="there is no such directory"), open_clickhouse_sink(f"chdb:{folder}/missing"):
        pass


def test_settings_of_a_producer_are_free_but_for_secrets() -> None:
    text = '[producer]\npath = "lake"\nby = ["a", "b"]\nmore = { x = 1.5 }\n'
    assert parse_settings(text, "f").producer == {"path": "lake", "by": ["a", "b"], "more": {"x": 1.5}}
    with pytest.raises(DefiniteError, match="secret, and settings are kept") as failure:
        parse_settings('[producer]\napi_token = "x"\n', "f")
    assert failure.value.place == "f, line 2, producer.api_token"
    with pytest.raises(DefiniteError, match="cannot be"):
        parse_settings("[producer]\nwhen = 2026-11-15\n", "f")


def test_a_setting_by_flag() -> None:
    assert parse_set_flag("producer.times=3").producer == {"times": 3}
    assert parse_set_flag("producer.path=lake").producer == {"path": "lake"}


def test_the_document_s_class(folder: Path) -> None:
    [code] = [one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class Counter" in one]
    (folder / "own_sinks.py").write_text(code)
    with open_producer("class:own_sinks:Counter?path=counts.txt", {}) as (sink, _):
        sink.prepare([TABLE])
        writer = sink.writer()
        writer.write(BLOCK)
        writer.close()
    assert (folder / "counts.txt").read_text() == "shop.orders 1\n"


def test_settings_of_other_sinks_are_refused(folder: Path) -> None:
    for address, section in (
        ("stdout:", "sink"),
        ("stdout:", "producer"),
        ("class:own_sinks:Good", "kafka"),
        ("chdb:x", "producer"),
        ("kafka://h:1", "producer"),
    ):
        with pytest.raises(DefiniteError, match="engine: "), open_sink(address, UserSettings({section: {"engine": "x"}}), folder, "local"):
            pass
    for address in ("stdout:?format=text", "class:own_sinks:Good"):
        with pytest.raises(DefiniteError, match="holds tables"), open_clickhouse_sink(address):
            pass
