"""The commands that query a running process, against a real server on a socket."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.cli import status_view
from headrace.dashboard.server import serve
from headrace.errors import DefiniteError, TransientError
from headrace.service.running_process import (
    CONTROL_FILE,
    ControlEndpoint,
    HttpControl,
    find_process,
    new_token,
    publish_endpoint,
    read_endpoint,
    read_state_directory,
)
from headrace.service.status import PipeStage, ServiceStatus
from testkit.generators.fake_control import HOSTILE, POISON, FakeControl

FILE = '[headrace]\nstate = "kept/here"\n\n[sources.db]\nurl = "mysql://u:${NOT_SET}@h/shop"\n'
"""The environment has no secrets: the commands do not need them."""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControl]:
    """A process that runs `headrace.toml` of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)
    Path("headrace.toml").write_text(FILE)
    fake, token = FakeControl(), new_token()
    with serve(fake, "127.0.0.1:0", token) as server, publish_endpoint(tmp_path / "kept/here", server.url, token):
        yield fake


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints."""
    assert cli.main(words) == code
    out, err = capsys.readouterr()
    return out + err


def test_status(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "status", code=1)
    for pipe in control.status().pipes:
        assert re.search(rf"│ {pipe.name} +│ {pipe.stage}\b", text)
    assert "snapshot 0%" in text
    assert "retrying, again in " in text
    assert f"events: the value '0000-00-00' of column placed is no date (at {POISON})" in text
    assert "remedy: correct it at the source" in text
    assert "headrace skip events" in text
    assert "shop: 2 rows were refused and wait in headrace.errors" in text
    place = "log of shop.orders, stream 0x00, cdc$time c72c7c3e-2fda-11eb-ba1d-e2d8e9bb0299"
    control.set("shop", late_rows=1234, late_place=place)
    late = said(capsys, "status", "--pipe", "shop")
    assert f"shop: 1,234 log rows arrived too late to be read, the first at {place}" in late
    assert "headrace resync TABLE --pipe shop copies it again" in late
    assert not any(word in late for word in ("left out", "could not be read", "excluded"))
    control.set("shop", skipped=3, unreadable=12, filtered=4567)
    counted = said(capsys, "status", "--pipe", "shop")
    assert "shop: 3 events were left out by headrace skip, in total" in counted
    assert "shop: 12 records could not be read, in total" in counted
    assert "shop: 4,567 changes or snapshot rows were excluded by filters, since the process began" in counted
    assert said(capsys, "status", "headrace.toml", "--pipe", "orders").count("streaming") == 2
    tables = said(capsys, "status", "--tables", "--pipe", "shop")
    assert re.search(r"shop\.audit +│ shop\.audit +│ +9,0\d\d,\d\d\d │ .* different \(1 different, 2 missing\), 2 h ago", tables)
    assert "not written" not in tables
    orders, *others = control.status().pipes[0].tables
    control.set("shop", tables=(replace(orders, skipped=1, dead_letters=2, late_rows=3, filtered=4000), *others))
    tables = said(capsys, "status", "--tables", "--pipe", "shop")
    assert re.search(r"┃ not written +┃", tables)
    assert re.search(r"│ shop\.orders .*│ 1 skipped, 2 refused, 3 late, 4,000 filtered +│", tables)
    assert re.search(r"│ shop\.audit .*│ - +│", tables)
    # A name cannot send control sequences to the terminal.
    assert HOSTILE.replace("\n", "\\n") in tables
    document = json.loads(said(capsys, "status", "--json", code=1))
    counts = [
        {name: pipe[name] for name in ("skipped", "unreadable", "filtered", "dead_letters", "late_rows")} for pipe in document["pipes"]
    ]
    assert counts[0] == {"skipped": 3, "unreadable": 12, "filtered": 4567, "dead_letters": 2, "late_rows": 1234}
    assert set(counts[1].values()) == {0}
    assert [pipe["name"] for pipe in document["pipes"]] == [pipe.name for pipe in control.status().pipes]
    assert "there is no pipe 'nobody'" in said(capsys, "status", "--pipe", "nobody", code=2)
    for name in ("events", "billing"):
        control.set(name, stage=PipeStage.PAUSED)
    assert cli.main(["status"]) == 0


def test_pause_resume_and_stop_commands(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    assert "shop: pauses" in said(capsys, "pause", "shop", "orders")
    assert {pipe.stage for pipe in control.status().pipes if pipe.group in ("shop", "orders")} == {PipeStage.PAUSED}
    assert "shop: resumes" in said(capsys, "resume", "shop", "--file", "headrace.toml")
    assert "shop: stops" in said(capsys, "stop", "shop", "--state", "kept/here")
    # A pipe that refuses does not affect the others; all errors are reported.
    text = said(capsys, "pause", "old", "crm", "events", code=2)
    assert "crm: pauses" in text
    assert "old is disabled" in text
    assert "events is failed" in text
    assert "there is no pipe 'nobody'" in said(capsys, "pause", "nobody", "crm", code=2)
    assert "say which" in said(capsys, "pause", code=2)
    assert "do not go together" in said(capsys, "pause", "--all", "crm", code=2)
    assert "orders: stops" in said(capsys, "stop", "--all")
    assert ("stop", "old") not in control.asked
    assert ("resync", "shop", ("shop.orders", "shop.x")) not in control.asked
    assert "status --tables" in said(capsys, "resync", "--pipe", "shop", "shop.orders", "shop.x")
    assert control.asked[-1] == ("resync", "shop", ("shop.orders", "shop.x"))
    assert "give --pipe NAME" in said(capsys, "resync", "--file", "headrace.toml", "shop.orders", code=2)


def test_skipping_asks_first(control: FakeControl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "can be left out" in said(capsys, "skip", "shop", code=2)
    assert "give --yes" in said(capsys, "skip", "events", code=2)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    text = said(capsys, "skip", "events", code=2)
    assert "the value '0000-00-00'" in text
    assert "nothing was left out" in text
    assert [asked for asked in control.asked if asked[0] == "skip"] == []
    assert "another event" in said(capsys, "skip", "events", "--yes", "--place", "elsewhere:4", code=2)
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or "y")
    assert f"the event at {POISON} was left out" in said(capsys, "skip", "events")
    assert POISON in questions[0]
    assert control.pipe("events").stage is PipeStage.STREAMING


def test_comparing_in_the_process(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "verify", "--pipe", "orders")
    assert text.count("orders.lines: equal") == 2
    text = said(capsys, "verify", "--pipe", "shop", "--tables", "shop.[ac]*", "--tables", "shop.audit", code=1)
    assert control.asked[-1] == ("verify", "shop", ("shop.audit", "shop.customers"))
    assert "shop.audit: different, " in text
    assert "SOURCE and SINK, or --pipe" in said(capsys, "verify", code=2)
    assert "no such table" in said(capsys, "verify", "--pipe", "nobody", code=2)


@pytest.mark.usefixtures("control")
def test_finding_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept/here" / CONTROL_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    contact = read_endpoint(path.parent)
    assert contact.token not in repr(contact)
    assert said(capsys, "dashboard") == f"{contact.url}/#token={contact.token}\n"
    # By its address: without the token it is read-only.
    assert "streaming" in said(capsys, "status", "--url", contact.url, code=1)
    assert "HEADRACE_TOKEN" in said(capsys, "pause", "shop", "--url", contact.url, code=2)
    monkeypatch.setenv("HEADRACE_TOKEN", "wrong")
    assert "not the process's token" in said(capsys, "pause", "shop", "--url", contact.url, code=2)
    monkeypatch.setenv("HEADRACE_TOKEN", contact.token)
    assert "shop: pauses" in said(capsys, "pause", "shop", "--url", f"{contact.url}/")
    # By its file, from any directory; relative names are resolved from the file.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert "there is no headrace.toml here" in said(capsys, "status", code=2)
    assert said(capsys, "dashboard", "../headrace.toml").startswith(contact.url)
    monkeypatch.setenv("KEPT", "here")
    (tmp_path / "other.toml").write_text('[headrace]\nstate = "kept/${KEPT}"\n')
    assert find_process("../other.toml") == contact
    (tmp_path / "application.conf").write_text("mypipe {}")
    assert read_state_directory(tmp_path / "application.conf") == tmp_path / "headrace-state"


@pytest.mark.usefixtures("control")
def test_no_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "kept/here"
    text = (state / CONTROL_FILE).read_text()
    (tmp_path / "bad.toml").write_text("[")
    assert "is not TOML" in said(capsys, "status", "bad.toml", code=2)
    assert "no such file" in said(capsys, "status", "none.toml", code=2)
    assert "no process runs here" in said(capsys, "status", "--state", str(tmp_path), code=2)
    # A killed process left its file.
    gone = subprocess.Popen(["true"])
    gone.wait()
    (state / CONTROL_FILE).write_text(json.dumps({**json.loads(text), "pid": gone.pid}))
    text = said(capsys, "status", code=2)
    assert f"{gone.pid}, is no more" in text
    assert "remedy: start it with `headrace run`" in text
    (state / CONTROL_FILE).write_text("{}")
    assert "no control file" in said(capsys, "status", code=2)
    assert "no process answers" in said(capsys, "status", "--url", "http://127.0.0.1:9", code=2)
    assert "no address" in said(capsys, "status", "--url", "127.0.0.1:9", code=2)


def test_its_place_is_left_when_it_ends(tmp_path: Path) -> None:
    with publish_endpoint(tmp_path, "http://x", "old"):
        # Another process has replaced it.
        (tmp_path / CONTROL_FILE).write_text(json.dumps({"url": "http://y", "token": "new", "pid": os.getppid()}))
    assert read_endpoint(tmp_path) == ControlEndpoint("http://y", "new", os.getppid())
    with publish_endpoint(tmp_path, "http://x", "old"):
        assert read_endpoint(tmp_path).url == "http://x"
    with pytest.raises(DefiniteError, match="no process runs"):
        read_endpoint(tmp_path)


def test_the_client_is_a_control(control: FakeControl) -> None:
    remote = HttpControl(find_process())
    frozen = control.status()
    assert ServiceStatus.from_json(json.loads(json.dumps(frozen.to_json()))) == frozen
    # A newer process returns more fields.
    newer = {**frozen.to_json(), "mood": "good"}
    newer["pipes"] = [{**pipe, "colour": "red"} for pipe in newer["pipes"]]
    assert ServiceStatus.from_json(newer) == frozen
    assert replace(remote.pipe("events"), lag_s=None, lag_bytes=None) == replace(control.pipe("events"), lag_s=None, lag_bytes=None)
    assert len(remote.history("orders/west")) == len(control.history("orders/west"))
    assert remote.query("shop", "SELECT 1")[0] == ["id", "item", "big"]
    with pytest.raises(DefiniteError) as refused:
        remote.query("shop", "DROP TABLE x")
    assert (refused.value.place, refused.value.hint) == ("DROP TABLE x", "use clickhouse-client to write")

    def away(*_: object) -> None:
        raise TransientError("the sink is away", place="ch", hint="start it")

    control.pause = away  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="away"):
        remote.pause("shop")


def test_status_watch_redraws_in_place(control: FakeControl, tmp_path: Path) -> None:
    """On a terminal: redrawn in place until Ctrl-C."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    command = [sys.executable, "-m", "headrace", "status", "--watch", "0.2"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path) as process:
        os.close(theirs)
        seen = _read_until(ours, lambda text: "archive" in text and "streaming" in text)
        assert "\x1b[?1049h" in seen
        control.stop("shop")
        _read_until(ours, lambda text: re.search(r"shop[^\n]*stopped", text) is not None)
        process.send_signal(signal.SIGINT)
        _read_until(ours, lambda text: "\x1b[?1049l" in text)
        assert process.wait(60) == 130
    os.close(ours)


def _read_until(descriptor: int, holds: Any) -> str:
    seen, deadline = "", time.monotonic() + 90
    while not holds(seen):
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 1)[0]:
            seen += os.read(descriptor, 1 << 16).decode(errors="replace")
    return seen


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.42, "0.4 s"), (42.4, "42 s"), (60, "1 m"), (75, "1 m 15 s"), (3600, "1 h"), (8100, "2 h 15 m"), (90_000, "1 d 1 h")],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert status_view.duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (212_000, "212 kB"), (7.3e15, "7300.0 TB")])
def test_sizes(count: float, text: str) -> None:
    assert status_view.size(count) == text
