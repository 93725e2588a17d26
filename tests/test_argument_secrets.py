"""Passwords on the command line are removed from every kind of argument, and from the process list as soon as Python runs."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace import argument_secrets
from headrace.argument_secrets import KAFKA, KAFKA_PROPERTIES, REGISTRY, SINK, SOURCE, strip_secrets
from headrace.cql.address import PASSWORD_VARIABLES as CQL_PASSWORDS
from headrace.kafka.address import PASSWORD_VARIABLE as KAFKA_PASSWORD
from headrace.kafka.address import SECRETS_VARIABLE
from headrace.kafka.schema_repository import PASSWORD_VARIABLE as REGISTRY_PASSWORD
from headrace.sinks.clickhouse.server.url import PASSWORD_VARIABLE as SINK_PASSWORD
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD

TRIES = 5


def test_the_variables_are_those_that_are_read() -> None:
    assert (SOURCE, SINK, KAFKA, KAFKA_PROPERTIES) == (SOURCE_PASSWORD, SINK_PASSWORD, KAFKA_PASSWORD, SECRETS_VARIABLE)
    assert REGISTRY == REGISTRY_PASSWORD
    assert {scheme: argument_secrets.VARIABLES[scheme] for scheme in CQL_PASSWORDS} == CQL_PASSWORDS


@pytest.mark.parametrize(
    ("argument", "password", "without"),
    [
        ("mysql://u:s%40cret@h:1/db", "s@cret", "mysql://u@h:1/db"),
        ("mysql://u:a:b@h:1/db", "a:b", "mysql://u@h:1/db"),
        ("mysql://u:a@b@h:1/db", "a@b", "mysql://u@h:1/db"),
        ("clickhouse://u:x@[::1]:8123/db", "x", "clickhouse://u@[::1]:8123/db"),
        ("mariadb://u:x@h", "x", "mariadb://u@h"),
        ("mariadb://u:x@h?tls=required", "x", "mariadb://u@h?tls=required"),
        ("kafka://u:x%2Fy@h:9092,g:9092/?security.protocol=SASL_SSL", "x/y", "kafka://u@h:9092,g:9092/?security.protocol=SASL_SSL"),
        ("kafka://h:9092/", None, "kafka://h:9092/"),
        ("scylla://u:x%2Fy@h,g:9042/ks?dc=a", "x/y", "scylla://u@h,g:9042/ks?dc=a"),
        ("cql://u:x@h/", "x", "cql://u@h/"),
        ("mysql://u:@h/db", "", "mysql://u@h/db"),
        ("mysql://u@h:1/db", None, "mysql://u@h:1/db"),
        ("chdb:/some/where", None, "chdb:/some/where"),
        ("SELECT 'a:b@c'", None, "SELECT 'a:b@c'"),
    ],
)
def test_passwords_are_cut_out_of_arguments(argument: str, password: str | None, without: str) -> None:
    secrets = {} if password is None else {argument_secrets.VARIABLES[argument.partition("://")[0]]: password}
    assert strip_secrets(argument) == (without, secrets)


def test_secret_properties_and_registries() -> None:
    assert strip_secrets("kafka://u:x@h/t?a=b&sasl.password=s%20t") == (
        "kafka://u@h/t?a=b",
        {KAFKA: "x", KAFKA_PROPERTIES: "sasl.password=s%20t"},
    )
    assert strip_secrets("http://u:x@h:8081", registry=True) == ("http://u@h:8081", {REGISTRY: "x"})
    assert strip_secrets("http://u:x@h:8081") == ("http://u:x@h:8081", {})


def started_again(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of the restarted command."""
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    monkeypatch.setattr(os, "execve", lambda _, argv, environment: calls.append((argv[3:], environment)))
    argument_secrets.hide_passwords()
    [(given, environment)] = calls
    return given, {name: value for name, value in environment.items() if os.environ.get(name) != value}


def test_values_of_flags_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("ddl", "x", "--source=mysql://u:p@h/db", "--sink", "clickhouse://u:q@h")
    assert started_again(monkeypatch, *arguments) == (
        ["ddl", "x", "--source=mysql://u@h/db", "--sink", "clickhouse://u@h"],
        {SOURCE: "p", SINK: "q"},
    )
    for flag in (["--registry=http://u:p@r"], ["--registry", "http://u:p@r"]):
        given, secrets = started_again(monkeypatch, "tail", "kafka://k/t", *flag)
        assert (given[2:], secrets) == ([one.replace(":p@", "@") for one in flag], {REGISTRY: "p"})


def test_two_passwords_for_one_variable_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the second would silently be used for both."""
    with pytest.raises(SystemExit) as caught:
        started_again(monkeypatch, "replicate", "kafka://u:p1@a/t", "kafka://u:p2@b/t")
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert KAFKA in said
    assert "p1" not in said
    assert started_again(monkeypatch, "replicate", "kafka://u:p@a/t", "kafka://u:p@b/t")[1] == {KAFKA: "p"}


def shown_for(command: Sequence[str], secrets: Sequence[bytes], after: bytes, cwd: Path) -> float:
    """For how many seconds any of the secrets is in a process's command line, until it is `after`, as a tight poller sees it."""
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        path, last = Path(f"/proc/{process.pid}/cmdline"), begin
        while after not in (line := path.read_bytes()):
            assert time.monotonic() < begin + 60
            last = time.monotonic() if any(secret in line for secret in secrets) else last
        assert not any(secret in line for secret in secrets)
        return last - begin
    finally:
        process.kill()
        process.wait()


def test_a_password_leaves_the_process_list_when_python_has_started(tmp_path: Path) -> None:
    """Within the time that Python takes for its first line and a few imports, not after Headrace's imports."""
    script = Path(sys.executable).with_name("headrace")
    bare = [sys.executable, "-c", "import os; os.execv('/bin/sleep', ['sleep', '9'])", "s3cr3t"]
    # A server that never answers keeps the command waiting.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"mysql://u:s3cr3t@127.0.0.1:{silent.getsockname()[1]}/db", "clickhouse://u:0th3r@127.0.0.1:1"]
        commands = [[*start, "verify", *addresses] for start in ([str(script)], [sys.executable, "-m", "headrace"])]
        for command in commands:
            windows, floors = [], []
            for _ in range(TRIES):
                windows.append(shown_for(command, (b"s3cr3t", b"0th3r"), b"mysql://u@127", tmp_path))
                floors.append(shown_for(bare, (b"s3cr3t",), b"sleep\x009", tmp_path))
            window, floor = statistics.median(windows), statistics.median(floors)
            print(f"{Path(command[0]).name}: shown for {window * 1000:.0f} ms; Python alone starts in {floor * 1000:.0f} ms")
            assert window < 3 * floor + 0.05
