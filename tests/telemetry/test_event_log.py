"""Events survive a restart, a damaged file and a full disk; file and memory stay bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.telemetry import event_log
from headrace.telemetry.event import MAX_TEXT, EventKind, PipeEvent, bounded_text, draft_event
from headrace.telemetry.event_log import EventLog


def event(at: float, pipe: str = "shop", text: str = "starts") -> PipeEvent:
    return draft_event(at, pipe, EventKind.STARTED, text)


def test_events_survive_a_restart_newest_first(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.add([event(1.0), event(3.0, "crm")])
    log.add([draft_event(2.0, "shop", EventKind.FAILED, "it is too wide", "table t", "widen it", "k")])
    for again in (log, EventLog(tmp_path)):
        assert [one.at for one in again.events()] == [3.0, 2.0, 1.0]
        assert [one.at for one in again.events(["shop"])] == [2.0, 1.0]
        assert [one.at for one in again.events(limit=1)] == [3.0]
        assert again.events(["shop"])[0] == draft_event(2.0, "shop", EventKind.FAILED, "it is too wide", "table t", "widen it", "k")
        assert again.events([]) == []
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"at": "soon", "pipe": "shop", "kind": "started", "text": ""}',
        b'{"at": NaN, "pipe": "shop", "kind": "started", "text": ""}',
        b'{"at": 1.0, "pipe": ["shop"], "kind": "started", "text": ""}',
        b'{"at": 1.0, "pipe": "shop", "kind": "unheard", "text": ""}',
        b'{"at": 1.0, "pipe": "shop", "kind": "started", "text": "", "more": 1}',
        b'{"at": 1.0, "pipe": "shop", "kind": "started", "text": "%s"}' % (b"x" * (MAX_TEXT + 1)),
    ],
)
def test_a_damaged_line_is_dropped_and_the_others_stay(tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    EventLog(tmp_path).add([event(1.0), event(2.0)])
    file = tmp_path / event_log.FILE
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + line + b"\n" + second)
    assert [one.at for one in EventLog(tmp_path).events()] == [2.0, 1.0]
    assert "1 damaged lines are dropped" in caplog.text
    assert file.read_bytes() == first + second


def test_a_cut_of_the_file_keeps_the_whole_lines(tmp_path: Path) -> None:
    EventLog(tmp_path).add([event(1.0), event(2.0)])
    file = tmp_path / event_log.FILE
    content = file.read_bytes()
    first = content.index(b"\n")
    for end in (0, 1, first - 1, first, first + 1, first + 2, first + 50, len(content) - 2, len(content) - 1):
        file.write_bytes(content[:end])
        log = EventLog(tmp_path)
        log.add([event(9.0)])
        assert len(log.events()) == content[:end].count(b"\n") + 1
        assert len(EventLog(tmp_path).events()) == content[:end].count(b"\n") + 1


def test_file_and_memory_are_bounded_and_a_noisy_pipe_displaces_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_OF_A_PIPE", 20)
    monkeypatch.setattr(event_log, "MAX_EVENTS", 45)
    monkeypatch.setattr(event_log, "_SLACK", 10)
    log = EventLog(tmp_path)
    log.add([event(0.5, "quiet")])
    for at in range(200):
        log.add([event(float(at + 1))])
    assert [one.at for one in log.events(["shop"])] == [float(at) for at in range(200, 180, -1)]
    assert [one.at for one in log.events(["quiet"])] == [0.5]
    assert len((tmp_path / event_log.FILE).read_bytes().splitlines()) <= 31
    for name in ("a", "b", "c"):
        log.add([event(1000.0 + at, name) for at in range(20)])
    log.add([event(2000.0)] * 11)
    again = EventLog(tmp_path)
    assert len(again.events(limit=1000)) <= 45 + 11
    assert len((tmp_path / event_log.FILE).read_bytes().splitlines()) <= 45 + 10


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path / "state")
    (tmp_path / "state").write_text("no directory")
    log.add([event(1.0)])
    log.add([event(2.0)])
    assert [one.at for one in log.events()] == [2.0, 1.0]
    assert caplog.text.count("cannot be written") == 1
    # With room again, the next event brings all of them.
    (tmp_path / "state").unlink()
    log.add([event(3.0)])
    assert [one.at for one in EventLog(tmp_path / "state").events()] == [3.0, 2.0, 1.0]


def test_texts_are_one_short_line() -> None:
    assert bounded_text("a\nb\u202ec") == "a\\nb\\u202ec"
    for text in ("x" * 5000, "\n" * 5000, "\U0001f6b0" * 5000):
        assert len(bounded_text(text)) == MAX_TEXT
        assert bounded_text(text).endswith("…")
    stored = json.dumps(event(1.0, text="\ud800\x1b[2J").to_json())
    assert "\\ud800" in stored
    assert "\\\\u001b" in stored
