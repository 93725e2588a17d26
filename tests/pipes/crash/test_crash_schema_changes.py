"""Migrations while rows change, and SIGKILL of the whole process tree at random moments: at the end both sides are equal.

Part of `make soak-suites` (HEADRACE_SOAK=1), on both servers, from another seed each time; crashes at every point, without Spark, are in
`test_schema_changes`.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.generators.migrations import TABLES, Migrations
from testkit.oracles.binlogs import open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.oracles.compared_tables import assert_same
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
KILLS = 40 if SOAK else 3


@pytest.mark.soak(because="test_schema_changes crashes at every point, without Spark")
@pytest.mark.timeout(7200 if SOAK else 600)
def test_migrations_and_kills(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    seed = int(time.time()) if SOAK else 7
    chooser = random.Random(seed)
    print(f"seed {seed}")
    sink = tmp_path / "sink"
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink}", tmp_path / "state", ("--chunk-rows", "50"))
    migrations = Migrations(server, database, seed, pause_s=0.05 if SOAK else 0.4)
    migrations.prepare()
    with pipeline.running() as first:
        first.until(lambda: "snapshot: complete" in first.output)
        first.kill()
    with migrations:
        for _ in range(KILLS):
            run = pipeline.start()
            batch = pipeline.last_committed_batch() + chooser.choice((1, 3, 8))
            run.until(lambda batch=batch: pipeline.last_committed_batch() >= batch, 240)
            time.sleep(chooser.uniform(0, 1.5))
            run.kill()
    assert len(migrations.done) > 5, migrations.done
    for _ in range(2):
        # The second run reads the tables that the first one requested to read again at its end.
        done = pipeline.once()
        assert done.code == 0, done.output
    verified = pipeline.verify()
    assert verified.code == 0, verified.output
    with open_logbook(server, database) as book, pipeline.sink_served(sink) as url, sink_client(url) as client:
        assert_same(client, book, [*TABLES, "bare"])
        rows = client.query("SELECT pipe, version, source_table, outcome FROM headrace.schema_changes").result_rows
    assert len(rows) == len({row[:3] for row in rows}) > 3, "each change has one row"
    print(f"{len(migrations.done)} statements, ledger: {len(rows)} rows, {sum(row[3] == 'read again' for row in rows)} read again")
