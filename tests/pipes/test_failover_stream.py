"""The primary fails during the workload; `headrace replicate` continues on the replica with the same state, to 0 differences."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.version import unpack_version
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.machine.wait_condition import wait_until
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.pipeline import Pipeline, Run
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.replication import await_executed, executed, promote, start_replica
from testkit.servers.servers import execute


def catch_up(run: Run, pipeline: Pipeline, server: PrivateServer, epoch: int) -> None:
    end = log_end(server)
    run.until(lambda: newest_epoch(pipeline) == epoch and (pipeline.committed_position() or (0, 0)) >= end, 90)


def newest_epoch(pipeline: Pipeline) -> int:
    """The epoch of the last committed batch's end."""
    try:
        lines = (pipeline.state / "checkpoint" / "offsets" / str(pipeline.last_committed_batch())).read_text().splitlines()
        return int(json.loads(lines[2])["epoch"])
    except (OSError, IndexError, ValueError):
        return -1


@pytest.mark.slow(because="tests/pipes/crash/test_exactly_once.py::test_another_server_takes_over, test_failover_needs_all_applied_gtids")
@pytest.mark.timeout(900)
def test_the_replica_takes_over(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    primary = fresh_server()
    execute(primary, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    account = create_replica_account(primary)
    Workload(primary, "shop", 0).prepare()
    replica = start_replica(primary, fresh_server)
    sink_dir = tmp_path / "sink"
    pipeline = Pipeline(account.url("shop"), f"chdb:{sink_dir}", tmp_path / "state")

    workload = Workload(primary, "shop", 1, pause_s=0.02).start()
    with pipeline.running() as run:
        run.until(lambda: pipeline.last_committed_batch() >= 2)
        run.until(pipeline.batch_is_open, poll_s=0.002)
        # Killed during a batch: some of its rows may be written.
        run.kill()
    await_executed(replica, executed(primary))
    # The primary continues, gets ahead of its replica by some transactions, and fails.
    time.sleep(0.3)
    primary.kill()
    wait_until(lambda: workload.failure is not None, 20)
    assert isinstance(workload.stop(), pymysql.err.MySQLError)
    assert workload.transactions > 20
    promote(replica)

    moved = Pipeline(Account(replica, account.user, account.password).url("shop"), pipeline.sink, pipeline.state)
    with Workload(replica, "shop", 2, pause_s=0.02) as second, moved.running() as run:
        run.until(lambda: newest_epoch(moved) == 1)
        assert second.stop() is None
        assert second.transactions > 20
        catch_up(run, moved, replica, 1)
        done = run.terminate(signal.SIGTERM)
    assert done.code == 143, done.output
    assert "going on by GTID" in done.output
    verified = moved.verify()
    assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2]) == (0, "0 differences"), verified.output
    with moved.sink_served(sink_dir) as url, sink_client(url) as client:
        assert assert_equal(client, replica, "shop", TABLES, KEYS) > 500
        newest = client.query("SELECT max(_version) FROM shop.accounts").result_rows[0][0]
    assert unpack_version(int(newest))[0] == 1
