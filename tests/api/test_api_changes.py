"""`headrace.changes` returns every change once, in order, from the given position, and leaves no files."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.api.feed import Feed
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.sources.mysql.limits import BatchLimits
from testkit.oracles.binlogs import Image, Logbook, Row, images_of

Changes = Callable[..., Feed[ChangeBlock]]


@pytest.fixture
def book(book: Logbook) -> Logbook:
    book.run(
        "CREATE TABLE goods (id INT PRIMARY KEY, name VARCHAR(40), price DECIMAL(8,2), made DATETIME(3))",
        "CREATE TABLE sales (day DATE, goods INT, pieces INT UNSIGNED, PRIMARY KEY (day, goods))",
        "CREATE TABLE notes (id INT PRIMARY KEY, body TEXT)",
    )
    return book


@pytest.fixture
def changes(book: Logbook) -> Iterator[Changes]:
    """Opens `headrace.changes` on the book's server; all feeds are closed after the test."""
    opened: list[Feed[ChangeBlock]] = []

    def open_changes(*tables: str, **options: Any) -> Feed[ChangeBlock]:
        chosen = [f"{book.database}.{table}" for table in tables or ("*",)]
        opened.append(headrace.changes(book.server.url(), tables=chosen, **options))
        return opened[-1]

    yield open_changes
    for feed in opened:
        feed.close()


def work(book: Logbook, rounds: int = 4) -> None:
    """Transactions over two tables, single statements, key changes, deletes, a rollback and a savepoint."""
    for n in range(rounds):
        goods = ", ".join(f"({n * 100 + i}, 'thing {i}', {i}.25, '2024-02-{n % 28 + 1:02d} 10:00:00.{i:03d}')" for i in range(20))
        book.run(
            "BEGIN", f"INSERT INTO goods VALUES {goods}", f"INSERT INTO sales VALUES ('2024-01-01', {n}, 7), ('2024-01-02', {n}, NULL)"
        )
        book.run(f"UPDATE goods SET price = price + 1 WHERE id BETWEEN {n * 100} AND {n * 100 + 9}", "SAVEPOINT s")
        book.run("UPDATE sales SET pieces = 99", "ROLLBACK TO s", "COMMIT")
        book.run(f"UPDATE goods SET id = id + 50 WHERE id = {n * 100 + 3}", f"DELETE FROM goods WHERE id = {n * 100 + 7}")
        book.run("BEGIN", "DELETE FROM sales", "ROLLBACK", f"UPDATE sales SET day = day + INTERVAL 1 MONTH WHERE goods = {n}")


def replay(images: list[Image], table: str, key: int = 1) -> list[Row]:
    """Return the rows of a table after its images, by its first `key` columns."""
    rows: dict[Row, Row] = {}
    for image in images:
        if image.table.table == table:
            if image.op in (Op.DELETE, Op.BEFORE):
                del rows[image.row[:key]]
            else:
                rows[image.row[:key]] = image.row
    return sorted(rows.values(), key=lambda row: tuple(str(part).zfill(12) for part in row[:key]))


def assert_equal_to_tables(book: Logbook, images: list[Image]) -> None:
    assert replay(images, "goods") == book.select(book.schema("goods"), "id")
    assert replay(images, "sales", 2) == book.select(book.schema("sales"), "day, goods")


def test_replayed_changes_are_the_tables(book: Logbook, changes: Changes) -> None:
    feed = changes(stop=None)
    work(book)
    blocks = list(changes(start=feed.position, stop="end"))
    images = images_of(blocks)
    assert_equal_to_tables(book, images)
    assert {block.schema.name.table for block in blocks} == {"goods", "sales"}
    for table in ("goods", "sales"):
        versions = [v for block in blocks if block.schema.name.table == table for v in block.version.to_pylist()]
        assert versions == sorted(set(versions)), "each table's images come in the order of the log"
    # The first one was opened before the changes: it sees them too.
    seen: list[ChangeBlock] = []
    while sum(block.rows for block in seen) < len(images):
        seen.append(next(feed))
    assert images_of(seen) == images


def test_resuming_after_any_item_gives_the_rest(book: Logbook, changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.mysql.rows.row_decoder.MAX_BLOCK_ROWS", 11)
    monkeypatch.setattr("headrace.api.feed._LIMITS", BatchLimits(flush_bytes=4000, flush_seconds=0, parallelism=1))
    start = changes().position
    work(book)
    whole = images_of(list(changes(start=start, stop="end")))
    with changes(start=start, stop="end") as feed:
        places = [(json.dumps(feed.position), 0)]
        count = 0
        for block in feed:
            count += block.rows
            places.append((json.dumps(feed.position), count))
        places.append((json.dumps(feed.position), count))
    assert count == len(whole)
    assert len(places) > 16
    assert sum('"partly"' in text for text, _ in places) > 12
    for text, handed_out in places:
        rest = list(changes(start=json.loads(text), stop="end"))
        assert sum(block.rows for block in rest) == len(whole) - handed_out
        images = images_of(rest)
        assert images == [image for image in whole if image in images], "no image comes twice"
    # A position also survives a second stop before anything was read.
    text, handed_out = places[2]
    again = changes(start=json.loads(text))
    assert json.loads(text) == again.position
    assert sum(block.rows for block in changes(start=again.position, stop="end")) == len(whole) - handed_out


def test_a_feed_stops_exactly_at_the_given_position(book: Logbook, changes: Changes) -> None:
    start = changes().position
    book.run("INSERT INTO notes VALUES (1, 'a'), (2, 'b')")
    middle = changes().position
    book.run("INSERT INTO notes VALUES (3, 'c')", "UPDATE notes SET body = 'd' WHERE id = 1")
    place = book.place()
    assert [image.row[0] for image in images_of(list(changes(start=start, stop=middle)))] == ["1", "2"]
    assert [image.row[0] for image in images_of(list(changes(start=middle, stop=f"{place.file}:{place.offset}")))] == ["3", "1"]
    # A position inside a transaction: the transaction is skipped.
    inside = changes(start=middle, stop=f"{place.file}:{place.offset - 1}")
    assert [image.row[0] for image in images_of(list(inside))] == ["3"]
    assert sum(block.rows for block in changes(start=inside.position, stop="end")) == 1
    assert list(changes(stop="end")) == []


def test_tables_are_chosen_by_globs(book: Logbook, changes: Changes) -> None:
    start = changes().position
    work(book, 1)
    book.run("INSERT INTO notes VALUES (1, 'a')")

    def tables(*chosen: str, **options: Any) -> set[str]:
        return {block.schema.name.table for block in changes(*chosen, start=start, stop="end", **options)}

    assert tables("*") == {"goods", "sales", "notes"}
    assert tables("s*", "notes") == {"sales", "notes"}
    assert tables("*", exclude=f"{book.database}.?ales") == {"goods", "notes"}
    whole = headrace.changes(book.server.url(book.database), start=start, stop="end")
    assert {block.schema.name.table for block in whole} == {"goods", "sales", "notes"}
    with pytest.raises(DefiniteError, match="no tables were chosen"):
        headrace.changes(book.server.url())


def test_every_before_image_on_demand(book: Logbook, changes: Changes) -> None:
    start = changes().position
    book.run("INSERT INTO notes VALUES (1, 'a')", "UPDATE notes SET body = 'b'", "UPDATE notes SET id = 2", "DELETE FROM notes")
    only_moves = [(image.op.name, image.row) for image in images_of(list(changes(start=start, stop="end")))]
    assert only_moves == [
        ("INSERT", ("1", "a")),
        ("UPDATE", ("1", "b")),
        ("BEFORE", ("1", "b")),
        ("UPDATE", ("2", "b")),
        ("DELETE", ("2", "b")),
    ]
    blocks = list(changes(start=start, stop="end", before=True))
    assert [(i.op.name, i.row[1]) for i in images_of(blocks)][1:3] == [("BEFORE", "a"), ("UPDATE", "b")]
    assert sum(block.changes for block in blocks) == 4


def test_a_snapshot_comes_first(book: Logbook, changes: Changes) -> None:
    work(book, 2)
    feed = changes("goods", "sales", snapshot=True, stop="end")
    # Changes after the feed was opened, before and after its rows are read.
    book.run("DELETE FROM goods WHERE id = 1", "INSERT INTO goods VALUES (7777, 'late', 1, NULL)", "UPDATE sales SET pieces = 3")
    with pytest.raises(DefiniteError, match="an unfinished snapshot has no position"):
        _ = feed.position
    blocks = list(feed)
    ops = [set(block.op.to_pylist()) for block in blocks]
    first_change = next((i for i, kinds in enumerate(ops) if kinds != {Op.SNAPSHOT}), len(ops))
    assert first_change == 2
    assert all(Op.SNAPSHOT not in kinds for kinds in ops[first_change:])
    images = images_of(blocks) + images_of(list(changes("goods", "sales", start=feed.position, stop="end")))
    rows: dict[tuple[str, Row], Image] = {}
    for image in images:
        key = image.table.table, image.row[: 1 if image.table.table == "goods" else 2]
        rows[key] = max(rows.get(key, image), image, key=lambda one: one.version)
    left = [image for image in rows.values() if image.op not in (Op.DELETE, Op.BEFORE)]
    for table, order in (("goods", "id"), ("sales", "day, goods")):
        assert sorted(image.row for image in left if image.table.table == table) == sorted(book.select(book.schema(table), order))


def test_new_tables_are_followed_from_their_making_on(book: Logbook, changes: Changes) -> None:
    start = book.place()
    book.run("CREATE TABLE fresh (id INT PRIMARY KEY, x DOUBLE)", "INSERT INTO fresh VALUES (1, 0.5)", "INSERT INTO notes VALUES (1, 'a')")
    book.run("ALTER TABLE fresh ADD COLUMN y VARCHAR(9) FIRST, DROP COLUMN x", "INSERT INTO fresh VALUES ('é', 2)")
    found = [(image.table.table, image.row) for image in images_of(list(changes(start=f"{start.file}:{start.offset}", stop="end")))]
    assert found == [("fresh", ("1", 0.5)), ("notes", ("1", "a")), ("fresh", ("é", "2"))]


def test_truncations_are_reported_from_any_start(book: Logbook, changes: Changes) -> None:
    start = book.place()
    book.run("INSERT INTO notes VALUES (1, 'a')", "TRUNCATE notes", "RENAME TABLE sales TO sold", "DROP TABLE goods")
    with pytest.raises(DefiniteError, match="TRUNCATE notes"):
        list(changes(start=f"{start.file}:{start.offset}", stop="end"))
    calls: list[tuple[str, str]] = []
    list(changes(start=f"{start.file}:{start.offset}", stop="end", on_statement=lambda one: calls.append((one.table.table, one.news.name))))
    assert calls[0] == ("notes", "EMPTIED")
    assert {("sold", "LOST"), ("goods", "LOST")} <= set(calls)


def test_transactions_come_whole_and_in_order(book: Logbook, changes: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.mysql.rows.row_decoder.MAX_BLOCK_ROWS", 11)
    start = changes().position
    work(book)
    whole = images_of(list(changes(start=start, stop="end", before=True)))
    found = list(headrace.transactions(book.server.url(book.database), start=start, stop="end", before=True))
    # Per round: a transaction over both tables, then three single statements; the rolled-back one is missing.
    assert [{block.schema.name.table for block in one.blocks} for one in found] == [{"goods", "sales"}, {"goods"}, {"goods"}, {"sales"}] * 4
    assert len({one.id for one in found}) == 16
    in_order = [image for one in found for block in one.blocks for image in images_of([block])]
    assert in_order == whole, "the exact order of the log"
    big = found[0]
    assert [block.schema.name.table for block in big.blocks] in (
        ["goods"] * n + ["sales"] + ["goods"] * m for n in (1, 2, 3) for m in (1, 2, 3)
    )
    assert big.id in executed_gtids(book, len(found))
    assert abs(big.commit_ts / 1e6 - time.time()) < 120
    # Resuming between two transactions of one batch.
    with headrace.transactions(book.server.url(book.database), start=start) as feed:
        first = [next(feed).id for _ in range(5)]
        rest = [one.id for one in headrace.transactions(book.server.url(book.database), start=feed.position, stop="end")]
    assert first + rest == [one.id for one in found]


def executed_gtids(book: Logbook, count: int) -> list[str]:
    """Return the GTIDs of the last transactions, from the server."""
    if book.server.flavour == "mariadb":
        domain, server, last = book.fetch("SELECT @@gtid_binlog_pos")[0][0].split(",")[-1].split("-")
        return [f"{domain}-{server}-{int(last) - i}" for i in range(count)]
    uuid, _, last = book.fetch("SELECT @@server_uuid, '', @@global.gtid_executed")[0]
    newest = int(last.replace("\n", "").rpartition("-")[2])
    return [f"{uuid}:{newest - i}" for i in range(count)]


def test_dates_that_no_calendar_has(book: Logbook, changes: Changes) -> None:
    start = changes().position
    book.run("SET sql_mode = ''", "INSERT INTO goods VALUES (1, 'x', 1, '0000-00-00 00:00:00')")
    with pytest.raises(DefiniteError):
        list(changes(start=start, stop="end"))
    assert images_of(list(changes(start=start, stop="end", zero_dates="null")))[0].row == ("1", "x", "1.00", None)
    with pytest.raises(DefiniteError, match="zero_dates"):
        changes(zero_dates="maybe")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[Path]]:
    """Return the files in the test's temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: set(tmp_path.iterdir())


def relay_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "headrace-relay"}


def test_two_feeds_at_once(book: Logbook, changes: Changes) -> None:
    one, two = changes("goods"), changes("notes")
    found: dict[str, list[ChangeBlock]] = {"goods": [], "notes": []}

    def read(feed: Feed[ChangeBlock], table: str, rows: int) -> None:
        while sum(block.rows for block in found[table]) < rows:
            found[table].append(next(feed))

    readers = [threading.Thread(target=read, args=(one, "goods", 30)), threading.Thread(target=read, args=(two, "notes", 30))]
    for reader in readers:
        reader.start()
    for i in range(30):
        book.run(f"INSERT INTO goods VALUES ({i}, NULL, NULL, NULL)", f"INSERT INTO notes VALUES ({i}, '{i}')")
    for reader in readers:
        reader.join(timeout=30)
    assert [image.row[0] for image in images_of(found["goods"])] == [str(i) for i in range(30)]
    assert [image.row for image in images_of(found["notes"])] == [(str(i), str(i)) for i in range(30)]


def test_closing_leaves_nothing_behind(book: Logbook, changes: Changes, scratch: Callable[[], set[Path]]) -> None:
    threads, before = relay_threads(), scratch()
    feed = changes()
    book.run("INSERT INTO notes VALUES (1, 'a')")
    next(feed)
    assert len(relay_threads() - threads) == 1
    assert len(scratch() - before) == 1
    feed.close()
    feed.close()
    assert (relay_threads() - threads, scratch()) == (set(), before)
    assert list(feed) == []
    assert feed.position["file"]
    forgotten = headrace.changes(book.server.url(book.database))
    book.run("INSERT INTO notes VALUES (2, 'b')")
    next(forgotten)
    assert len(relay_threads() - threads) == 1
    del forgotten
    gc.collect()
    assert (relay_threads() - threads, scratch()) == (set(), before)


def test_closing_ends_a_wait(changes: Changes, scratch: Callable[[], set[Path]]) -> None:
    before = scratch()
    feed = changes()
    ended = threading.Event()

    def wait() -> None:
        assert list(feed) == []
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    feed.close()
    assert ended.wait(5)
    waiting.join()
    assert scratch() == before


def test_an_error_ends_a_feed_and_frees_it(book: Logbook, changes: Changes, scratch: Callable[[], set[Path]]) -> None:
    before = scratch()
    feed = changes()
    book.run("INSERT INTO notes VALUES (1, 'a')", "TRUNCATE TABLE notes", "INSERT INTO notes VALUES (2, 'b')")
    assert images_of([next(feed)])[0].row == ("1", "a")
    with pytest.raises(DefiniteError, match="TRUNCATE TABLE notes") as caught:
        next(feed)
    assert scratch() == before
    assert list(feed) == []
    # The error names the position to continue from.
    rest = changes(start=caught.value.place, stop="end")
    assert [image.row for image in images_of(list(rest))] == [("2", "b")]


def test_statements_are_printed_between_the_changes(book: Logbook, changes: Changes) -> None:
    start = changes().position
    book.run("INSERT INTO notes VALUES (1, 'a')", "ALTER TABLE notes ADD COLUMN more INT", "INSERT INTO notes VALUES (2, 'b', 3)")
    book.run("TRUNCATE TABLE notes", "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO notes VALUES (4, 'd', 5)")
    calls: list[tuple[str, str] | int] = []
    with changes(start=start, stop="end", on_statement=lambda found: calls.append((found.table.table, found.news.name))) as feed:
        for block in feed:
            calls += [len(image.row) for image in images_of([block])]
    assert calls == [2, ("notes", "DEFINED"), 3, ("notes", "EMPTIED"), ("other", "DEFINED"), 3]


_SCRIPT = """
import json, sys, headrace
feed = headrace.changes(sys.argv[1], tables=sys.argv[2], start=json.loads(sys.argv[3]))
try:
    for block in feed:
        print(block.rows, flush=True)
except KeyboardInterrupt:
    print(json.dumps(feed.position), flush=True)
"""


def test_an_interrupt_leaves_a_position_and_nothing_else(book: Logbook, changes: Changes) -> None:
    start = changes().position
    book.run("INSERT INTO notes VALUES (1, 'a')")
    with tempfile.TemporaryDirectory() as scratch_dir:
        command = [sys.executable, "-c", _SCRIPT, book.server.url(), f"{book.database}.*", json.dumps(start)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": scratch_dir}) as script:
            assert script.stdout is not None
            assert script.stdout.readline() == "1\n"
            assert any(Path(scratch_dir).iterdir())
            script.send_signal(signal.SIGINT)
            position = json.loads(script.stdout.readline())
            assert script.wait(10) == 0
        assert not any(Path(scratch_dir).iterdir())
    book.run("INSERT INTO notes VALUES (2, 'b')")
    assert [image.row[0] for image in images_of(list(changes(start=position, stop="end")))] == ["2"]


def test_places_that_cannot_be_read(changes: Changes) -> None:
    for start in ("yesterday", "binlog.000001:x", '{"file"', {"pos": 4}):
        with pytest.raises(DefiniteError, match="not a place in a log"):
            changes(start=start)
    with pytest.raises(DefiniteError, match="no longer has binary log"):
        changes(start="binlog.999999:4")
    with pytest.raises(DefiniteError, match="cannot start elsewhere"):
        changes(start="oldest", snapshot=True)


def test_one_pattern_of_several_that_matches_no_table_is_a_warning(changes: Changes, caplog: pytest.LogCaptureFixture) -> None:
    changes("*", "nosuch*", "misspelt", stop="end").close()
    warned = [record.getMessage() for record in caplog.records if "no table of" in record.getMessage()]
    assert [line.split(" matches ")[1].split(";")[0].split(".")[1] for line in warned] == ["nosuch*", "misspelt"]


def test_names_that_match_no_table_are_an_error(server: PrivateServer) -> None:
    url = f"mysql://{server.user}:{server.password}@127.0.0.1:{server.port}/"
    for read in (headrace.changes, headrace.transactions):
        with pytest.raises(DefiniteError, match=r"no table matches nosuch\.\*") as caught:
            read(url, tables=["nosuch.*"], start="oldest", stop="end")
        assert "tables=" in caught.value.hint
        assert server.password not in str(caught.value)
