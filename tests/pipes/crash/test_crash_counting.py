"""SIGKILL of all processes, the embedded ClickHouse too, while tables that count rows are filled: every change is stored exactly once.

The sink's sums must equal the source's rows, and the history must equal the source's log, as `mysql-replication` reads it. `make
soak-suites` takes more rounds, other seeds, and both servers.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.faults.killed_pipeline import Victim
from testkit.generators.workload import Workload
from testkit.oracles.both_ends import sink_client
from testkit.oracles.counted_rows import ENGINES, check_history, check_sums
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account

pytestmark = pytest.mark.scaled

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
MOMENTS = ("snapshot", "written", "planned") if not SOAK else ("any", "snapshot", "written", "planned", "streaming", "written") * 5


@pytest.mark.slow(because="test_one_kill[MariaDbToServer]; test_killed_at_every_block without Spark")
@pytest.mark.soak("mysql", because="test_exactly_once kills on both, without Spark")
@pytest.mark.timeout(7200 if SOAK else 900)
def test_counts_are_exact_after_kills(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    seed = secrets.randbits(32) if SOAK else 33
    print(f"seed {seed}")
    chooser, sink_dir = random.Random(seed), tmp_path / "sink"
    engines = [word for table, engine in ENGINES.items() for word in ("--set", f'tables."{database}.{table}".engine={engine}')]
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink_dir}", tmp_path / "state", tuple(engines))
    workload = Workload(server, database, seed, pause_s=0.02)
    workload.prepare()
    landed: Counter[str] = Counter()
    with workload:
        for moment in MOMENTS:
            landed[Victim(pipeline, sink_dir, server, database).strike(moment, chooser)] += 1
    assert landed["written"] + landed["planned"] >= len(MOMENTS) // 3, landed
    done = pipeline.once(timeout_s=400)
    assert done.code == 0, done.output
    with pipeline.sink_served(sink_dir) as url, sink_client(url) as client:
        for table in ("accounts", "parts"):
            check_sums(client, server, database, table)
        changes = check_history(client, server, database)
    print(f"{server.flavour}: {workload.transactions} transactions, {changes} changes of notes, kills landed: {dict(landed)}")
