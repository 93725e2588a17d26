"""Purges of deletions in tables with cascades."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from testkit.pipelines.cascade_replica import Replica

ON_MYSQL = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_update_and_set_null[mysql]")


@ON_MYSQL
def test_deletions_are_purged_only_when_the_key_log_is_empty(replica: Replica) -> None:
    """A process that starts applies the log again: a row that it writes again is hidden by a later deletion only."""
    replica.begin(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE m (p INT, n INT, PRIMARY KEY (p, n), FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO p VALUES (1), (2)",
        "INSERT INTO m VALUES (1, 1), (2, 1)",
    )
    replica.step("UPDATE p SET id = 5 WHERE id = 1", "DELETE FROM m WHERE p = 5")
    replica.restart()
    purge(replica)
    replica.restart()
    replica.step("INSERT INTO p VALUES (6)")
    replica.step("INSERT INTO p VALUES (7)")
    purge(replica)
    assert replica.client.query(f"SELECT count() FROM `{replica.book.database}`.m WHERE _deleted").result_rows == [(0,)]
    replica.restart()
    replica.step("INSERT INTO p VALUES (8)")


def purge(replica: Replica) -> None:
    purger, store = replica.pipe.parts.purger, replica.pipe.sink.tombstone_store()
    assert store is not None
    store.last_purges()  # creates the table of purges
    for schema in purger.tables():
        store.purge(schema, "pipe", nullcontext, purger.is_settled)
