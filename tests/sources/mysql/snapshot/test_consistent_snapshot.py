"""Many reader processes see all tables at one position of the log, and writers wait only briefly.

Transfers between accounts in three tables keep the sum, and every transfer adds a row to a ledger. Readers that saw different moments would
find another sum, or a ledger that does not match the balances. The log, replayed by the server's own reader up to the position, has the
same number of ledger rows.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url, query
from headrace.sources.mysql.snapshot import locked_snapshot
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, read_chunk_at
from headrace.sources.mysql.snapshot.locked_snapshot import ConsistentSnapshot, Rendezvous, exact_table_snapshot, open_reader
from testkit.machine.wait_condition import wait_until
from testkit.servers.accounts import Account
from testkit.servers.servers import execute_in, mysqlbinlog

READERS = 2
ACCOUNTS = 60


def schema_of(database: str, table: str) -> TableSchema:
    columns = (Column("id", Kind.INT64, False), Column("amount", Kind.INT64, False))
    return TableSchema(TableName(database, table), columns, ("id",))


def read_part(address: MySQLAddress, meeting: Rendezvous, number: int, database: str) -> tuple[list[tuple[str, int, int, int]], Any]:
    """A reader process: its share of every table, in chunks."""
    rows: list[tuple[str, int, int, int]] = []
    with open_reader(address, meeting, number, 0) as reader:
        for table in ("a", "b", "ledger"):
            for part in range(2):
                share = f"MOD(id, {2 * READERS}) = {2 * number + part}"
                chunk = Chunk(database, table, part, share, 1)
                blocks = read_chunk_at(reader.connection, address, schema_of(database, table), chunk, reader.position, ReadOptions())
                for block in blocks:
                    found = block.images.to_pydict()
                    versions = block.version.to_pylist()
                    rows += [(table, *row) for row in zip(found["id"], found["amount"], versions, strict=True)]
                # Time for the writer to change what is read next.
                time.sleep(0.05)
        return rows, reader.position


@contextmanager
def busy(server: PrivateServer, database: str) -> Iterator[list[float]]:
    """Run transfers on two connections as fast as possible; return the longest wait of each."""
    stop, waits = threading.Event(), [0.0, 0.0]

    def work(me: int) -> None:
        with server.root_connection(database, autocommit=False) as connection, connection.cursor() as cursor:
            line = me
            while not stop.is_set():
                started = time.monotonic()
                pay, take = (("a", "b"), ("b", "a"))[line % 3 == 0]
                cursor.execute(f"UPDATE {pay} SET amount = amount - 7 WHERE id = {line % ACCOUNTS}")
                cursor.execute(f"UPDATE {take} SET amount = amount + 7 WHERE id = {line * 13 % ACCOUNTS}")
                cursor.execute(f"INSERT INTO ledger VALUES ({line}, {7 if take == 'b' else -7})")
                connection.commit()
                waits[me] = max(waits[me], time.monotonic() - started)
                line += 2

    threads = [threading.Thread(target=work, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Reader processes for both servers: starting them takes longer than the tests."""
    with ProcessPoolExecutor(READERS, mp_context=multiprocessing.get_context("spawn")) as found:
        yield found


@pytest.fixture
def bank(server: PrivateServer, database: str) -> str:
    execute_in(
        server,
        database,
        *(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL)" for table in ("a", "b", "ledger")),
        *(f"INSERT INTO {table} VALUES " + ", ".join(f"({i}, 1000)" for i in range(ACCOUNTS)) for table in ("a", "b")),
        "FLUSH BINARY LOGS",
    )
    return database


def test_all_readers_see_one_moment(server: PrivateServer, bank: str, pool: ProcessPoolExecutor) -> None:
    address = parse_mysql_url(server.url(bank))
    meeting = Rendezvous(READERS)
    names = [TableName(bank, table) for table in ("a", "b", "ledger")]
    with busy(server, bank) as waits:
        with server.root_connection(bank) as watcher:
            wait_until(lambda: count_rows(watcher, "ledger") > 20, 20)
        with ConsistentSnapshot(address, Rendezvous.from_json(meeting.to_json()), names, 0) as snapshot:
            parts = [pool.submit(read_part, address, meeting, number, bank) for number in range(READERS)]
            moment = snapshot.take(lambda: not any(part.done() for part in parts))
        results = [part.result() for part in parts]
    assert [position for _, position in results] == [moment.position] * READERS
    rows = [row for found, _ in results for row in found]
    assert {version for *_, version in rows} == {moment.position.version}
    amounts = {table: {key: amount for name, key, amount, _ in rows if name == table} for table in ("a", "b", "ledger")}
    assert len(rows) == sum(map(len, amounts.values())), "every row once"
    assert len(amounts["a"]) == len(amounts["b"]) == ACCOUNTS
    assert sum(amounts["a"].values()) + sum(amounts["b"].values()) == 2000 * ACCOUNTS
    assert sum(amounts["b"].values()) - 1000 * ACCOUNTS == sum(amounts["ledger"].values())
    assert len(amounts["ledger"]) > 20, "the writers were busy"
    assert len(amounts["ledger"]) == logged_inserts(server, bank, moment.position)
    assert {name.table for name in names if "PRIMARY KEY" in moment.definitions[name]} == {"a", "b", "ledger"}
    print(f"locked {moment.locked_s * 1e3:.1f} ms, the longest wait of a writer {max(waits) * 1e3:.1f} ms")
    assert 0 < moment.locked_s < 2
    assert max(waits) < 5


def logged_inserts(server: PrivateServer, database: str, position: Any) -> int:
    """Return the number of ledger rows in the log up to the position."""
    [first] = [path for path in server.binlog_dir.glob("binlog.0*") if path.name == position.file]
    arguments = ["-vv", f"--stop-position={position.offset}", str(first)]
    done = subprocess.run([*mysqlbinlog(server.flavour), *arguments], check=True, capture_output=True, text=True, errors="replace")
    return done.stdout.count(f"### INSERT INTO `{database}`.`ledger`")


def count_rows(connection: Any, table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {table}")
        return int(cursor.fetchone()[0])


def test_a_reader_that_never_comes(server: PrivateServer, bank: str) -> None:
    address, meeting = parse_mysql_url(server.url(bank)), Rendezvous(1, gather_s=0.3)
    with ConsistentSnapshot(address, meeting, [], 0) as snapshot, pytest.raises(TransientError, match="not all readers"):
        snapshot.take()
    # A server may release the driver's lock a moment after its connection was closed.
    with (
        pytest.raises(TransientError, match=r"does not begin|driver of the snapshot has ended"),
        open_reader(address, replace(meeting, lock_s=0.1), 0, 0),
    ):
        pass


def test_a_reader_that_comes_and_does_nothing_does_not_keep_the_tables_locked(server: PrivateServer, bank: str) -> None:
    address, meeting = parse_mysql_url(server.url(bank)), Rendezvous(1, lock_s=0.3)
    idle = connect(address)
    query(idle, address, "SELECT GET_LOCK(%s, 0)", (meeting.signal_name("ready", 0),))
    with ConsistentSnapshot(address, meeting, [], 0) as snapshot:
        with pytest.raises(TransientError, match="did not begin in time"):
            snapshot.take()
        query(idle, address, f"UPDATE `{bank}`.a SET amount = amount + 1 WHERE id = 1")
    idle.close()


@pytest.mark.parametrize("pause_s", [0, 1], ids=["reader looks before", "reader looks after"])
def test_a_driver_that_dies_stops_its_readers(server: PrivateServer, bank: str, monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """Killed while the tables are locked and one reader has begun: that reader must not read, and the tables are unlocked."""
    say = locked_snapshot._set_signal

    def say_slowly(connection: Any, address: MySQLAddress, word: str) -> None:
        say(connection, address, word)
        time.sleep(pause_s if ":done:" in word else 0)

    monkeypatch.setattr(locked_snapshot, "_set_signal", say_slowly)
    address, meeting = parse_mysql_url(server.url(bank)), Rendezvous(2, lock_s=20)
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> threading.Thread:
        def guarded() -> None:
            try:
                call()
            except TransientError as error:
                failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def read() -> None:
        with open_reader(address, meeting, 0, 0):
            raise AssertionError("it must not read")

    idle = connect(address)
    query(idle, address, "SELECT GET_LOCK(%s, 0)", (meeting.signal_name("ready", 1),))
    with ConsistentSnapshot(address, meeting, [], 0) as snapshot:
        threads = [run(snapshot.take), run(read)]
        done = meeting.signal_name("done", 0)
        wait_until(lambda: query(idle, address, "SELECT IS_USED_LOCK(%s)", (done,))[0][0] is not None, 20)
        [(driver,)] = query(idle, address, "SELECT IS_USED_LOCK(%s)", (meeting.signal_name("driver"),))
        query(idle, address, f"KILL {driver}")
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert len(failures) == 2
    assert any("the driver of the snapshot has ended" in str(failure) for failure in failures)
    query(idle, address, f"UPDATE `{bank}`.a SET amount = amount + 1 WHERE id = 1")
    idle.close()


def test_without_the_right_to_lock(server: PrivateServer, bank: str, replica_account: Account) -> None:
    address = parse_mysql_url(replica_account.url(bank))
    with ConsistentSnapshot(address, Rendezvous(0), [], 0) as snapshot, pytest.raises(DefiniteError, match="GRANT RELOAD"):
        snapshot.take()
    if server.flavour == "mysql":
        with pytest.raises(DefiniteError, match="GRANT LOCK TABLES"), exact_table_snapshot(address, TableName(bank, "a"), 0):
            pass


def test_one_table_exactly(server: PrivateServer, bank: str) -> None:
    """Count the ledger's rows in the snapshot and in the log up to its position, several times during writes."""
    address = parse_mysql_url(server.url(bank))
    with busy(server, bank):
        for _ in range(4):
            time.sleep(0.1)
            with exact_table_snapshot(address, TableName(bank, "ledger"), 0) as reader:
                time.sleep(0.05)
                [(count,)] = query(reader.connection, address, f"SELECT COUNT(*) FROM `{bank}`.ledger")
            assert count == logged_inserts(server, bank, reader.position)
    assert count > 10
