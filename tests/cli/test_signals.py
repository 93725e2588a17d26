"""SIGINT and SIGTERM at random moments of every command: no traceback, no process left, the signal's exit code, in time, and no row lost.

A small sample from a fixed seed; HEADRACE_SOAK=1 takes 200 moments from another seed (HEADRACE_SEED repeats one) and prints the figures.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.faults.interruptions import LIMIT_S, Interruption, interrupt
from testkit.generators.workload import KEYS, TABLES, Workload
from testkit.oracles.both_ends import assert_equal, sink_client
from testkit.pipelines.pipeline import Pipeline, Run, run_command
from testkit.servers.accounts import Account, create_replica_account

pytestmark = pytest.mark.scaled

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
SEED = int(os.environ.get("HEADRACE_SEED") or (secrets.randbelow(1 << 31) if SOAK else 12))
SAMPLE = ("replicate", "run", "verify", "check", "sql", "tail", "replicate", "verify on Spark", "sink away", "run")
MORE = ("replicate", "replicate", "run", "run", "verify", "verify on Spark", "check", "sql", "tail", "sink away", "source away", "serve")
MOMENTS = 200
# On a busy machine commands take longer to end.
_SLACK_S = 5.0


@dataclass
class World:
    """A server with a workload, pipes from it, and the commands that are interrupted."""

    server: PrivateServer
    source: str
    home: Path
    silent_port: int
    """A port that accepts connections and never answers."""
    rounds: int = 0

    def __post_init__(self) -> None:
        self.sinks = {"replicate": self.home / "sink", "run": self.home / "run-sink"}
        self.pipeline = Pipeline(self.source, f"chdb:{self.sinks['replicate']}", self.home / "state", ("--chunk-rows", "100"))
        self.file = self.home / "headrace.toml"
        self.file.write_text(
            f'[headrace]\nstate = "{self.home / "run-state"}"\nlisten = ""\n'
            f'[sources.shop]\nurl = "{self.source}"\n[sinks.lake]\nurl = "chdb:{self.sinks["run"]}"\n'
            '[pipes.shop]\nsource = "shop"\nsink = "lake"\n'
        )

    def command(self, kind: str) -> list[str]:
        sink = f"chdb:{self.sinks['replicate']}"
        fresh = str(self.home / f"other-{self.rounds}")
        verify = ["verify", self.source, f"chdb:{self.home / 'still'}", "--state", str(self.home / "still-state")]
        return {
            "replicate": ["replicate", self.source, sink, "--state", str(self.pipeline.state), *self.pipeline.options],
            "run": ["run", str(self.file)],
            "verify": verify,
            "verify on Spark": [*verify, "--spark", "always"],
            "check": ["check", self.source],
            "sql": ["sql", f"chdb:{self.home / 'still'}", "SELECT sleepEachRow(1) FROM numbers(3)"],
            "tail": ["tail", self.source, "--from-beginning"],
            "sink away": ["replicate", self.source, f"clickhouse://default@127.0.0.1:{self.silent_port}", "--state", fresh],
            "source away": ["replicate", f"mysql://root@127.0.0.1:{self.silent_port}/shop", f"chdb:{fresh}-sink", "--state", fresh],
            "serve": ["serve", fresh, "--port", "0"],
        }[kind]


@contextmanager
def silent_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield int(listener.getsockname()[1])


@pytest.fixture
def world(mariadb_server: PrivateServer, replica_accounts: dict[str, Account], tmp_path: Path) -> Iterator[World]:
    if "mariadb" not in replica_accounts:
        replica_accounts["mariadb"] = create_replica_account(mariadb_server)
    account = replica_accounts["mariadb"]
    with mariadb_server.root_connection() as root, root.cursor() as cursor, silent_port() as port:
        cursor.execute("DROP DATABASE IF EXISTS shop")
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        Workload(mariadb_server, "shop", 0).prepare()
        found = World(mariadb_server, account.url("shop"), tmp_path, port)
        yield found
        cursor.execute("DROP DATABASE shop")


def spans(world: World) -> dict[str, float]:
    """How long a command needs to start its work; moments are drawn from a slightly longer time."""
    still = Pipeline(world.source, f"chdb:{world.home / 'still'}", world.home / "still-state")
    done = still.once()
    assert done.code == 0, done.output
    begun = time.monotonic()
    with Workload(world.server, "shop", 1), Run(world.command("replicate"), world.home / "first.log").killed() as run:
        run.until(lambda: world.pipeline.last_committed_batch() >= 1)
        long_s = time.monotonic() - begun
    begun = time.monotonic()
    run_command(*world.command("check"))
    short_s = time.monotonic() - begun
    return defaultdict(lambda: short_s, {"replicate": long_s, "run": long_s, "sink away": 2 * short_s, "verify on Spark": long_s / 2})


def drawn(chooser: random.Random, span_s: float) -> Interruption:
    return Interruption(
        # More moments in the start phase.
        1.2 * span_s * chooser.random() ** 2,
        chooser.choice([signal.SIGINT, signal.SIGTERM]),
        group=chooser.random() < 0.5,
        again_s=chooser.uniform(0.3, 1.0) if chooser.random() < 0.25 else None,
    )


@pytest.mark.slow(
    because=(
        "test_while_importing, test_no_descendant_remains, test_a_batch_is_finished; test_resume_after_ctrl_c has Ctrl-C in a snapshot"
    ),
)
@pytest.mark.timeout(3 * 3600 if SOAK else 900)
def test_random_moments(world: World) -> None:
    chooser = random.Random(SEED)
    kinds = [MORE[number % len(MORE)] for number in range(MOMENTS)] if SOAK else list(SAMPLE)
    span_s = spans(world)
    slowest, landed, ended = 0.0, 0, 0
    with Workload(world.server, "shop", 2, pause_s=0.02):
        for world.rounds, kind in enumerate(kinds):
            what = drawn(chooser, span_s[kind])
            print(f"seed {SEED}, {world.rounds}: {kind}: {what}", end="", flush=True)
            done = interrupt(world.command(kind), world.home / "interrupted", what)
            print(f": {'had ended' if done.ended_before else f'{done.took_s:.2f} s'}", flush=True)
            assert done.took_s < LIMIT_S + _SLACK_S, f"{kind}: {what}: {done.output}"
            slowest, landed, ended = max(slowest, done.took_s), landed + (not done.ended_before), ended + done.ended_before
    print(f"seed {SEED}: {landed} moments, {ended} commands had ended before; the slowest exit took {slowest:.2f} s")
    assert landed > len(kinds) / 2
    check_pipes(world)


def check_pipes(world: World) -> None:
    """Both pipes continue after the interruption, and hold the source's rows."""
    for name, done in (("replicate", world.pipeline.once()), ("run", run_command("run", str(world.file), "--once"))):
        assert done.code == 0, done.output
        with world.pipeline.sink_served(world.sinks[name]) as url, sink_client(url) as client:
            assert assert_equal(client, world.server, "shop", TABLES, KEYS) > 500
