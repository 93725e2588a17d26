"""The status counts the changes that filters exclude, and `headrace verify` the source rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import TransientError
from headrace.retry import WaitState, use_wait_state
from headrace.service.status_collector import StatusCollector
from headrace.settings.settings_file import parse_settings
from headrace.verify import region_reader
from headrace.verify.region_reader import SourceRows
from testkit.oracles.binlogs import Logbook
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_a_copy_is_compared_and_repaired_through_transforms[mysql]")


def count(book: Logbook, condition: str) -> int:
    return int(book.fetch(f"SELECT COUNT(*) FROM some WHERE {condition}")[0][0])


def test_status_and_verify_count_the_rows_that_a_filter_excludes(
    server: PrivateServer, book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ", ".join(f"({number}, {number % 10 or 'NULL'})" for number in range(1, 1001))
    for table in ("some", "none", "plain"):
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, rest INT)", f"INSERT INTO {table} VALUES {rows}", f"ANALYZE TABLE {table}")
    text = '[transforms."*.some"]\nfilter = "rest > 2"\n[transforms."*.none"]\nfilter = "id > 0"'
    settings = parse_settings(text, "test.toml").plain
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", settings=settings)
    view = pipe._pipe._view = StatusCollector()
    pipe.open()

    def filtered() -> dict[str, int]:
        progress = view.progress()
        assert progress.filtered == sum(table.filtered for table in progress.tables)
        return {table.name.partition(".")[2]: table.filtered for table in progress.tables}

    expected = count(book, "(rest > 2) IS NOT TRUE")
    assert filtered() == {"some": expected, "none": 0, "plain": 0}
    # A row that leaves the filter is deleted; one that never passes is excluded at each change.
    book.run("UPDATE some SET rest = 1 WHERE rest = 3 AND id < 100")
    pipe.catch_up()
    assert filtered()["some"] == expected
    expected += count(book, "rest = 1") + 1
    book.run("UPDATE some SET rest = 2 WHERE rest = 1", "INSERT INTO some VALUES (2001, 1), (2002, 9)")
    pipe.catch_up()
    assert filtered() == {"some": expected, "none": 0, "plain": 0}
    passing, excluded = count(book, "rest > 2"), count(book, "(rest > 2) IS NOT TRUE")
    assert (passing, excluded) == (691, 311)

    def run_verify(*options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main(
            ["verify", server.url(book.database), url_of(clickhouse), "--state", str(tmp_path / "state"), "--chunk-rows", "100", *options]
        )
        return code, capsys.readouterr().out

    code, said = run_verify()
    assert code == 0
    lines = said.splitlines()
    for table, number, more in (
        ("some", passing, f"  the filter excludes {excluded} of 1002 source rows"),
        ("none", 1000, "  the filter excludes 0 of 1000 source rows"),
    ):
        at = lines.index(f"{book.database}.{table}: {number} rows, 0 differences")
        assert lines[at + 1] == more
    assert said.count("the filter excludes") == 2
    assert lines[-1] == f"verify: 3 tables, {passing + 2000} rows, 0 differences; filters exclude {excluded} source rows"
    code, said = run_verify("--json")
    tables = {one["table"]: (one["verdict"], one["rows"], one["excluded"]) for one in json.loads(said)["tables"]}
    names = {name: f"{book.database}.{name}" for name in ("some", "none", "plain")}
    equal = {names["some"]: ("equal", passing, excluded), names["none"]: ("equal", 1000, 0), names["plain"]: ("equal", 1000, 0)}
    assert (code, tables) == (0, equal)
    # A row that differs changes neither number; a table that is not in the sink has the same numbers.
    client.command(f"ALTER TABLE `{book.database}`.some UPDATE rest = 9 WHERE id = 4", settings={"mutations_sync": 2})
    code, said = run_verify("--tables", names["some"])
    assert code == 1
    assert f"the filter excludes {excluded} of 1002 source rows" in said
    client.command(f"DROP TABLE `{book.database}`.some SYNC")
    code, said = run_verify("--tables", names["some"], "--json")
    [missing] = json.loads(said)["tables"]
    assert (code, missing["rows"], missing["differences"], missing["excluded"]) == (1, passing, passing, excluded)


def test_a_count_of_source_rows_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = WaitState()

    def batches(*_: object) -> Iterator[SourceRows]:
        for _ in range(2):
            yield SourceRows(pa.table({"id": [1]}), 1)
        ending.ending = True
        yield SourceRows(pa.table({"id": [1]}), 1)
        pytest.fail("the count went on")

    monkeypatch.setattr(region_reader, "connect", mock.Mock())
    monkeypatch.setattr(region_reader, "transform_batches", batches)
    reader = region_reader.RegionReader(mock.Mock())
    with use_wait_state(ending), pytest.raises(TransientError, match="the process ends"):
        reader.count_source(mock.Mock())
