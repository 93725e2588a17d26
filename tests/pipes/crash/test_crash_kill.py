"""Repeated SIGKILL of the whole process tree at chosen moments: no change is lost or repeated.

A round starts `headrace replicate`, waits for the chosen moment, stops every process except the sink, checks the run's progress, and kills
them all, the embedded ClickHouse too. The workload never pauses. At the end one run catches up and both sides are compared.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.faults.killed_pipeline import Victim
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.oracles.both_ends import assert_equal, sink_client
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account

pytestmark = pytest.mark.scaled

# One entry per round: what to wait for before the kill. Ten on each server.
MOMENTS = ("any", "snapshot", "snapshot", "snapshot", "any", "planned", "written", "streaming", "written", "any")


@pytest.mark.slow(because="test_one_kill kills such a pipe once, test_killed_at_every_block without Spark")
@pytest.mark.soak("mysql", because="test_exactly_once kills on both, without Spark")
@pytest.mark.timeout(900)
def test_kill_at_any_moment(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    seed = 20 if server.flavour == "mariadb" else 26
    chooser = random.Random(seed)
    sink_dir = tmp_path / "sink"
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink_dir}", tmp_path / "state", ("--chunk-rows", "60"))
    workload = Workload(server, database, seed, pause_s=0.02)
    workload.prepare()
    landed: Counter[str] = Counter()
    with workload:
        for moment in MOMENTS:
            place = Victim(pipeline, sink_dir, server, database).strike(moment, chooser)
            landed[place] += 1
            print(f"{server.flavour}: aimed at {moment}, landed at {place}", flush=True)
    assert sum(landed.values()) == len(MOMENTS) == 10
    assert landed["snapshot"] >= 2
    assert landed["written"] >= 2
    assert landed["written"] + landed["planned"] >= 3

    done = pipeline.once()
    assert done.code == 0, done.output
    verified = pipeline.verify()
    assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2]) == (0, "0 differences"), verified.output
    with pipeline.sink_served(sink_dir) as url, sink_client(url) as client:
        assert assert_equal(client, server, database, TABLES, KEYS) > 500
    assert workload.transactions > 100
    print(f"{server.flavour}: {workload.transactions} transactions, kills landed: {dict(landed)}")
