"""Log lines: their fields, and no secrets."""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime

import pytest

from headrace import cli
from headrace.errors import DefiniteError
from headrace.service import log_formats
from headrace.service.log_formats import JsonFormatter, TextFormatter, configure_pipe_logging, mask_secrets
from headrace.spark.runtime.worker_logs import mark_log_lines

SECRET = "s3cr3t!Pass"


def line(formatter: logging.Formatter, message: str, *arguments: object, error: BaseException | None = None, **more: object) -> str:
    record = logging.LogRecord(
        "headrace.x", logging.WARNING, __file__, 1, message, arguments, (type(error), error, error.__traceback__) if error else None
    )
    record.__dict__.update(more)
    return formatter.format(record)


def test_library_log_lines_have_the_same_form_and_no_secrets(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    try:
        configure_pipe_logging(JsonFormatter())
        logging.getLogger("some.library").warning("cannot reach mysql://u:%s@db", SECRET)
    finally:
        added = next(one for one in root.handlers if one not in before)
        root.handlers[:] = before
        assert isinstance(added, logging.StreamHandler)
        added.stream.close()
    said = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (said["logger"], said["message"]) == ("some.library", "cannot reach mysql://u:***@db")


def test_what_another_process_says_in_several_lines_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    ours = logging.getLogger("headrace")
    before = ours.handlers[:], ours.propagate
    try:
        mark_log_lines("shop/east")
        ours.warning("waiting: the sink is away:\n  no route")
        ours.warning("waiting: %s", DefiniteError("the sink is away", hint="start it"))
        ours.warning("waiting:\n  %s", "no\nroute")
    finally:
        ours.handlers[:], ours.propagate = before
    assert capsys.readouterr().err.splitlines() == [
        r"headrace-log WARNING shop/east/ waiting: the sink is away:\n  no route",
        "headrace-log WARNING shop/east/ waiting: the sink is away   remedy: start it",
        r"headrace-log WARNING shop/east/ waiting:   no\nroute",
    ]


def test_an_object_a_line() -> None:
    said = json.loads(line(JsonFormatter(), "waiting: %s,\n%d", 'a "peer"', 7, pipe="shop/east"))
    assert datetime.fromisoformat(said.pop("ts")).tzinfo is not None
    assert said == {"level": "warning", "logger": "headrace.x", "message": 'waiting: a "peer",\n7', "pipe": "shop/east"}
    assert "\n" not in line(JsonFormatter(), "two\nlines")
    # A Headrace error: message, place and hint in separate fields.
    error = DefiniteError("no such table", place="binlog.1:4", hint="make it")
    said = json.loads(line(JsonFormatter(), "failed: %s", error))
    assert (said["message"], said["place"], said["remedy"]) == ("failed: no such table", "binlog.1:4", "make it")
    assert "exception" not in said
    said = json.loads(line(JsonFormatter(), "it failed", error=error))
    assert (said["place"], "exception" in said) == ("binlog.1:4", False)
    # An unexpected error: the whole traceback.
    try:
        raise ValueError("odd")
    except ValueError as raised:
        said = json.loads(line(JsonFormatter(), "it failed", error=raised))
    assert said["exception"].endswith("ValueError: odd")
    assert "test_an_object_a_line" in said["exception"]


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach mysql://repl:{SECRET}@db:3306/shop",
        f"mysql://:{SECRET}@db",
        f"clickhouses://default:{SECRET}@[::1]:8443/x?a=b, and more",
        f"kafka://u:{SECRET}@k1:9092,k2:9092/t",
        f"scylla://u:{SECRET}@s1,s2/app and cql://v:{SECRET}@t/app",
        f"'mysql://u:{SECRET}@h'",
        f"sasl.password={SECRET} sasl.username=u",
        f"PASSWORD = '{SECRET}', other = 1",
        f'ssl.key.password="{SECRET}"',
        f"https://h/?token={SECRET}&x=1",
        f'{{"user": "u", "password": "{SECRET}"}}',
        f"CREATE USER u IDENTIFIED BY '{SECRET}'",
        f"ALTER USER u IDENTIFIED WITH caching_sha2_password BY '{SECRET}' REQUIRE SSL",
        f"Authorization: Bearer {SECRET.replace('!', '-')}",
        f"connect(user='u', password=b'{SECRET}', port=1)",
        f"IDENTIFIED BY 'it\\'s {SECRET}'",
        f"password='it''s {SECRET}'",
        f'password="say \\"{SECRET}\\""',
        f"{{'X-ClickHouse-Key': '{SECRET}'}}",
        f"class:my.module:Sink?passphrase={SECRET}&colour=red",
        f"class:my.module:Sink?api_key={SECRET}&colour=red",
        f"kafka://k?ssl.key.pem={SECRET}",
    ],
)
def test_values_that_resemble_secrets_are_masked(text: str) -> None:
    hidden = SECRET.replace("!", "-") if "Bearer" in text else SECRET
    for shown in (mask_secrets(text), line(TextFormatter("%(message)s"), "%s", text), line(JsonFormatter(), "%s", text)):
        assert hidden not in shown
        assert log_formats.MASK in shown
    # Also in exceptions, and in an error's place.
    with pytest.raises(ConnectionError) as caught:
        raise ConnectionError(text)
    assert hidden not in line(TextFormatter("%(message)s"), "it failed", error=caught.value)
    assert hidden not in line(JsonFormatter(), "it failed", error=caught.value)
    assert hidden not in line(JsonFormatter(), "%s", DefiniteError(text, place=text, hint=text))


@pytest.mark.parametrize(
    "text",
    [
        "mysql://repl@db:3306/shop -> clickhouse://default@ch:8123/shop",
        "kafka://k1:9092,k2:9092/shop.inventory.orders",
        "http://127.0.0.1:8088/#x",
        "the password is wrong: see HEADRACE_SOURCE_PASSWORD",
        "12:30:01 a@b.example",
        "unexpected token: SELECT",
        "bearer of news",
        "write mysql://user:password@host:port/db",
    ],
)
def test_other_words_are_not_masked(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize("part", ["x", "://", "x:", "mysql://", "a://b:", "'x", "token ", "password=", "identified by ", "bearer ", "\\'"])
def test_long_texts_are_masked_in_linear_time(part: str) -> None:
    """Masking took time in proportion to the square of the length: minutes for 100,000 letters without a blank."""
    began = time.process_time()
    mask_secrets(part * (200_000 // len(part)))
    assert time.process_time() - began < 20


@pytest.mark.parametrize("password", ["shop", "orders", "a", "mysql", "db.example", "3306", "%40", "sh%6Fp"])
def test_a_password_is_masked_where_it_stands_and_nowhere_else(password: str) -> None:
    """A password that equals the name of a database, a table, a host or a port must not mask those."""
    rest = f"table shop.orders of db.example:3306: {password} is a name; mysql://db.example:3306/{password}"
    text = f"mysql://repl:{password}@db.example:3306/shop failed, password={password}, IDENTIFIED BY '{password}': {rest}"
    said = "mysql://repl:***@db.example:3306/shop failed, password=***, IDENTIFIED BY '***': " + rest
    assert line(TextFormatter("%(message)s"), "%s", text) == said
    assert json.loads(line(JsonFormatter(), "%s", text))["message"] == said


def test_errors_of_commands_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--log-format", "json", "status", "--url", f"http://u:{SECRET}@127.0.0.1:9"]) == cli.FAILED
    out, err = capsys.readouterr()
    said = json.loads(err)
    assert (out, said["level"]) == ("", "error")
    assert "no process answers" in said["message"]
    assert said["remedy"]
    assert SECRET not in err
    assert cli.main(["status", "--url", f"http://u:{SECRET}@127.0.0.1:9"]) == cli.FAILED
    assert SECRET not in capsys.readouterr().err
