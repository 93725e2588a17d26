"""A sink's URL names one server; its password is shown nowhere."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink

NO_ENVIRONMENT: dict[str, str] = {}


def test_reads_every_part_and_decodes_percent_signs() -> None:
    target = parse_target("clickhouse://us%40er:p%3A%2Fs%25@ch.example:9000/my%20db", NO_ENVIRONMENT)
    assert target == ClickHouseTarget("ch.example", 9000, "us@er", "p:/s%", "my db", secure=False)


@pytest.mark.parametrize(
    ("url", "port", "secure"),
    [("clickhouse://h", 8123, False), ("clickhouses://h", 8443, True), ("clickhouses://h:444/", 444, True)],
)
def test_defaults(url: str, port: int, secure: bool) -> None:
    assert parse_target(url, NO_ENVIRONMENT) == ClickHouseTarget("h", port, "default", "", None, secure)


def test_password_comes_from_the_environment_only_when_the_url_has_none() -> None:
    environment = {"HEADRACE_SINK_PASSWORD": "from-env"}
    assert parse_target("clickhouse://u@h", environment).password == "from-env"
    assert parse_target("clickhouse://u:own@h", environment).password == "own"
    assert parse_target("clickhouse://u:@h", environment).password == ""


def test_ipv6_host() -> None:
    target = parse_target("clickhouse://[::1]:8124/db", NO_ENVIRONMENT)
    assert (target.host, target.port, target.is_loopback, str(target)) == ("::1", 8124, True, "clickhouse://default@[::1]:8124/db")


def test_no_text_form_shows_the_password() -> None:
    sink = ClickHouseSink(parse_target("clickhouse://u:hunter2@h/db", NO_ENVIRONMENT))
    for shown in (repr(sink), str(sink), repr(sink.target), str(sink.target), f"{sink.target}"):
        assert "hunter2" not in shown
    assert pickle.loads(pickle.dumps(sink)).target.password == "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hunter2@h/db",
        "clickhouse://u:hunter2@/db",
        "clickhouse://u:hunter2@h:port/db",
        "clickhouse://u:hunter2@h:99999/db",
        "clickhouse://u:hunter2@[h/db",
        "clickhouse://u:hunter2@h/db/table",
        "clickhouse://u:hunter2@h/db?x=1",
        "clickhouse://u:hunter2#x@h/db",
    ],
)
def test_an_unusable_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_target(url, NO_ENVIRONMENT)
    assert "clickhouse://user:password@host" in caught.value.hint
    assert "hunter2" not in str(caught.value)
