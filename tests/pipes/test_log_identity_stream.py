"""`headrace replicate` over a reset log, once and while it runs: a definite error, and the command that it names repairs the target."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.pipeline import Finished, Pipeline, run_command
from testkit.servers.accounts import create_replica_account
from testkit.servers.servers import execute

RESET = {"mariadb": "RESET MASTER", "mysql": "RESET BINARY LOGS AND GTIDS"}


def change(server: PrivateServer, first: int) -> None:
    """10 updates, 5 deletes, 60 inserts."""
    updates = [f"UPDATE shop.t SET s = 'changed {first}' WHERE id = {first + n}" for n in range(10)]
    deletes = [f"DELETE FROM shop.t WHERE id = {first + 20 + n}" for n in range(5)]
    inserts = [f"INSERT INTO shop.t VALUES ({first + 1000 + n}, 'new')" for n in range(60)]
    execute(server, *updates, *deletes, *inserts)


def check_refused(done: Finished, pipeline: Pipeline) -> None:
    """Check the error; run the command of its remedy."""
    assert done.code == 2, done.output
    assert "the source's binary log is not the one that was read" in done.output
    command = done.output.rpartition("remedy: ")[2].split("`")[1]
    assert command == f"headrace resync --new-log --state {pipeline.state}"
    asked = run_command(*shlex.split(command)[1:])
    assert asked.code == 0, asked.output


@pytest.mark.slow(
    because=("test_a_reset_log_is_refused_and_the_remedy_repairs_the_target, test_a_running_pipe_notices_a_reset, without Spark"),
)
@pytest.mark.soak("mysql", because="test_log_identity is on both, without Spark")
@pytest.mark.timeout(600)
def test_a_reset_log_with_spark(fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    server = fresh_server()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, s VARCHAR(40))")
    execute(server, f"INSERT INTO shop.t VALUES {', '.join(f'({n}, NULL)' for n in range(100))}")
    sink_dir = tmp_path / "sink"
    pipeline = Pipeline(create_replica_account(server).url("shop"), f"chdb:{sink_dir}", tmp_path / "state")
    with pipeline.running() as run:
        run.until(lambda: "snapshot: complete" in run.output)
        execute(server, "INSERT INTO shop.t VALUES (500, 'live')")
        run.until(lambda: (pipeline.committed_position() or (0, 0)) >= log_end(server))
        execute(server, RESET[server.flavour])
        change(server, 0)
        check_refused(run.wait(120), pipeline)
    done = pipeline.once()
    assert done.code == 0, done.output
    with pipeline.sink_served(sink_dir) as url, sink_client(url) as client:
        assert assert_equal(client, server, "shop", ("t",), {"t": "id"}) == 156
    execute(server, RESET[server.flavour])
    change(server, 3000)
    check_refused(pipeline.once(), pipeline)
