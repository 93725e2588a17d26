"""GTID sets advanced by the scan equal the server's, after gaps, foreign sources and several domains."""

from __future__ import annotations

from collections.abc import Callable

from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.server.gtid import GtidSet, parse_gtid_set
from testkit.oracles.binlogs import Logbook, Place, open_logbook, scan_log
from testkit.oracles.planned import PlannedLog
from testkit.servers.servers import execute


def known(book: Logbook) -> str:
    """Return the server's executed GTIDs."""
    variable = "@@GLOBAL.gtid_binlog_pos" if book.server.flavour == "mariadb" else "@@GLOBAL.gtid_executed"
    return str(book.fetch(f"SELECT {variable}")[0][0])


def parsed(book: Logbook, text: str) -> GtidSet:
    return parse_gtid_set(text, mariadb=book.server.flavour == "mariadb")


def advanced(book: Logbook, before: str, start: Place) -> GtidSet:
    segment = book.segment(start)
    status, groups, _, _ = scan_log(book.bytes_of(segment), segment.start, checksum=segment.checksum)
    assert status == scan.OK
    return parsed(book, before).add_groups(groups[:, scan.GTID])


def plain(text: str) -> str:
    """The server's text without line breaks; MariaDB lists domains in any order."""
    return ",".join(sorted(part.strip() for part in text.replace("\n", "").split(",") if part.strip()))


def test_a_set_read_from_the_server_is_written_the_same(book: Logbook) -> None:
    assert plain(str(parsed(book, known(book)))) == plain(known(book))


def test_transactions_and_statements_advance_the_set(book: Logbook) -> None:
    before, start = known(book), book.place()
    book.run(
        "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "BEGIN", "INSERT INTO t VALUES (2)", "DELETE FROM t", "COMMIT"
    )
    book.run("CREATE TABLE copied AS SELECT 1 AS x", "TRUNCATE t", "DROP TABLE t", "BEGIN", "ROLLBACK")
    assert plain(str(advanced(book, before, start))) == plain(known(book))
    assert known(book) != before


OTHERS = ("00000000-0000-0000-0000-00000000000a", "ffffffff-ffff-ffff-8fff-ffffffffffff")


def test_foreign_sources_gaps_and_domains(flavour: str, fresh_server: Callable[..., PrivateServer]) -> None:
    """On a private server: executed GTIDs stay in a server's set."""
    server = fresh_server()
    execute(server, "CREATE DATABASE foreign_sources")
    with open_logbook(server, "foreign_sources") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY)")
        {"mysql": check_gaps_and_tags, "mariadb": check_domains}[flavour](book)


def check_gaps_and_tags(book: Logbook) -> None:
    before, start = known(book), book.place()
    for source in OTHERS:
        for number in (1, 2, 3, 7, 9, 8, 20, 5, 9_223_372_036_854_775_000):
            book.run(f"SET gtid_next = '{source}:{number}'", "BEGIN", "COMMIT")
    book.run("SET gtid_next = AUTOMATIC", "INSERT INTO t VALUES (1)")
    found = str(advanced(book, before, start))
    assert found == plain(known(book))
    for source in OTHERS:
        assert f"{source}:1-3:5:7-9:20:9223372036854775000" in found
    # The server finds no difference in either direction.
    assert book.fetch(f"SELECT GTID_SUBSET('{found}', @@GLOBAL.gtid_executed), GTID_SUBSET(@@GLOBAL.gtid_executed, '{found}')") == [
        ("1", "1")
    ]
    # Reading the same groups again adds nothing.
    assert str(advanced(book, found, start)) == found
    # Tags of this server and of another, with gaps; anonymous transactions have none.
    before, start = known(book), book.place()
    book.run("SET gtid_next = 'AUTOMATIC:tagged'", "INSERT INTO t VALUES (2)", "CREATE TABLE tagged (id INT PRIMARY KEY)")
    for number in (1, 2, 70_000, 9_223_372_036_854_775_000):
        book.run(f"SET gtid_next = '{OTHERS[1]}:_other_tag9:{number}'", f"INSERT INTO t VALUES ({100 + number % 99})")
    book.run("SET gtid_next = AUTOMATIC")
    found = PlannedLog(book, start, gtid=before).positions()[-1].gtid
    assert found == plain(known(book))
    assert f"{OTHERS[1]}:1-3:5:7-9:20:9223372036854775000:_other_tag9:1-2:70000:9223372036854775000" in found
    assert str(parsed(book, known(book))) == found


def check_domains(book: Logbook) -> None:
    before, start = known(book), book.place()
    for n, (domain, server_id) in enumerate([(5, 1), (5, 2), (4_294_967_295, 4_294_967_295), (5, 1), (17, 3), (0, 9)]):
        book.run(f"SET SESSION gtid_domain_id = {domain}", f"SET SESSION server_id = {server_id}", f"INSERT INTO t VALUES ({n})")
    book.run("SET SESSION gtid_seq_no = 1000", "INSERT INTO t VALUES (100)")
    found = str(advanced(book, before, start))
    assert plain(found) == plain(known(book))
    assert {"5-1-3", "17-3-1", "4294967295-4294967295-1", "0-9-1000"} <= set(found.split(","))


def test_a_whole_file_from_its_first_event(book: Logbook) -> None:
    """From the file's head on: format description, the set it starts with, every group, and the rotation at its end."""
    book.run("FLUSH BINARY LOGS")
    first, before = book.place().file, known(book)
    book.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    after = known(book)
    book.run("FLUSH BINARY LOGS")
    data = (book.server.binlog_dir / first).read_bytes()
    status, groups, _, state = scan_log(data[4:], 4, checksum=True)
    assert (status, int(state[scan.POS])) == (scan.OK, len(data) - 4)
    assert groups[:, scan.KIND].tolist() == [scan.STATEMENT, scan.DATA, scan.DATA, scan.FILE_END]
    assert groups[:, scan.ROWS].tolist() == [0, 1, 1, 0]
    assert plain(str(parsed(book, before).add_groups(groups[:, scan.GTID]))) == plain(after)


def test_a_file_that_is_being_written(book: Logbook) -> None:
    """The server marks the file's first event as in use without a new checksum."""
    book.run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    data = (book.server.binlog_dir / book.place().file).read_bytes()
    assert data[4 + 17] & 1
    status, groups, _, _ = scan_log(data[4:], 4, checksum=True)
    assert status == scan.OK
    assert groups[:, scan.KIND].tolist() == [scan.STATEMENT, scan.DATA]
