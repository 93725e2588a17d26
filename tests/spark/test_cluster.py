"""A pipe on a real standalone cluster: tasks in both workers; killed executors and a killed worker lose and repeat no change.

Executors run code that was sent to them, with an interpreter without Headrace; in the first run they find the relay's copy of the
log, in the second they fetch the segment from the source. Spark's event log shows where tasks ran.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.machine.wait_condition import wait_until
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.pipeline import Pipeline, Run
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.servers import execute, execute_in
from testkit.servers.spark_cluster import SparkCluster, bare_python, command_lines

PATIENCE_S = 240.0
BIG = "big"


def tasks_of(directory: Path) -> Counter[tuple[str, str, str]]:
    """Count the ended tasks by application, executor and outcome."""
    found: Counter[tuple[str, str, str]] = Counter()
    for file in (file for file in directory.rglob("app-*") if file.is_file()):
        for event in map(json.loads, file.read_text().splitlines()):
            if event["Event"] == "SparkListenerTaskEnd":
                found[file.name.partition(".")[0], event["Task Info"]["Executor ID"], event["Task End Reason"]["Reason"]] += 1
    return found


def prepare(server: PrivateServer, database: str) -> None:
    """A table of many chunks."""
    execute_in(
        server,
        database,
        f"CREATE TABLE {BIG} (id INT PRIMARY KEY, v VARCHAR(200), n BIGINT)",
        f"INSERT INTO {BIG} VALUES (1, REPEAT('x', 150), 0)",
        *(f"INSERT INTO {BIG} SELECT id + (SELECT MAX(id) FROM {BIG}), v, id FROM {BIG}" for _ in range(14)),
        f"ANALYZE TABLE {BIG}",
    )


def change_all(server: PrivateServer, database: str, times: int) -> None:
    """Batches large enough to be interrupted."""
    execute_in(server, database, *(f"UPDATE {BIG} SET n = n + 1" for _ in range(times)))


def strike(run: Run, pipeline: Pipeline, cluster: SparkCluster, sink: EmbeddedServer, workers: tuple[int, ...]) -> None:
    """Kill executors during a batch: the sink is stopped, so their tasks cannot end before."""
    done = pipeline.last_committed_batch()
    run.until(lambda: pipeline.last_committed_batch() > done, PATIENCE_S)
    os.kill(sink.pid, signal.SIGSTOP)
    try:
        run.until(lambda: pipeline.batch_is_open() and all(cluster.parts[worker].executors for worker in workers), PATIENCE_S)
        batch = pipeline.last_planned_batch()
        # Time for Spark to start the tasks.
        time.sleep(3)
        assert pipeline.last_committed_batch() < batch
        assert all(cluster.kill_executor(worker) for worker in workers)
    finally:
        os.kill(sink.pid, signal.SIGCONT)
    run.until(lambda: pipeline.last_committed_batch() >= batch, PATIENCE_S)


def follow(run: Run, pipeline: Pipeline, server: PrivateServer) -> None:
    """Wait until all current changes are in the sink."""
    end = log_end(server)
    run.until(lambda: (pipeline.committed_position() or (0, 0)) >= end, PATIENCE_S)


def create_database(server: PrivateServer, name: str) -> Account:
    execute(server, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return create_replica_account(server, name)


@pytest.mark.timeout(600)
def test_tasks_run_on_a_cluster(mysql_server: PrivateServer, tmp_path: Path) -> None:
    server, database = mysql_server, "clustered_once"
    account = create_database(server, database)
    prepare(server, database)
    log = tmp_path / "events"
    log.mkdir()
    cluster = SparkCluster(tmp_path / "spark", bare_python(tmp_path / "python"), workers=1)
    with cluster.running(), EmbeddedServer(tmp_path / "sink") as sink:
        pipeline = piped(cluster, account, database, sink.url, tmp_path, log)
        with pipeline.running("--once", "--chunk-rows", "1500") as run:
            run.until(lambda: pipeline.chunks_done() >= 2, PATIENCE_S)
            check_secrets(cluster, account)
            done = run.wait()
        assert done.code == 0, done.output
        assert pipeline.chunks_done() == pipeline.chunks_planned() > 10
        with sink_client(sink.url) as client:
            assert assert_equal(client, server, database, (BIG,), {BIG: "id"}) > 16_000
    check_tasks(cluster, log, account, applications=1, lost=False)


@pytest.mark.slow(because="test_tasks_run_on_a_cluster; test_one_kill kills pipes on one machine")
@pytest.mark.timeout(900)
def test_killed_executors_lose_no_row(mysql_server: PrivateServer, tmp_path: Path) -> None:
    server, database = mysql_server, "clustered"
    account = create_database(server, database)
    workload = Workload(server, database, 7, pause_s=0.05)
    workload.prepare()
    prepare(server, database)
    log = tmp_path / "events"
    log.mkdir()
    cluster = SparkCluster(tmp_path / "spark", bare_python(tmp_path / "python"))
    with cluster.running(), EmbeddedServer(tmp_path / "sink") as sink:
        pipeline = piped(cluster, account, database, sink.url, tmp_path, log)
        with workload:
            with pipeline.running("--chunk-rows", "1500") as run:
                run.until(lambda: pipeline.chunks_done() >= 2, PATIENCE_S)
                check_secrets(cluster, account)
                assert cluster.kill_executor(0)
                run.until(lambda: pipeline.last_committed_batch() >= 0, PATIENCE_S)
                assert pipeline.chunks_done() == pipeline.chunks_planned() > 10
                change_all(server, database, 3)
                strike(run, pipeline, cluster, sink, (0, 1))
                assert run.terminate(timeout_s=PATIENCE_S).code == 143, run.output
            with pipeline.running("--conf", "spark.headrace.fetch=always") as run:
                change_all(server, database, 2)
                strike(run, pipeline, cluster, sink, (1,))
                # A machine fails with all its processes; later it is back.
                worker, pids = cluster.parts[0], cluster.parts[0].executors
                worker.kill()
                for pid in pids:
                    end(pid)
                change_all(server, database, 2)
                follow(run, pipeline, server)
                worker.start()
                cluster.await_workers(2)
                change_all(server, database, 2)
                run.until(lambda: worker.executors, PATIENCE_S)
                assert workload.stop() is None
                follow(run, pipeline, server)
                assert run.terminate(timeout_s=PATIENCE_S).code == 143, run.output
                assert "fetched" not in run.output
        verified = pipeline.verify("--spark", "always", *cluster_options(cluster, log))
        assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2]) == (0, "0 differences"), verified.output
        with sink_client(sink.url) as client:
            assert assert_equal(client, server, database, (*TABLES, BIG), {**KEYS, BIG: "id"}) > 16_000
    check_tasks(cluster, log, account, applications=3, lost=True)


def cluster_options(cluster: SparkCluster, log: Path) -> tuple[str, ...]:
    settings = {
        **cluster.settings,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    return ("--master", cluster.url, *(word for pair in settings.items() for word in ("--conf", "=".join(pair))))


def piped(cluster: SparkCluster, account: Account, database: str, sink: str, directory: Path, log: Path) -> Pipeline:
    target = sink.replace("http://", "clickhouse://")
    options = (*cluster_options(cluster, log), "--flush-bytes", "4M")
    return Pipeline(account.url(database), target, directory / "state", options)


def check_secrets(cluster: SparkCluster, account: Account) -> None:
    """The source's password is in no executor's environment or command line, and neither secret is on a command line of Spark's."""
    java = [(pid, line) for pid, line in command_lines() if b"org.apache.spark" in line]
    # The driver, the master, workers and executors.
    assert len(java) >= 1 + 2 * len(cluster.parts)
    assert not [line for _, line in java if account.password.encode() in line or cluster.secret.encode() in line]
    for pid in (pid for worker in cluster.parts for pid in worker.executors):
        assert account.password.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def check_tasks(cluster: SparkCluster, log: Path, account: Account, *, applications: int, lost: bool) -> None:
    ended = tasks_of(log)
    found = {application for application, _, _ in ended}
    assert len(found) == applications, ended
    for application in found:
        # An executor lives in a directory of its worker's.
        done = {executor for one, executor, reason in ended if one == application and reason == "Success"}
        homes = [{place.name for place in worker.work.glob(f"{application}/*")} for worker in cluster.parts]
        assert all(done & home for home in homes), (ended, homes)
    reasons = {reason for _, _, reason in ended}
    assert ("ExecutorLostFailure" in reasons) == lost, ended
    # No task failed by itself, and there was no speculation.
    assert reasons <= {"Success", "ExecutorLostFailure", "TaskKilled"}, ended
    assert account.password not in "".join(file.read_text() for file in log.rglob("*") if file.is_file())
    print(dict(ended))


def end(pid: int) -> None:
    """Kill a process, and wait until it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30)
