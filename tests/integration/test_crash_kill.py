"""Kill -9 of the whole process tree, again and again, wherever it hurts: nothing is lost, nothing is doubled.

A round starts `headrace replicate`, waits for the moment it wants, freezes every process but the sink, looks where the run stands, and
kills them all, the embedded ClickHouse too. The workload never pauses. In the end one run catches up and both sides are compared.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.server import PrivateServer
from headrace.embedded.claim import read_holder
from headrace.model.version import pack_version
from testkit.accounts import Account
from testkit.pipeline import Pipeline, Run
from testkit.witness import assert_equal, log_end, sink_client
from testkit.workload import KEYS, TABLES, Workload

# One entry per round: what to wait for before the kill. Ten on each server.
MOMENTS = ("any", "snapshot", "snapshot", "snapshot", "any", "planned", "written", "streaming", "written", "any")


class Victim:
    """A run under observation."""

    def __init__(self, pipeline: Pipeline, sink_dir: Path, server: PrivateServer, database: str) -> None:
        self.pipeline, self.database, self._sink_dir = pipeline, database, sink_dir
        # Rows of the snapshot are older than this, so what the sink holds beyond it came from the stream.
        self._horizon = log_end(server)
        self._client: Client | None = None
        self.run: Run = pipeline.start()

    def strike(self, moment: str, chooser: random.Random) -> str:
        """Kill everything at the moment; where the kill landed."""
        try:
            return self._strike(moment, chooser)
        finally:
            self.run.kill()
            if self._client is not None:
                self._client.close()

    def _strike(self, moment: str, chooser: random.Random) -> str:
        if moment in ("planned", "written", "streaming"):
            self.run.until(self._caught_up)
        deadline = time.monotonic() + 60
        while True:
            self._await(moment, chooser)
            self.run.signal_all(signal.SIGSTOP, spare=self._sink_pids())
            landed = self._landed()
            # The moment may pass between seeing it and freezing it: let go and try again.
            if moment in ("any", "streaming", landed) or time.monotonic() > deadline:
                self.run.kill()
                return landed
            self.run.signal_all(signal.SIGCONT)

    def _await(self, moment: str, chooser: random.Random) -> None:
        pipeline = self.pipeline
        if moment == "any":
            time.sleep(chooser.uniform(0.5, 6))
        elif moment == "snapshot":
            done = pipeline.chunks_done()
            self.run.until(lambda: pipeline.chunks_done() > done)
            time.sleep(chooser.uniform(0, 0.3))
        elif moment == "written":
            self.run.until(lambda: pipeline.batch_is_open() and self._written(), poll_s=0.004)
        else:
            # What differs is how far the batch has got when it is frozen.
            batch = pipeline.last_planned_batch()
            self.run.until(lambda: pipeline.last_planned_batch() > batch, poll_s=0.002)
            time.sleep(chooser.uniform(0, 0.02 if moment == "planned" else 1.0))

    def _landed(self) -> str:
        if not (self.pipeline.state / "snapshot.jsonl").exists():
            return "start"
        if self.pipeline.chunks_done() < self.pipeline.chunks_planned():
            return "snapshot"
        if not self._caught_up():
            return "catching up"
        if not self.pipeline.batch_is_open():
            return "committed"
        return "written" if self._written() else "planned"

    def _caught_up(self) -> bool:
        position = self.pipeline.committed_position()
        return self.pipeline.last_committed_batch() >= 0 and position is not None and position >= self._horizon

    def _written(self) -> bool:
        """Whether the sink holds rows of the batch that is planned but not committed."""
        holder = read_holder(self._sink_dir)
        begin = self.pipeline.committed_position()
        if holder is None or not holder.port or begin is None:
            return False
        if self._client is None:
            self._client = sink_client(f"http://127.0.0.1:{holder.port}")
        newest = " UNION ALL ".join(f"SELECT max(_version) AS v FROM {self.database}.{table}" for table in TABLES)
        version = int(self._client.query(f"SELECT max(v) FROM ({newest})").result_rows[0][0])
        return version >= pack_version(0, *begin)

    def _sink_pids(self) -> list[int]:
        holder = read_holder(self._sink_dir)
        return [holder.pid] if holder is not None else []


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
