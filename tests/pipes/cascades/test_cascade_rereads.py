"""Tables whose states the cascades need, and which are read again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any
from unittest import mock

import pytest

from headrace.model.change_block import ChangeBlock
from headrace.pipes.mysql.snapshot_runner import SnapshotRunner
from headrace.pipes.state.resync_requests import request_resync
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from testkit.pipelines.cascade_replica import Replica
from testkit.pipelines.driven_pipe import Crash

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")

MOVING = (
    "CREATE TABLE p (id INT PRIMARY KEY)",
    "CREATE TABLE m (p INT, n INT, PRIMARY KEY (p, n), FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "INSERT INTO p VALUES (1), (2), (3)",
    "INSERT INTO m VALUES (1, 1), (1, 2), (2, 1)",
)
MIDDLE = (
    "CREATE TABLE p (id INT PRIMARY KEY)",
    "CREATE TABLE m (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE c (id INT PRIMARY KEY, m INT, FOREIGN KEY (m) REFERENCES m (id) ON DELETE CASCADE)",
    "INSERT INTO p VALUES (1), (2), (3)",
    "INSERT INTO m VALUES (10, 1), (20, 2), (30, 3)",
    "INSERT INTO c VALUES (100, 10), (200, 20), (300, 30)",
)


def request(replica: Replica, table: str) -> None:
    request_resync(replica.pipe.directory, (f"{replica.book.database}.{table}",))


@ON_MYSQL
def test_rows_that_were_deleted_before_the_table_was_read_again(replica: Replica) -> None:
    """The stream skips the deletion, and not the later change of the parent's key."""
    replica.begin(*MOVING)
    replica.book.run("DELETE FROM m WHERE p = 1 AND n = 1", "UPDATE p SET id = 5 WHERE id = 1")
    request(replica, "m")
    replica.restart()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_kept_changes_of_rows_that_were_deleted_before_the_table_was_read_again(replica: Replica) -> None:
    """While the request waits, the log keeps the row, which the source deletes before the table is read."""
    replica.begin(*MOVING)
    request(replica, "m")
    replica.book.run("INSERT INTO m VALUES (3, 1)")
    replica.pipe._stream()
    replica.pipe.parts.resyncs.plan_pending(nullcontext)
    replica.book.run("DELETE FROM m WHERE p = 3", "UPDATE p SET id = 7 WHERE id = 3")
    replica.pipe._copy()
    replica.pipe.catch_up()
    replica.compare()


@ON_MYSQL
def test_the_process_ends_after_a_table_was_read_again(replica: Replica) -> None:
    """The next process has the states of the rows that were read."""
    replica.begin(*MOVING)
    replica.book.run("INSERT INTO m VALUES (3, 1)")
    request(replica, "m")
    with mock.patch.object(SnapshotRunner, "_delete_stale", side_effect=Crash), suppress(Crash):
        replica.restart()
    replica.restart()
    replica.pipe.catch_up()
    replica.step("UPDATE p SET id = 9 WHERE id = 3", "INSERT INTO p VALUES (3)", "INSERT INTO m VALUES (3, 1)")


@ON_MYSQL
def test_a_table_is_read_again_after_a_batch_that_was_half_written(replica: Replica) -> None:
    replica.begin(*MOVING, "CREATE TABLE other (id INT PRIMARY KEY)")
    replica.book.run("INSERT INTO other VALUES (1)", "INSERT INTO m VALUES (3, 1)")
    real = ClickHouseWriter.write

    def write(writer: ClickHouseWriter, block: ChangeBlock) -> None:
        if block.schema.name.table == "other":
            raise Crash
        real(writer, block)

    with mock.patch.object(ClickHouseWriter, "write", write), suppress(Crash):
        replica.pipe.catch_up()
    request(replica, "m")
    replica.restart()
    replica.pipe.catch_up()
    replica.step("UPDATE p SET id = 9 WHERE id = 3", "INSERT INTO p VALUES (3)", "INSERT INTO m VALUES (3, 1)")


@ON_MYSQL
@pytest.mark.parametrize("place", ["before the read", "after the read"])
def test_a_middle_table_is_read_again_while_its_parent_changes(replica: Replica, place: str) -> None:
    """The row that was deleted by the cascade is there again, with another parent; its children are gone."""
    replica.begin(*MIDDLE)
    replica.step("INSERT INTO p VALUES (4)")
    request(replica, "m")
    replica.pipe.parts.resyncs.plan_pending(nullcontext)

    def change() -> None:
        replica.book.run("DELETE FROM p WHERE id = 2", "INSERT INTO m VALUES (20, 3)")

    if place == "before the read":
        change()
        replica.pipe._stream()
        replica.pipe._copy()
    else:
        with before(SnapshotRunner, "_delete_stale", lambda: (change(), replica.pipe._stream())):
            replica.pipe._copy()
    replica.pipe.catch_up()
    replica.compare()


def before(owner: type, name: str, act: Callable[[], Any]) -> Any:
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        act()
        return real(*arguments)

    return mock.patch.object(owner, name, call)
