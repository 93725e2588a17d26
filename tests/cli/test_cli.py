"""The command line itself: words, sizes, passwords, exit codes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace import cli
from headrace.cli import flags
from headrace.config.key_catalog import list_sections
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.settings.dataclass_fields import merge_fields, select_values
from headrace.settings.pipe_keys import LOG_KEYS, ColumnKeys, LatencyKeys, TargetKeys, TopicKeys
from headrace.sources.mysql.server.connection import MySQLAddress

ADDRESS = MySQLAddress("h", 1, "u", "secret", "shop")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500000", 500_000), ("64K", 65_536), ("64k", 65_536), ("3M", 3 << 20), ("2G", 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert flags.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "1T", "1.5G", "x"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        flags.parse_size(text)


def test_every_setting_of_a_pipe_is_a_flag_and_a_key() -> None:
    keys = {name for section in list_sections() for name in section.fields}
    classes = (ColumnKeys, *LOG_KEYS, LatencyKeys, TopicKeys, TargetKeys)
    settings = merge_fields(*classes)
    arguments = vars(cli.build_parser().parse_args(["replicate", "mysql://h/db", "chdb:x"]))
    assert keys >= settings.keys()
    assert select_values(arguments, *classes) == {name: one.default for name, one in settings.items()}


def test_globs_mean_tables_of_the_address_s_database() -> None:
    assert Selection.of_globs([], [], "shop") == Selection(("shop.*",))
    assert Selection.of_globs(["order*", "other.*"], ["*_old", "other.x"], "shop") == Selection(
        ("shop.order*", "other.*"), ("shop.*_old", "other.x")
    )


@pytest.mark.parametrize(
    ("source", "flag", "value"),
    [
        *(("kafka://h:1/t", flag, value) for flag, value in (("--snapshot", "none"), ("--zero-dates", "null"), ("--start-at", "now"))),
        *(("kafka://h:1/t", flag, "7") for flag in ("--flush-rows", "--flush-bytes", "--flush-seconds", "--relay-bytes", "--chunk-rows")),
        *(("mysql://u@h/db", flag, "7") for flag in ("--topics", "--topic-pattern", "--start", "--max-offsets", "--min-partitions")),
    ],
)
def test_flags_without_effect_are_refused(source: str, flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "state")]
    assert cli.main(["replicate", source, "clickhouse://default@127.0.0.1:1/x", flag, value, *state]) == cli.FAILED
    said = capsys.readouterr().err
    assert f"{flag} is about " in said
    assert "remedy: leave it out" in said


@pytest.mark.parametrize("globs", [[], ["orders"]])
def test_globs_without_a_database_need_one(globs: list[str]) -> None:
    with pytest.raises(DefiniteError) as caught:
        Selection.of_globs(globs, [])
    assert "--tables" in caught.value.hint


@pytest.mark.parametrize("arguments", [["nonsense"], ["replicate"], ["replicate", "mysql://h/db", "chdb:x", "--flush-bytes", "many"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: headrace" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert [verb for verb in ("replicate", "verify", "check", "sql", "serve", "demo") if verb not in text] == []


def test_ddl_shows_a_translation_without_any_server(capsys: pytest.CaptureFixture[str]) -> None:
    tables = "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT)"
    assert cli.main(["ddl", "ALTER TABLE shop.t DROP COLUMN a", "--schema", tables]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["shop.t: drop_column: applied", "  ALTER TABLE `shop`.`t` DROP COLUMN IF EXISTS `a`;"]
    assert {"ignore:", "resync:", "halt: the pipe would stop before it"} <= set(lines)
    assert cli.main(["ddl", "DROP TABLE shop.t", "--schema", tables, "--schema-changes", "drop_table=keep"]) == 0
    assert capsys.readouterr().out.startswith("shop.t: drop_table: kept\n  RENAME TABLE")
    views = ("--schema", "CREATE TABLE shop.k (a INT)", "--set", "sink.keyless_views=true", "--schema-changes", "drop_table=apply")
    assert cli.main(["ddl", "DROP TABLE shop.k", *views]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["  DROP VIEW IF EXISTS `shop`.`k`;", "  DROP TABLE IF EXISTS `shop`.`k__rows`;"]
    assert cli.main(["ddl", "ANALYZE TABLE shop.t", "--schema", tables]) == 0
    assert capsys.readouterr().out == "nothing to do in the sink\n"
    for wrong in (["ddl", "DROP TABLE t"], ["ddl", "DROP TABLE t", "--schema", "SELECT 1"], ["ddl", "FROB t", "--schema", tables]):
        assert cli.main(wrong) == 2
        assert "remedy: " in capsys.readouterr().err
