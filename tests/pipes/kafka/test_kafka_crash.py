"""`headrace replicate` into Kafka as a process: all processes and the broker are killed, and no change is lost.

The workload never pauses. At the end readers of the topics (`testkit.oracles.topic_rows`) have the rows of the source's SELECT.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.version import pack_version
from testkit.generators.workload import TABLES, Workload
from testkit.oracles.both_ends import source_rows
from testkit.oracles.topic_rows import as_rows, assert_ordered, fold, newest_version, read_sent, repeats
from testkit.pipelines.pipeline import Pipeline, command_lines, run_command
from testkit.servers.accounts import Account
from testkit.servers.broker import PrivateBroker

pytestmark = pytest.mark.scaled

COLUMNS = {"accounts": ("id", "owner", "balance", "changed"), "parts": ("account", "line", "amount"), "notes": ("title", "body", "stars")}
READ: dict[str, Callable[[Any], Any]] = {"balance": Decimal, "changed": datetime.fromisoformat, "amount": float, "body": bytes.decode}


def plain(name: str, value: Any) -> Any:
    return READ[name](value) if name in READ and value is not None else value


@pytest.mark.slow(
    because=(
        "test_one_kill[MySqlToDebeziumJson]; test_a_broker_that_is_away_is_waited_for_and_a_wrong_password_is_not; "
        "test_killed_at_any_block without Spark"
    ),
)
@pytest.mark.soak("mysql", because="test_kafka_pipe kills on both, without Spark")
@pytest.mark.timeout(900)
def test_killed_with_the_broker(
    server: PrivateServer, database: str, replica_account: Account, fresh_broker: Callable[..., PrivateBroker], tmp_path: Path
) -> None:
    broker = fresh_broker(accounts={"writer": "hush-hush"})
    options = ("--set", "kafka.partitions=3", "--set", "kafka.delivery_timeout_s=2")
    pipeline = Pipeline(replica_account.url(database), broker.url(), tmp_path / "state", options)
    workload, topics = Workload(server, database, 5, pause_s=0.1), [f"{database}_{table}_generic" for table in TABLES]
    workload.prepare()
    with workload, pipeline.running() as run:
        run.until(lambda: pipeline.last_committed_batch() >= 0)
        assert "hush-hush" not in command_lines(run.processes())
        # The broker crashes in the middle of the stream and comes back: the pipe waits for it.
        broker.kill()
        run.until(lambda: "waiting" in run.output.lower())
        broker.start()
        batch = pipeline.last_committed_batch()
        run.until(lambda: pipeline.last_committed_batch() > batch + 1)
        # Stopped when a batch is sent, at least in part, and not committed: the next run sends it again.
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            run.until(pipeline.batch_is_open, poll_s=0.002)
            run.signal_all(signal.SIGSTOP)
            committed = pipeline.committed_position()
            assert committed is not None
            if pipeline.batch_is_open() and newest_version(broker, topics) > pack_version(0, *committed):
                break
            run.signal_all(signal.SIGCONT)
        run.kill()
    done = pipeline.once()
    assert done.code == 0, done.output
    total = again = 0
    for table, topic in zip(TABLES, topics, strict=True):
        messages = read_sent(broker, topic)
        assert_ordered(messages)
        again += repeats(messages)
        expected = source_rows(server, database, table)
        for by_position in (True, False):
            assert as_rows(fold(messages, by_position=by_position).values(), COLUMNS[table], plain) == expected, (table, by_position)
        total += len(messages)
    assert again > 0
    progress = json.loads((tmp_path / "state" / "progress.json").read_text())
    assert progress["total_rows"] > 0
    assert "hush-hush" not in "".join(path.read_text(errors="replace") for path in (tmp_path / "state").glob("*.json*")) + done.output
    refused = run_command("verify", replica_account.url(database), broker.url())
    assert (refused.code, "Kafka holds messages" in refused.output) == (2, True), refused.output
    print(f"{server.flavour}: {workload.transactions} transactions, {total} messages, {again} of them again")
