"""Addresses of databases that come through Debezium's topics: every command names that way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from headrace.cli import main
from headrace.errors import DefiniteError

PAGE = "docs/kafka/debezium-source.md"
ROUTE = f"write topics to Kafka, and give kafka://host:port as the source ({PAGE}#other-databases)"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgres://me:hunter2@h/shop", "PostgreSQL"),
        ("postgresql://me:hunter2@h:port/shop", "PostgreSQL"),
        ("PostgreSQL+psycopg2://me:hunter2@h/shop", "PostgreSQL"),
        ("jdbc:postgresql://h/shop?password=hunter2", "PostgreSQL"),
        ("sqlserver://me:hunter2@h", "SQL Server"),
        ("mssql://me:hunter2@h", "SQL Server"),
        ("oracle://me:hunter2@h", "Oracle"),
        ("jdbc:oracle:thin:me/hunter2@h:1521", "Oracle"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("check", "URL"),
        ("replicate", "URL", "chdb:./copy", "--state", "state"),
        ("verify", "URL", "chdb:./copy"),
        ("tail", "URL"),
    ],
    ids=lambda words: words[0],
)
def test_commands_name_the_way_through_debezium(
    url: str, name: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([url if word == "URL" else word for word in command]) == 2
    said = capsys.readouterr()
    assert said.err == f"headrace: {name} is not read from its own log\n  remedy: have Debezium's connector for {name} {ROUTE}\n"
    assert "hunter2" not in said.out + said.err
    assert list(tmp_path.iterdir()) == []


def test_the_api_names_it_too() -> None:
    with pytest.raises(DefiniteError, match="PostgreSQL is not read"):
        next(iter(headrace.changes("postgres://me@h/shop")))


def test_other_addresses_get_the_forms_of_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "redis://h"]) == 2
    assert "write mysql://" in capsys.readouterr().err


def test_the_page_has_the_section() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text()
    assert re.search(r"^## Other databases$", page, re.MULTILINE)
