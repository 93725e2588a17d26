"""Shortages of disk and memory while a pipe runs: the error names the resource, and with enough of it the data is exact."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.oracles.both_ends import assert_equal, log_end, sink_client
from testkit.pipelines.pipeline import Finished, Pipeline, Run, command_lines, run_command
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.servers import execute

_FULL = "the file system is full"
_MIB = 1 << 20
_JAVA_ADDRESS_KIB = 1536 << 10
"""Enough address space for the command, but not for Java."""


@pytest.fixture
def shop(mariadb_server: PrivateServer, replica_accounts: dict[str, Account]) -> Iterator[str]:
    """The address of a database with some rows."""
    with mariadb_server.root_connection() as root, root.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS shop")
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        Workload(mariadb_server, "shop", 0).prepare()
        if "mariadb" not in replica_accounts:
            replica_accounts["mariadb"] = create_replica_account(mariadb_server)
        yield replica_accounts["mariadb"].url("shop")
        cursor.execute("DROP DATABASE shop")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Mounts small file systems: `small_disk(name, bytes)`."""
    mounted: list[Path] = []

    def mount(name: str, size: int) -> Path:
        place = tmp_path / name
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"NOT TESTED: a full file system; nothing can be mounted here: {done.stderr.decode().strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Fill the file system during the block."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (_MIB, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    yield
    ballast.unlink()


def check_exact(pipeline: Pipeline, sink: Path, server: PrivateServer) -> None:
    with pipeline.sink_served(sink) as url, sink_client(url) as client:
        assert assert_equal(client, server, "shop", TABLES, KEYS) > 500


def check_output(done: Finished | Run, *words: str) -> None:
    assert all(word in done.output for word in words), done.output
    assert "Traceback" not in done.output, done.output


@pytest.mark.timeout(900)
def test_the_state_has_no_room(shop: str, mariadb_server: PrivateServer, tmp_path: Path, small_disk: Callable[[str, int], Path]) -> None:
    """`replicate` ends and names the file system; `run` retries, and continues when there is space."""
    disk = small_disk("disk", 48 * _MIB)
    pipeline = Pipeline(shop, f"chdb:{tmp_path / 'sink'}", disk / "state" / "shop")
    with filled(disk):
        # Its log is in another place, because the full disk has no space for it either.
        done = run_command("replicate", shop, pipeline.sink, "--state", str(pipeline.state), "--once")
        check_output(done, _FULL, str(disk), "remedy: free space there (df -h shows how much is left), then start again: nothing is lost")
        assert done.code == 2
    file = tmp_path / "headrace.toml"
    file.write_text(
        f'[headrace]\nstate = "{disk / "state"}"\nlisten = ""\nretry_seconds = 1\n'
        f'[sources.shop]\nurl = "{shop}"\n[sinks.lake]\nurl = "{pipeline.sink}"\n[pipes.shop]\nsource = "shop"\nsink = "lake"\n'
    )
    with Run(["run", str(file)], tmp_path / "run.log").killed() as run:
        run.until(lambda: pipeline.last_committed_batch() >= 0 or "snapshot: complete" in run.output)
        with Workload(mariadb_server, "shop", 1, pause_s=0.01), filled(disk):
            run.until(lambda: _FULL in run.output)
        end = log_end(mariadb_server)
        run.until(lambda: (pipeline.committed_position() or (0, 0)) >= end)
        assert run.terminate().code == 143
        check_output(run, _FULL)
    check_exact(pipeline, tmp_path / "sink", mariadb_server)


@pytest.mark.slow(because="test_the_state_has_no_room; test_a_server_that_is_away_is_waited_for waits for such a sink")
@pytest.mark.timeout(900)
def test_an_embedded_sink_has_no_room(
    shop: str, mariadb_server: PrivateServer, tmp_path: Path, small_disk: Callable[[str, int], Path]
) -> None:
    """The pipe waits for space, reports why it waits, and continues."""
    disk = small_disk("disk", 128 * _MIB)
    pipeline = Pipeline(shop, f"chdb:{disk / 'sink'}", tmp_path / "state")
    with pipeline.running() as run:
        run.until(lambda: pipeline.last_committed_batch() >= 0 or "snapshot: complete" in run.output)
        with Workload(mariadb_server, "shop", 1, pause_s=0.01), filled(disk):
            run.until(lambda: _FULL in run.output)
        end = log_end(mariadb_server)
        run.until(lambda: (pipeline.committed_position() or (0, 0)) >= end)
        assert run.terminate().code == 143
        check_output(run, "waiting: ClickHouse error", _FULL)
    check_exact(pipeline, disk / "sink", mariadb_server)


@pytest.mark.slow(
    "256",
    because=("tests/pipes/crash/test_shortages.py::test_too_few_open_files[60], tests/spark/test_spark_start.py::test_too_few_open_files"),
)
@pytest.mark.parametrize("files", [60, 256])
def test_too_few_open_files(shop: str, mariadb_server: PrivateServer, tmp_path: Path, files: int) -> None:
    """The error names the limit, and its remedy works."""

    def limited(limit: int) -> Finished:
        words = ["replicate", shop, f"chdb:{tmp_path / 'sink'}", "--state", str(tmp_path / "state"), "--once"]
        script = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-m", "headrace", *words]
        ran = subprocess.run(script, check=False, capture_output=True, text=True, env=dict(os.environ), timeout=300)
        return Finished(ran.returncode, ran.stdout + ran.stderr)

    done = limited(files)
    check_output(done, f"this process may have {files}", "remedy: raise it: ulimit -n 4096")
    assert done.code == 2
    if files == 256:
        done = limited(4096)
        assert done.code == 0, done.output
        check_exact(Pipeline(shop, "", tmp_path / "state"), tmp_path / "sink", mariadb_server)


def _limited(pipeline: Pipeline, limits: str, *options: str) -> Finished:
    """`replicate --once` in a shell that sets limits first."""
    words = ["replicate", pipeline.source, pipeline.sink, "--state", str(pipeline.state), "--once", *options]
    script = ["sh", "-c", f'{limits}; exec "$@"', "sh", sys.executable, "-m", "headrace", *words]
    for _ in range(5):
        ran = subprocess.run(script, check=False, capture_output=True, text=True, timeout=300)
        # A few milliseconds after it has killed Java, the kernel may kill Python too, because Java's memory is not released yet.
        if ran.returncode != -signal.SIGKILL:
            break
    return Finished(ran.returncode, ran.stdout + ran.stderr)


@contextmanager
def _memory_group(size: int) -> Iterator[Path | None]:
    """Create a control group (version 1 or 2) with a memory limit; None where that is not possible."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"headrace-test-{secrets.token_hex(4)}"
        try:
            group.mkdir()
            (group / ("memory.limit_in_bytes" if root.name == "memory" else "memory.max")).write_text(str(size))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    yield None


def _kill_java_once(run: Run) -> None:
    while run.code is None:
        lines = {pid: command_lines([pid]) for pid in run.processes()}
        # The launcher only prints the command of the process that is to be killed.
        java = [pid for pid, line in lines.items() if line.partition(" ")[0].endswith("/java") and "launcher.Main" not in line]
        if java:
            os.kill(java[0], signal.SIGKILL)
            return
        time.sleep(0.01)


_SLOW_ONCE = """
import os, sys, time
if "python_streaming_source_runner" in " ".join(sys.orig_argv):
    try:
        os.close(os.open(os.environ["SLOW_ONCE"], os.O_CREAT | os.O_EXCL))
        time.sleep(12)
    except FileExistsError:
        pass
"""
"""A `sitecustomize`, which Python imports at its start: Spark gives a Python process ten seconds to connect."""


@pytest.mark.slow(
    because=("test_too_little_address_space, test_it_is_killed_once, test_it_is_slow, test_a_control_group_has_too_little_memory"),
)
@pytest.mark.timeout(900)
def test_spark_cannot_start(shop: str, mariadb_server: PrivateServer, tmp_path: Path) -> None:
    """Too little memory, a killed process, a slow process: an error or a retry, and then exactly the source's rows."""
    with Pipeline(shop, "", tmp_path).sink_served(tmp_path / "sink") as url, sink_client(url) as client:
        pipeline = Pipeline(shop, url.replace("http://", "clickhouse://default@"), tmp_path / "state")
        done = _limited(pipeline, f"ulimit -v {_JAVA_ADDRESS_KIB}")
        check_output(done, "there is not enough memory", "ulimit -v unlimited")
        assert done.code == 2
        with _memory_group(450 << 20) as group:
            if group is not None:
                greedy = ("--conf", "spark.driver.extraJavaOptions=-Xms700m -XX:+AlwaysPreTouch")
                done = _limited(pipeline, f"echo $$ > {group}/cgroup.procs", *greedy)
                check_output(done, "ended by SIGKILL", "give the machine or its control group more")
                assert done.code == 2
        with pipeline.running("--once") as run:
            _kill_java_once(run)
            done = run.wait()
        check_output(done, "ended by SIGKILL", "starting it again")
        assert done.code == 0, done.output
        assert assert_equal(client, mariadb_server, "shop", TABLES, KEYS) > 500

        execute(mariadb_server, "DELETE FROM shop.notes LIMIT 10")
        (tmp_path / "slow").mkdir()
        (tmp_path / "slow" / "sitecustomize.py").write_text(_SLOW_ONCE)
        pipeline.environment = {"PYTHONPATH": str(tmp_path / "slow"), "SLOW_ONCE": str(tmp_path / "was-slow")}
        done = pipeline.once()
        assert (tmp_path / "was-slow").exists()
        check_output(done, "waiting: Spark's Python processes did not start in time; the pipe starts again")
        assert done.code == 0, done.output
        assert assert_equal(client, mariadb_server, "shop", TABLES, KEYS) > 500
