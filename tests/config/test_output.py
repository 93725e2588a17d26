"""The JSON schema of `headrace.toml`, its reference page, and `headrace config show`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from headrace import cli
from headrace.config import load
from headrace.config.generated_files import build_schema, configuration_page, schema_text
from headrace.config.key_catalog import add_file_keys, list_sections
from testkit.pipelines.config_files import WHOLE, base, several

DOCS = Path(__file__).parents[2] / "docs"
STALE = "settings have changed: run make settings-page"


def test_the_page_and_the_schema_are_true() -> None:
    assert (DOCS / "configuration.md").read_text() == configuration_page(), STALE
    assert (DOCS / "headrace.schema.json").read_text() == schema_text(), STALE


def test_every_setting_says_what_it_means() -> None:
    missing = {f"{section.title} {name}" for section in list_sections() for name, one in section.fields.items() if not one.text}
    assert not missing


def judge(text: str) -> str:
    """Return the errors of another JSON schema validator for a file."""
    check: Any = fastjsonschema.compile(build_schema())
    try:
        check(tomllib.loads(text))
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", [WHOLE, base(), several(more='prefix = "{source}_"'), base(source='flush_bytes = "64M"')])
def test_the_schema_accepts_what_headrace_accepts(text: str) -> None:
    assert not judge(text)


@pytest.mark.parametrize(
    "text",
    [
        base(source='tabels = ["x"]'),
        base(source='topics = ["x"]'),
        base(source='snapshot = "locked"'),
        base(source="flush_rows = -1"),
        base(source='flush_bytes = "64X"'),
        base(sink='format = "debezium"'),
        base(pipe='tables."t" = { view = true }'),
        base(pipe='tables."db.t" = { sort_keys = "x" }'),
        base(pipe='schema_changes = { rename_table = "ignore" }'),
        base().replace('source = "a"\n', ""),
        base(pipe='sources = ["a"]'),
        base(more='[headrace]\nlog = "xml"'),
        base(more='[pipes."a b"]\nsource = "a"\nsink = "b"'),
        base(more="[sink]"),
    ],
)
def test_the_schema_rejects_what_headrace_rejects(text: str) -> None:
    assert judge(text)


SECRETS = {"A": "alpha-secret", "B_PASSWORD": "beta-secret", "HOST": "db.example.org"}
SHOWN = """\
[sources.a]
url = "mysql://u:${A}@${HOST}/db"
[sinks.b]
url = "kafka://k:9092?sasl.username=me&sasl.password=${A}&client.id=us"
prefix = "${B_PASSWORD}"
topic = "${db}.${table}"
[sinks.c]
url = "clickhouse://me@ch/"
password_file = "secret"
[pipes.p]
source = "a"
sink = "b"
[pipes.q]
source = "a"
sink = "c"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "secret").write_text("gamma-secret")
    (tmp_path / "headrace.toml").write_text(SHOWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "headrace.toml"


@pytest.mark.usefixtures("file")
def test_a_file_is_shown_as_it_is_understood_without_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show"]) == cli.OK
    text = capsys.readouterr().out
    assert "secret" not in text.replace('password_file = "secret"', "")
    content = tomllib.loads(text)
    assert content["sources"] == {"a": {"url": "mysql://u:***@db.example.org/db"}}
    assert content["sinks"]["b"] == {
        "url": "kafka://k:9092?sasl.username=me&client.id=us",
        "prefix": "***",
        "topic": "${db}.${table}",
    }
    assert cli.main(["config", "show", "--defaults", "--pipe", "q"]) == cli.OK
    content = tomllib.loads(capsys.readouterr().out)
    assert set(content["pipes"]) == {"q"}
    assert set(content["sinks"]) == {"c"}
    assert (content["sinks"]["c"]["engine"], content["headrace"]["listen"]) == ("replacing", "127.0.0.1:8088")


@pytest.mark.usefixtures("file")
def test_check_summarises_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "check"]) == cli.OK
    text = capsys.readouterr().out
    assert "p: mysql://u@db.example.org/db -> kafka://" in text
    assert "headrace.toml is right: 2 pipes" in text
    assert "-secret" not in text


def test_check_reports_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text(base(source="a = 1", sink="b = 2"))
    assert cli.main(["config", "check", str(tmp_path / "x.toml")]) == cli.FAILED
    text = capsys.readouterr().err
    assert "2 errors in" in text
    assert "line 3, sources.a.a" in text
    assert cli.main(["config", "check", str(tmp_path / "nothing.toml")]) == cli.FAILED
    assert "there is no such file" in capsys.readouterr().err
    for listen, said in (("0.0.0.0:8088", "would let other machines in"), ("nowhere", "is no address to listen on")):
        (tmp_path / "x.toml").write_text(f'[headrace]\nlisten = "{listen}"\n{base()}')
        assert cli.main(["config", "check", str(tmp_path / "x.toml")]) == cli.FAILED
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[headrace]\nhosts = ["http://x"]\n' + base(), "'http://x' is no host's name"),
        ('[headrace]\nmaster = "spark://10.1.2.3:7077"\n' + base(), "on this one only"),
        (base(source='start_at = "now"\nsnapshot = "consistent"'), "reads no rows first"),
        (base(pipe='[pipes.p.tables."db.*"]\nhash = { a = "sha256" }\nhash_salt = "env:NO_SUCH_SALT"'), "NO_SUCH_SALT is not set"),
        (
            '[sources.s]\nurl = "mysql://u@db/shop"\n[sinks.k]\nclass = "no_such_module:Sink"\n[pipes.p]\nsource = "s"\nsink = "k"\n',
            "'no_such_module' cannot be imported",
        ),
    ],
)
def test_check_reports_what_a_run_would_reject(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    assert cli.main(["config", "check", str(tmp_path / "x.toml")]) == cli.FAILED
    assert said in capsys.readouterr().err


def test_the_examples_of_the_page_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "pipes.md").read_text()
    examples = [part.partition("```")[0] for part in text.split("```toml\n")[1:]]
    assert len(examples) >= 5
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    (tmp_path / "scylla-password").write_text("y\n")
    (tmp_path / "clickhouse").write_text("z")
    for example in examples:
        assert not judge(example), example
        (tmp_path / "headrace.toml").write_text(example.replace("/run/secrets/", ""))
        assert load(tmp_path / "headrace.toml").pipes


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("choose --zero-dates null or epoch", "zero_dates in [sources.NAME]"),
        ("--snapshot none, or --exclude a.b", "snapshot in [sources.NAME], exclude in [sources.NAME]"),
        ("start again with --set debezium.epoch=2", "epoch in [sources.NAME]"),
        ("--schema-changes drop_column=apply", "[pipes.NAME.schema_changes]"),
        ("headrace resync a.b --state DIR", ""),
        ("check user and password", ""),
    ],
)
def test_hints_name_settings_of_the_file_instead_of_flags(hint: str, said: str) -> None:
    assert add_file_keys(hint) == (f"{hint} (in the file: {said})" if said else hint)
