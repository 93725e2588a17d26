"""`headrace config check` on files with mistakes: all of them at once, each with its line, and none of their consequences."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from headrace.cli import main

SOURCE = '[sources.shop]\nurl = "mysql://repl@db:3306/shop"\n'
SINK = '[sinks.warehouse]\nurl = "chdb:./warehouse"\n'
PIPE = '[pipes.shop]\nsource = "shop"\nsink = "warehouse"\n'

MANY = """\
colour = "red"

[headrace]
listn = "127.0.0.1:8088"
retry_seconds = "soon"

[source.shop]
urll = "mysql://repl@db:3306/shop"
flush_rows = "many"

[sources.lake]
url = "redis://lake"
tabels = ["a"]
snapshot = "lock"

[sources.port]
url = "mysql://repl@db:port/shop"
password = "${NO_SUCH_VARIABLE}"

[sinks.warehouse]
url = "chdb:./warehouse"
enginee = "history"
tables."shop.o" = { sort_keyy = "id", engine = "replaceing" }

[sinks.bus]
url = "nats://bus"
format = "debezum"

[pipe.orders]
source = "shop"
sink = "warehouse"
enabled = "yes"
schema_changes = { drop_tabel = "keep", drop_table = "never" }

[pipe.orders.tables."shop.orders"]
sort_keyy = ["id"]
mask = { name = "nothing", email = "few" }
filter = "state <> now()"

[pipes.events]
source = "shopp"
sink = "warehous"

[pipes.empty]

[pipes.both]
source = "shop"
sources = ["port", "port"]
sink = "warehouse"
tables = ["orders"]

[extra]
"""
MANY_ERRORS = [
    "1 colour",
    "4 headrace.listn: did you mean listen?",
    "5 headrace.retry_seconds",
    "7 source.shop: did you mean [sources.shop]?",
    "8 source.shop.urll: did you mean url?",
    "9 source.shop.flush_rows",
    "12 sources.lake.url",
    "13 sources.lake.tabels: did you mean tables?",
    '14 sources.lake.snapshot: did you mean "lock-free"?',
    "17 sources.port.url",
    "18 sources.port.password",
    "22 sinks.warehouse.enginee: did you mean engine?",
    '23 sinks.warehouse.tables."shop.o".sort_keyy: did you mean sort_key?',
    '23 sinks.warehouse.tables."shop.o".engine: did you mean "replacing"?',
    "26 sinks.bus.url",
    '27 sinks.bus.format: did you mean "debezium"?',
    "29 pipe.orders: did you mean [pipes.orders]?",
    "32 pipe.orders.enabled",
    "33 pipe.orders.schema_changes.drop_tabel: did you mean drop_table?",
    "33 pipe.orders.schema_changes.drop_table",
    '36 pipe.orders.tables."shop.orders".sort_keyy: did you mean sort_key?',
    '37 pipe.orders.tables."shop.orders".mask.name',
    '37 pipe.orders.tables."shop.orders".mask.email',
    '38 pipe.orders.tables."shop.orders".filter',
    "41 pipes.events.source: did you mean shop?",
    "42 pipes.events.sink: did you mean warehouse?",
    "44 pipes.empty",
    "44 pipes.empty",
    "48 pipes.both.sources",
    "48 pipes.both.sources",
    "50 pipes.both.tables",
    "52 extra",
]
"""Line and key of each error, with the suggested name."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)


def check(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of `headrace config check` for a wrong file."""
    Path("headrace.toml").write_text(text)
    assert main(["config", "check"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def places(said: str) -> list[str]:
    """Return line and key of each error, and the name that its remedy suggests."""
    found = []
    for first, second in itertools.pairwise(said.splitlines()):
        if second.startswith("  remedy: "):
            place = first.rpartition("(at headrace.toml, line ")[2].removesuffix(")").replace(", ", " ", 1)
            remedy = second.removeprefix("  remedy: ")
            found.append(f"{place}: {remedy}" if remedy.startswith("did you mean") else place)
    return found


def test_all_mistakes_of_a_file_are_reported_in_the_order_of_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    said = check(MANY, capsys)
    assert said.startswith(f"headrace: {len(MANY_ERRORS)} errors in headrace.toml\n- ")
    assert places(said) == MANY_ERRORS


def test_every_command_that_loads_the_file_reports_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.toml").write_text(MANY)
    for command in (["run"], ["config", "show"]):
        assert main(command) == 2
        assert places(capsys.readouterr().err) == MANY_ERRORS


def test_rules_between_pipes_are_checked_beside_other_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    second = PIPE.replace("pipes.shop", "pipes.again")
    said = check(SOURCE + SINK + PIPE + second + PIPE.replace("pipes.shop", "pipes.third") + '[pipes.wrong]\nsource = "shop"\n', capsys)
    assert places(said) == ["10 pipes.again.sink", "13 pipes.third.sink", "14 pipes.wrong"]
    assert "shop and again may both write to the table shop.*" in said


def test_a_section_under_a_right_and_a_wrong_name_is_read_under_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert places(check(SOURCE + SINK + PIPE + PIPE.replace("pipes", "pipe"), capsys)) == ["8 pipe.shop: did you mean [pipes.shop]?"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            SOURCE.replace("url", "urll") + SINK + PIPE,
            "there is no setting 'urll' in [sources.shop] (at headrace.toml, line 2, sources.shop.urll)\n  remedy: did you mean url?",
        ),
        (
            SOURCE + SINK + PIPE.replace("pipes", "pipe"),
            "there is no section [pipe.shop] (at headrace.toml, line 5, pipe.shop)\n  remedy: did you mean [pipes.shop]?",
        ),
        (
            SOURCE.replace("sources", "Source") + SINK + PIPE,
            "there is no section [Source.shop] (at headrace.toml, line 1, Source.shop)\n  remedy: did you mean [sources.shop]?",
        ),
        (
            "[headrac]\nlisten = ''\n" + SOURCE + SINK + PIPE,
            "there is no section [headrac] (at headrace.toml, line 1, headrac)\n  remedy: did you mean [headrace]?",
        ),
        (
            SOURCE + SINK + PIPE.replace("source", "sorce"),
            "there is no setting 'sorce' in [pipes.shop] (at headrace.toml, line 6, pipes.shop.sorce)\n  remedy: did you mean source?",
        ),
        (
            SOURCE.replace("/shop", "") + 'tabels = ["shop.*"]\n' + SINK + PIPE,
            "there is no setting 'tabels' in [sources.shop] (at headrace.toml, line 3, sources.shop.tabels)\n"
            "  remedy: did you mean tables?",
        ),
        (
            SOURCE.replace("/shop", "") + 'tables = "shop.*"\n' + SINK + PIPE,
            'tables must be a list of texts, such as ["a", "b"], not \'shop.*\' (at headrace.toml, line 3, sources.shop.tables)\n'
            "  remedy: Globs over `database.table` (over `table` where the address names the database); if none are given, all tables of "
            "that database.",
        ),
        (
            SOURCE + SINK + PIPE.replace('"shop"', "1"),
            "source must be a text in quotes, not 1 (at headrace.toml, line 6, pipes.shop.source)\n"
            "  remedy: The source, by its name in `[sources.NAME]`.",
        ),
        (
            SOURCE + SINK + PIPE + "tables.shop.orders.view = true\n",
            "settings for some tables need a glob over database.table (at headrace.toml, line 8, pipes.shop.tables.shop.orders)\n"
            '  remedy: write [pipes.shop.tables."shop.orders"], with the quotes',
        ),
        (
            SOURCE.replace(".shop]", "]") + SINK.replace(".warehouse", "") + PIPE.replace(".shop]", "]"),
            "3 errors in headrace.toml\n"
            "- url: the section [sources] has no name (at headrace.toml, line 2, sources.url)\n"
            "  remedy: write [sources.NAME] above its keys\n"
            "- url: the section [sinks] has no name (at headrace.toml, line 4, sinks.url)\n"
            "  remedy: write [sinks.NAME] above its keys\n"
            "- source, sink: the section [pipes] has no name (at headrace.toml, line 6, pipes.source)\n"
            "  remedy: write [pipes.NAME] above its keys",
        ),
        (
            SOURCE + SINK + PIPE.replace("[pipes.shop]", "[[pipes]]"),
            "[pipes] is not one section (at headrace.toml, line 5, pipes)\n  remedy: write [pipes.NAME] above the keys of each",
        ),
        (
            SOURCE.replace("[sources.shop]", "[[sources]]") + SINK + PIPE,
            "[sources] is not one section (at headrace.toml, line 1, sources)\n  remedy: write [sources.NAME] above the keys of each",
        ),
        (
            "sinks = 1\n" + SOURCE + PIPE,
            "[sinks] is not one section (at headrace.toml, line 1, sinks)\n  remedy: write [sinks.NAME] above the keys of each",
        ),
        (
            SOURCE + SINK + PIPE + 'tables."*".rename = { a = "b" }\n',
            "settings for some tables need a glob over database.table (at headrace.toml, line 8, pipes.shop.tables.*)\n"
            '  remedy: write [pipes.shop.tables."DATABASE.*"], with the quotes',
        ),
        (
            SOURCE + PIPE + '[sinks.warehouse]\nclass = "my.sinks:Mine"\npassword_file = 1\n',
            "password_file must be a text in quotes (at headrace.toml, line 8, sinks.warehouse.password_file)\n"
            "  remedy: A file with the password, which may end with a newline.",
        ),
        (SOURCE + SINK, "the file has no pipes (at headrace.toml)\n  remedy: write [pipes.NAME] with source and sink"),
        ("", "the file has no pipes (at headrace.toml)\n  remedy: write [pipes.NAME] with source and sink"),
        (
            SOURCE + SINK + PIPE.replace("[pipes.shop]", "[[pipe]]"),
            "there is no section [pipe] in a file of pipes (at headrace.toml, line 5, pipe)\n  remedy: write [pipes.NAME]",
        ),
        (
            SOURCE.replace("mysql", "postgresql") + SINK + PIPE,
            "PostgreSQL is not read from its own log (at headrace.toml, line 2, sources.shop.url)\n"
            "  remedy: have Debezium's connector for PostgreSQL write topics to Kafka, and give kafka://host:port as the source "
            "(docs/kafka/debezium-source.md#other-databases)",
        ),
        (
            '[headrace]\nlisten = "here"\n' + SOURCE + SINK + PIPE + "enabeld = true\n",
            "2 errors in headrace.toml\n"
            "- 'here' is no address to listen on (at headrace.toml, line 2, headrace.listen)\n"
            "  remedy: write it as 127.0.0.1:8088\n"
            "- there is no setting 'enabeld' in [pipes.shop] (at headrace.toml, line 10, pipes.shop.enabeld)\n"
            "  remedy: did you mean enabled?",
        ),
        (
            SOURCE + SINK + PIPE + '[sinks.own]\nclas = "my.sinks:Mine"\nlevels = [1]\n',
            "there is no setting 'clas' in [sinks.own] (at headrace.toml, line 9, sinks.own.clas)\n  remedy: did you mean class?",
        ),
    ],
)
def test_one_mistake_is_one_error(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(text, capsys) == f"headrace: {says}\n"
