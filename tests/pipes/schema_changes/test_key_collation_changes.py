"""The collation of a key changes while the chunks of a table are read: each row is still in one chunk."""

from __future__ import annotations

from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.embedded.process import EmbeddedServer
from testkit.generators.tables_random import SteeredPipe, before_chunk
from testkit.oracles.binlogs import Logbook
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.embedded_access import url_of

# The underscore is before the letters for the one collation, and after them for the other.
NAMES = [f"user{letter}" for letter in "abcdefghijklmnop"] + [f"user_{n}" for n in range(9)]
NEWEST = {"mariadb": "utf8mb4_uca1400_ai_ci", "mysql": "utf8mb4_0900_ai_ci"}
BINARY = "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
CHANGES = {
    "general": ("k VARCHAR(20) COLLATE utf8mb4_general_ci, PRIMARY KEY (k)", BINARY),
    "newest": ("k VARCHAR(20) COLLATE {newest}, PRIMARY KEY (k)", BINARY),
    "back": ("k VARCHAR(20) COLLATE utf8mb4_bin, PRIMARY KEY (k)", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE {newest}"),
    "filled and composite": ("k CHAR(20) COLLATE utf8mb4_general_ci, PRIMARY KEY (n, k)", BINARY),
    "another character set": ("k VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_general_ci, PRIMARY KEY (k)", BINARY),
}


@pytest.mark.parametrize("change", CHANGES)
def test_between_two_chunks(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, change: str) -> None:
    table, statement = (text.format(newest=NEWEST[book.server.flavour]) for text in CHANGES[change])
    book.run(f"CREATE TABLE t (n INT, {table})", f"INSERT INTO t (n, k) VALUES {', '.join(f'(1, {name!r})' for name in NAMES)}")
    between = before_chunk(2, lambda: book.run(statement))
    pipe = SteeredPipe(book, url_of(clickhouse), tmp_path / "state", chunk_rows=4, between=between)
    pipe.open()
    planned = len(pipe.parts.snapshots.snapshots.log.tables[f"{book.database}.t"].chunks)
    # The table is read again if its keys have another character set.
    assert planned == 0 if change == "another character set" else planned > 2
    pipe.catch_up()
    assert_same(client, book, ["t"])
