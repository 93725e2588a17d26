"""A pipe's log is read from its end: by level, by text, page by page, in bounded memory, whatever its files hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.telemetry.log_reader import LogLine, LogPage, LogQuery, read_page
from headrace.telemetry.log_writer import MAX_LINE, SEGMENTS, LogFileWriter, PipeLog, log_directory, prune_logs, segments

LEVELS = ("debug", "info", "warning", "error")


def record(number: int, level: str = "info", **fields: Any) -> bytes:
    return orjson.dumps({"ts": "2026-01-01T00:00:00.000Z", "level": level, "logger": "headrace", "message": f"line {number}", **fields})


def messages(page: LogPage) -> list[str]:
    return [line.message for line in page.lines]


def all_pages(directory: Path, **how: Any) -> list[LogLine]:
    found: list[LogLine] = []
    before = None
    while True:
        page = read_page(directory, LogQuery(before=before, **how))
        found[:0] = page.lines
        if page.before is None:
            return found
        assert before is None or page.before < before
        before = page.before


def stored(directory: Path, lines: Iterable[bytes], segment_bytes: int = 2000) -> None:
    PipeLog(directory, segment_bytes).append(lines)


def test_levels_texts_and_pages(tmp_path: Path) -> None:
    stored(tmp_path, [record(at, LEVELS[at % 4], place="Bücher" if at == 6 else "") for at in range(12)], 1 << 20)
    assert messages(read_page(tmp_path, LogQuery(limit=3))) == ["line 9", "line 10", "line 11"]
    assert messages(read_page(tmp_path, LogQuery("warning"))) == ["line 2", "line 3", "line 6", "line 7", "line 10", "line 11"]
    assert messages(read_page(tmp_path, LogQuery("error", limit=1))) == ["line 11"]
    assert messages(read_page(tmp_path, LogQuery(search="BÜCHER"))) == ["line 6"]
    assert messages(read_page(tmp_path, LogQuery(search="line 1"))) == ["line 1", "line 10", "line 11"]
    first = read_page(tmp_path, LogQuery(limit=5))
    second = read_page(tmp_path, LogQuery(before=first.before, limit=5))
    assert messages(second) == [f"line {at}" for at in range(2, 7)]
    assert [line.message for line in all_pages(tmp_path, limit=1)] == [f"line {at}" for at in range(12)]


def test_only_lines_that_came_since(tmp_path: Path) -> None:
    log = PipeLog(tmp_path)
    log.append(map(record, range(5)))
    first = read_page(tmp_path, LogQuery("error"))
    assert (first.lines, first.before) == ((), None)
    assert read_page(tmp_path, LogQuery(after=first.newest)) == LogPage((), None, first.newest)
    log.append(map(record, range(5, 9)))
    since = read_page(tmp_path, LogQuery(after=first.newest, limit=3))
    assert messages(since) == ["line 6", "line 7", "line 8"]
    assert messages(read_page(tmp_path, LogQuery(after=first.newest, before=since.before))) == ["line 5"]


def test_an_empty_log(tmp_path: Path) -> None:
    assert read_page(tmp_path / "nothing", LogQuery()) == LogPage((), None)
    (tmp_path / f"{0:020}.jsonl").touch()
    assert read_page(tmp_path, LogQuery()) == LogPage((), None)


def test_old_segments_are_removed_and_positions_stay(tmp_path: Path) -> None:
    log = PipeLog(tmp_path, 2000)
    log.append(record(at) for at in range(10))
    known = {line.message: line.position for line in all_pages(tmp_path, limit=2)}
    log.append(record(at) for at in range(10, 60))
    assert len(segments(tmp_path)) == SEGMENTS
    assert all(path.stat().st_size <= 2000 for _, path in segments(tmp_path))
    kept = all_pages(tmp_path, limit=7)
    assert kept[-1].message == "line 59"
    assert [line.message for line in kept] == [f"line {at}" for at in range(60 - len(kept), 60)]
    assert all(known.get(line.message, line.position) == line.position for line in kept)
    # A page that begins before what is kept is empty.
    assert read_page(tmp_path, LogQuery(before=known["line 5"])) == LogPage((), None)


def test_a_restart_continues_the_log_after_a_torn_line(tmp_path: Path) -> None:
    stored(tmp_path, [record(1)])
    [(_, path)] = segments(tmp_path)
    with path.open("ab") as file:
        file.write(record(2)[:30])
    assert messages(read_page(tmp_path, LogQuery())) == ["line 1"]
    stored(tmp_path, [record(3)])
    assert messages(read_page(tmp_path, LogQuery())) == ["line 1", "line 3"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_foreign_and_long_lines_are_left_out(tmp_path: Path) -> None:
    damaged = [b"no json", b"[]", b'{"level": 3}', b'{"level": "loud"}', b"{" * 5000, b"\xff\xfe", b""]
    lines = [record(0), *damaged, record(1, message=5), b"x" * 3 * MAX_LINE, record(2), b"y" * MAX_LINE, record(3)]
    (tmp_path / f"{0:020}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "notes.jsonl").write_text("not a segment\n")
    assert messages(read_page(tmp_path, LogQuery())) == ["line 0", "", "line 2", "line 3"]


def test_texts_are_escaped(tmp_path: Path) -> None:
    stored(tmp_path, [record(0, message="a\x1b[2Jb\nforged \u202e", exception="one\n\x07two", ts="\x9b")])
    [line] = read_page(tmp_path, LogQuery()).lines
    assert (line.message, line.exception) == ("a\\u001b[2Jb\\nforged \\u202e", "one\n\\u0007two")
    assert line.at == "\\u009b"


@settings(max_examples=20)
@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 9))
def test_every_line_is_on_one_page(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int) -> None:
    directory = tmp_path_factory.mktemp("log")
    path = directory / f"{0:020}.jsonl"
    path.write_bytes(b"".join(record(at, place="p" * size) + b"\n" for at, size in enumerate(sizes)))
    assert [line.message for line in all_pages(directory, limit=limit)] == [f"line {at}" for at in range(len(sizes))]
    positions = [line.position for line in all_pages(directory, limit=limit)]
    assert positions == sorted(set(positions))


def test_a_log_of_a_hundred_megabytes_is_not_loaded(tmp_path: Path) -> None:
    line = record(7, place="p" * 900) + b"\n"
    with (tmp_path / f"{0:020}.jsonl").open("wb") as file:
        file.write(record(0, "error", message="needle") + b"\n")
        for _ in range(100):
            file.write(line * (1_000_000 // len(line)))
    tracemalloc.start()
    try:
        page = read_page(tmp_path, LogQuery(limit=10))
        assert len(page.lines) == 10
        # One page searches a part of the log; its `before` continues the search.
        page, pages = read_page(tmp_path, LogQuery(search="needle")), 1
        while page.before is not None and not page.lines:
            page, pages = read_page(tmp_path, LogQuery(search="needle", before=page.before)), pages + 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert messages(page) == ["needle"]
    assert pages > 1
    assert peak < 4 << 20


def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    stored(tmp_path, [record(at, place="p" * 30_000) for at in range(100)], 8 << 20)
    page = read_page(tmp_path, LogQuery(limit=500))
    # 1 MiB: the rest is on the next pages.
    assert len(page.lines) == 35
    assert len(all_pages(tmp_path, limit=500)) == 100


def test_lines_that_come_too_fast_are_counted(tmp_path: Path) -> None:
    writer = LogFileWriter(tmp_path, ["shop", "crm"], max_queued=3)
    for at in range(10):
        writer.add("shop", record(at))
    writer.add("unknown", record(1))
    writer.close()
    page = read_page(log_directory(tmp_path, "shop"), LogQuery())
    assert messages(page) == ["line 0", "line 1", "line 2", "7 lines are missing here: they came faster than they could be stored"]
    assert read_page(log_directory(tmp_path, "crm"), LogQuery()).lines == ()


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".logs").write_text("in the way")
    writer = LogFileWriter(tmp_path, ["shop"])
    writer.start()
    writer.add("shop", record(1))
    writer.close()
    assert "cannot be written" in caplog.text


def test_logs_of_pipes_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    stored(log_directory(tmp_path, "shop"), [record(1)])
    [(_, path)] = segments(log_directory(tmp_path, "shop"))
    prune_logs(tmp_path, path.stat().st_mtime + 29 * 86_400)
    assert path.exists()
    prune_logs(tmp_path, path.stat().st_mtime + 31 * 86_400)
    assert not path.parent.exists()
