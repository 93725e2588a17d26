"""`headrace replicate binlog:DIRECTORY`: copied log files fill the sink, and it continues with further files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import assert_equal, sink_client
from testkit.pipelines.pipeline import Pipeline

KEYS = {"orders": "id", "lines": "(item, orders)"}


def copy_since(server: PrivateServer, first: str, directory: Path) -> None:
    for path in server.binlog_dir.glob("binlog.0*"):
        if path.name >= first:
            shutil.copy(path, directory)


@pytest.mark.slow(because="test_one_kill[DirectoryLog]")
@pytest.mark.soak("mysql", because="test_decode_fixtures reads the files of both")
@pytest.mark.timeout(900)
def test_copied_files_fill_the_sink(server: PrivateServer, database: str, tmp_path: Path) -> None:
    directory, sink_dir = tmp_path / "files", tmp_path / "sink"
    directory.mkdir()
    pipeline = Pipeline(f"binlog:{directory}", f"chdb:{sink_dir}", tmp_path / "state", tables=(f"{database}.*",))
    with open_logbook(server, database) as book:
        book.run("CREATE TABLE orders (id INT PRIMARY KEY, body VARCHAR(60))", "FLUSH BINARY LOGS")
        # The files begin after the table was created: only its table maps describe it.
        first = book.place().file
        book.insert("orders", [(n, f"order {n}") for n in range(500)])
        book.run("UPDATE orders SET body = 'é changed' WHERE id % 5 = 0", "DELETE FROM orders WHERE id % 9 = 0")
        copy_since(server, first, directory)
        done = pipeline.once()
        assert done.code == 0, done.output
        book.run("CREATE TABLE `lines` (orders INT, item INT, note TEXT, PRIMARY KEY (item, orders))")
        book.insert("`lines`", [(n, n % 3, "x" * n) for n in range(100)])
        book.run("FLUSH BINARY LOGS", "UPDATE `lines` SET item = 7 WHERE item = 1", "UPDATE orders SET id = id + 10000 WHERE id < 50")
    copy_since(server, first, directory)
    done = pipeline.once()
    assert done.code == 0, done.output
    with pipeline.sink_served(sink_dir) as url, sink_client(url) as client:
        assert assert_equal(client, server, database, ("orders", "lines"), KEYS) == 544
