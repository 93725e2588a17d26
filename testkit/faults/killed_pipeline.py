"""A run of `headrace replicate` that is killed with SIGKILL, with all its processes, at a chosen moment.

At that moment all processes except the sink are stopped, the moment is checked, and all are killed, the embedded ClickHouse too.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.model.version import pack_version
from testkit.generators.workload import TABLES
from testkit.oracles.both_ends import log_end, sink_client
from testkit.pipelines.pipeline import Pipeline, Run


class Victim:
    """A run under observation."""

    def __init__(self, pipeline: Pipeline, sink_dir: Path, server: PrivateServer, database: str) -> None:
        self.pipeline, self.database, self._sink_dir = pipeline, database, sink_dir
        # Rows of the snapshot are older than this, so what the sink holds beyond it came from the stream.
        self._horizon = log_end(server)
        self._client: Client | None = None
        self.run: Run = pipeline.start()

    def strike(self, moment: str, chooser: random.Random) -> str:
        """Kill everything at the moment; return where the kill landed."""
        try:
            return self._strike(moment, chooser)
        finally:
            self.run.kill()
            if self._client is not None:
                self._client.close()

    def _strike(self, moment: str, chooser: random.Random) -> str:
        if moment in ("planned", "written", "streaming"):
            self.run.until(self._caught_up, timeout_s=300)
        deadline = time.monotonic() + 60
        while True:
            self._await(moment, chooser)
            self.run.signal_all(signal.SIGSTOP, spare=self._sink_pids())
            landed = self._landed()
            # The moment may pass before all processes are stopped: continue them and try again.
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
            # Vary how far the batch has come when it is stopped.
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
        holder = read_serving_process(self._sink_dir)
        begin = self.pipeline.committed_position()
        if holder is None or not holder.port or begin is None:
            return False
        if self._client is None:
            self._client = sink_client(f"http://127.0.0.1:{holder.port}")
        newest = " UNION ALL ".join(f"SELECT max(_version) AS v FROM {self.database}.{table}" for table in TABLES)
        version = int(self._client.query(f"SELECT max(v) FROM ({newest})").result_rows[0][0])
        return version >= pack_version(0, *begin)

    def _sink_pids(self) -> list[int]:
        holder = read_serving_process(self._sink_dir)
        return [holder.pid] if holder is not None else []
