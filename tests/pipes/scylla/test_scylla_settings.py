"""Settings that do not apply to a pipe from ScyllaDB's log are refused, and numbers are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.scylla.settings_check import check_chosen, check_transforms
from headrace.pipes.scylla.sink_factory import open_log_target
from headrace.pipes.scylla.start_position import parse_start
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import UserSettings, parse_settings
from headrace.sources.scylla.snapshot.options import OnExpired, ScyllaOptions


def settings(projection: Projection | None = None) -> PipeSettings:
    return PipeSettings(Selection(("ks.*",)), Path("state"), projection or Projection())


def test_the_names_of_tables_in_the_sink_are_reported(tmp_path: Path) -> None:
    chosen = parse_settings('[sink]\ntarget = "east_{table}"', "settings.toml")
    with open_log_target("clickhouse://u@ch:8123/", chosen, tmp_path, "127.0.0.1") as target:
        assert target.place(TableName("app", "notes")) == "app.east_notes"
    with open_log_target("stdout:", UserSettings(), tmp_path, "127.0.0.1") as target:
        assert target.place(TableName("app", "notes")) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[sink]\nengine = "history"', "engine: what cells of ScyllaDB's are kept in"),
        ('[sink.tables."ks.t"]\nsort_key = "primary"', "sort_key: what cells"),
        ('[schema_changes]\ndrop_column = "ignore"', "drop_column: tables of ScyllaDB are followed"),
    ],
)
def test_settings_that_would_be_left_out_are_refused(text: str, message: str) -> None:
    with pytest.raises(DefiniteError, match=message):
        check_chosen(settings(), parse_settings(text, "f"))


HIDDEN = '[transforms."ks.t"]\nrename = { a = "b" }\ndrop = ["c"]\nmask = { d = "null" }\n'


def test_transforms_of_merged_rows_may_be_chosen() -> None:
    for sink in ("clickhouse://u@ch:8123/", "chdb:./copy"):
        check_transforms(sink, parse_settings(HIDDEN, "f"))
    check_transforms("stdout:", parse_settings("", "f"))


@pytest.mark.parametrize(
    ("text", "sink", "message"),
    [
        ('[transforms."ks.t"]\nfilter = "a > 1"', "chdb:./copy", "filter cannot be applied to tables of ScyllaDB"),
        ('[transforms."ks.t"]\ncomputed = { b = "a + 1" }', "chdb:./copy", "computed cannot be applied to tables of ScyllaDB"),
        ('[transforms."ks.t"]\nhash = { a = "sha256" }', "chdb:./copy", "hash cannot be applied .* the salt would be readable"),
        (HIDDEN, "stdout:", "ks.t: ScyllaDB's log holds single cells, not rows"),
        (HIDDEN, "cql://u@there:9042/", "ks.t: ScyllaDB's log holds single cells, not rows"),
        (HIDDEN + '[scylla]\nkept = "images"', "chdb:./copy", "ks.t: ScyllaDB's log holds single cells, not rows"),
        (HIDDEN + '[scylla]\nmerge = "read"', "chdb:./copy", "scylla.merge = read stores none"),
    ],
)
def test_transforms_that_cannot_be_applied_are_refused(text: str, sink: str, message: str) -> None:
    with pytest.raises(DefiniteError, match=message):
        check_transforms(sink, parse_settings(text, "f"))


def test_columns_cannot_be_left_out() -> None:
    with pytest.raises(DefiniteError, match="read with all columns"):
        check_chosen(settings(Projection(exclude=("ks.t.secret",))), parse_settings("", "f"))


def test_scylla_options() -> None:
    text = '[sink]\ndatabase = "copy"\n[sink.tables."ks.t"]\ntarget = "other"\n[scylla]\nconfidence = 5\nexpired = "skip"\n'
    chosen = parse_settings(text, "f")
    check_chosen(settings(), chosen)
    assert chosen.scylla == ScyllaOptions(confidence=5, expired=OnExpired.SKIP)
    assert (chosen.scylla.window_us, ScyllaOptions().window_us, ScyllaOptions(window=7).window_us) == (500_000, 3_000_000, 7_000_000)
    ScyllaOptions().check()
    with pytest.raises(DefiniteError, match="concurrency must be at least 1"):
        ScyllaOptions(concurrency=0).check()


def test_places_to_start_at() -> None:
    assert parse_start("2026-05-01T12:00:00Z") == parse_start("2026-05-01T12:00:00") == 1_777_636_800_000_000
    assert [parse_start(word) for word in ("", "now", "oldest")] == [0, 0, 0]
    with pytest.raises(DefiniteError, match="no place in a log") as raised:
        parse_start("binlog.000007:4")
    assert "oldest" in raised.value.hint
