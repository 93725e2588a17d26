"""`headrace.pipes` on the real engine: every pipe registers, and is found by name or by its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.state.pipe_registry import PipeEntry, all_pipes, find_pipe, pipe_from, register
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import POSITIONS, ClickHouseProgressStore
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.verify.watched_pipe import pipe_in_sink
from testkit.pipelines.embedded_access import target_of

OPTIONS = {"settings": {"sink": {"database": "copy"}}, "columns": {"include": [], "exclude": ["shop.t.secret"]}, "zero_dates": "null"}
SHOP = PipeEntry("o'shop", "mysql://reader@h:3306/shop", {"include": ["shop.*"], "exclude": [], "added": []}, OPTIONS, "/nowhere")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnTables]:
    with EmbeddedServer(tmp_path / "ch") as server:
        yield ClickHouseSink(target_of(server)).own_tables()


def test_pipes_are_entered_found_and_forgotten(own: OwnTables, tmp_path: Path) -> None:
    assert (find_pipe(own, "o'shop"), all_pipes(own), pipe_from(own, SHOP.source)) == (None, [], None)
    own.delete_pipe("o'shop")
    register(ClickHouseProgressStore(own), replace(SHOP, statement="CREATE DATABASE …"))
    # A restarted pipe keeps its original record.
    register(ClickHouseProgressStore(own), replace(SHOP, created="2030-01-01 00:00:00.000000"))
    found = find_pipe(own, "o'shop")
    assert found == replace(SHOP, statement="CREATE DATABASE …")
    assert found is not None
    assert found.tables == Selection(("shop.*",))
    assert found.projection.exclude == ("shop.t.secret",)
    # A pipe of the same name in another directory is another pipe.
    register(ClickHouseProgressStore(own), replace(SHOP, state="/elsewhere"))
    assert find_pipe(own, "o'shop") == replace(SHOP, state="/elsewhere")

    # The same server and database identify this pipe.
    assert pipe_from(own, "mysql://root@h:3306/shop") == replace(SHOP, state="/elsewhere")
    assert pipe_from(own, "mysql://root@h:3306/other") is pipe_from(own, "mysql://root@h:3307/shop") is None
    known = pipe_in_sink(own, parse_mysql_url("mysql://root@h:3306/shop"), "")
    assert (known.name, known.directory, known.zero_dates, known.selection) == ("o'shop", None, "null", Selection(("shop.*",)))
    assert known.choices.of(TableName("shop", "t")).database == "copy"

    # Two equal pipes count as one; two different ones need a choice.
    later = replace(SHOP, name="b", created="2090-01-01 00:00:00.000000")
    register(ClickHouseProgressStore(own), later)
    assert pipe_from(own, SHOP.source) == later
    register(ClickHouseProgressStore(own), replace(later, options={}))
    with pytest.raises(DefiniteError) as caught:
        pipe_from(own, SHOP.source)
    assert "--pipe" in caught.value.hint
    assert pipe_from(own, SHOP.source, "b") == replace(later, options={})

    # The state directory takes precedence, if it is on this machine.
    state = PipeState(SHOP.source, "", "", SHOP.selection, {}, 0, {**OPTIONS, "zero_dates": "epoch"})
    StateDirectory(tmp_path / "state").save(state)
    register(ClickHouseProgressStore(own), replace(later, state=str(tmp_path / "state")))
    known = pipe_in_sink(own, parse_mysql_url(SHOP.source), "b")
    assert (known.name, known.zero_dates) == ("b", "epoch")
    assert known.directory is not None
    register(ClickHouseProgressStore(own), replace(later, state=str(tmp_path / "state"), host="another"))
    assert pipe_in_sink(own, parse_mysql_url(SHOP.source), "b").directory is None

    ClickHouseProgressStore(own).begin()
    for name in ("b", "o'shop"):
        ClickHouseProgressStore(own).report(Progress(name, SHOP.source, "binlog.000001:4", 4, 0, 0, 0, 0, 0))
    own.delete_pipe("o'shop")
    assert [entry.name for entry in all_pipes(own)] == ["b"]
    assert own.select(POSITIONS, ["pipe"]) == [["b"]]
