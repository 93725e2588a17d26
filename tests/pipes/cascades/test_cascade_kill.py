"""`kill -9` of `headrace replicate` between the write of a batch and its cascades."""

from __future__ import annotations

import pytest

from testkit.oracles.compared_tables import shown_by_sink, shown_by_source
from testkit.pipelines.cascade_replica import Replica
from testkit.pipelines.pipeline import Pipeline


@pytest.mark.slow(because="test_random_histories[mariadb-0] ends such pipes at random statements, without Spark")
def test_kill_between_a_batch_and_its_cascades(replica: Replica) -> None:
    """ClickHouse refuses rows of the child table, as if it had too many parts, so the pipe waits there until it is killed."""
    book, client = replica.book, replica.client
    child = f"`{book.database}`.c"
    book.run(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE g (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)",
        "INSERT INTO p VALUES (1), (2), (3)",
        "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO g VALUES (1, 1), (2, 2), (3, 3)",
    )

    def equals(table: str) -> bool:
        return shown_by_sink(client, book, table) == shown_by_source(book, table)

    def is_there() -> bool:
        exists = client.query(f"SELECT count() FROM system.tables WHERE database = '{book.database}'").result_rows
        return exists[0][0] >= 3 and all(map(equals, "pcg"))

    pipeline = Pipeline(book.server.url(book.database), replica.url, replica.state)
    with pipeline.running() as run:
        run.until(is_there)
        book.run("INSERT INTO p VALUES (4)")
        run.until(lambda: equals("p") and not pipeline.batch_is_open())
        client.command(f"ALTER TABLE {child} MODIFY SETTING parts_to_throw_insert = 1")
        book.run("DELETE FROM p WHERE id = 1", "UPDATE p SET id = 20 WHERE id = 2")
        run.until(lambda: equals("p") and pipeline.batch_is_open())
        run.kill()
    assert not equals("c"), "the batch is written, and its cascades are not applied"
    assert pipeline.batch_is_open()
    client.command(f"ALTER TABLE {child} RESET SETTING parts_to_throw_insert")
    # These rows come after the effects that are still to be applied.
    book.run("INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (1, 1)", "UPDATE g SET c = 1 WHERE id = 3", "DELETE FROM p WHERE id = 3")
    done = pipeline.once()
    assert done.code == 0, done.output
    replica.compare()
