"""`headrace demo`: runs `headrace replicate` on a private database with a live workload, and verifies the copy."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from headrace.demo.private_server import PrivateServer, mariadb
from headrace.demo.shop import DATABASE, DONE, TABLES, Workload, create_shop
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.shutdown import stop_on_signal, temporary_directory
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE, parse_mysql_url
from headrace.stage_report import end_report, enter_stage, report_iteration, report_stages
from headrace.verify.result import Verdict
from headrace.verify.verifier import verify_tables
from headrace.verify.view import overall, summary

_CUSTOMERS: Final = 5_000
_ORDERS: Final = 20_000
_PATIENCE_S: Final = 180.0


@report_stages("starting the demo")
def run_demo(*, live: bool, seconds: float, directory: str) -> int:
    """Replicate a shop; return 0 if the copy is exact."""
    with ExitStack() as stack:
        home = Path(directory or stack.enter_context(temporary_directory("headrace-demo-"))).resolve()
        stopped = threading.Event()
        if live:
            # Ctrl-C closes the shop; the pipe then catches up and the copy is verified. A second Ctrl-C exits.
            stop_on_signal(stopped.set, grace_s=math.inf)
        _say(f"starting a private MariaDB and an embedded ClickHouse in {home}")
        enter_stage("starting MariaDB")
        source = stack.enter_context(mariadb(home / "mariadb"))
        sink = stack.enter_context(EmbeddedServer(home / "clickhouse"))
        enter_stage("filling the shop")
        with closing(source.root_connection()) as connection:
            rows = create_shop(connection, _CUSTOMERS, _ORDERS)
        _say(f"a shop with {', '.join(TABLES)}: {rows:,} rows; replicating it while it is open")
        if live:
            # Before the pipe draws its bars and its line: they would overwrite it.
            _tell_how_to_query(home, sink)
        # The pipe reports its own start.
        end_report()
        pipe = _start_pipe(source, home)
        stack.callback(_end, pipe)
        _await(lambda: _has_first_rows(home), pipe, "the first rows to arrive")
        workload = _trade(source, stopped, float("inf") if live else seconds, pipe)
        return _conclude(source, home, workload, pipe)


def _start_pipe(source: PrivateServer, home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "replicate"]
    address = f"mysql://{source.user}@127.0.0.1:{source.port}/{DATABASE}"
    environment = {**os.environ, PASSWORD_VARIABLE: source.password}
    return subprocess.Popen(
        [*command, address, f"chdb:{home / 'clickhouse'}", "--state", str(home / "state")],
        env=environment,
        stdin=subprocess.DEVNULL,
        # Ctrl-C must not reach the pipe: it runs until the last change has arrived.
        start_new_session=True,
    )


def _trade(source: PrivateServer, stopped: threading.Event, seconds: float, pipe: subprocess.Popen[bytes]) -> Workload:
    with closing(source.root_connection(autocommit=False)) as connection:
        workload = Workload(connection, _CUSTOMERS, _ORDERS)
        end = time.monotonic() + seconds
        workload.run(lambda: time.monotonic() < end and not stopped.is_set() and pipe.poll() is None)
        workload.finish()
    return workload


def _conclude(source: PrivateServer, home: Path, workload: Workload, pipe: subprocess.Popen[bytes]) -> int:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in workload.changes.items())
    with open_clickhouse_sink(f"chdb:{home / 'clickhouse'}") as named:
        reader = named.sink.reader()
        ended = time.monotonic()
        _await(lambda: _has_last_change(reader), pipe, "the last change to arrive")
        waited_s = time.monotonic() - ended
        # The pipe's live line and our lines would share a terminal's row.
        _end(pipe)
        _say(f"workload: {kinds}; the last change was there {waited_s:.2f} s after we looked for it")
        results = []
        found = verify_tables(parse_mysql_url(source.url(DATABASE)), named.sink, Selection((f"{DATABASE}.*",)))
        for result in report_iteration("verifying the copy", found):
            results.append(result)
            _say(f"verify: {result.schema.name}: {result.comparison.rows:,} rows, {summary([result])}")
            for difference in result.comparison.differences:
                _say(f"  {difference}")
    equal = overall(results) is Verdict.EQUAL
    verdict = "ok" if equal else "FAILED"
    print(f"demo: {verdict}, {workload.total} changes replicated, {summary(results)}", flush=True)
    return 0 if equal else 1


def _has_first_rows(home: Path) -> bool:
    snapshot = home / "state" / "snapshot.jsonl"
    return snapshot.exists() and '"done"' in snapshot.read_text()


def _has_last_change(reader: ClickHouseReader) -> bool:
    _, rows = reader.query(f"SELECT email FROM {DATABASE}.customers FINAL WHERE id = 1")
    return rows == [[DONE]]


def _await(condition: Callable[[], bool], pipe: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if pipe.poll() is not None:
            raise DefiniteError(f"headrace replicate ended with exit code {pipe.returncode} while we waited for {what}")
        if time.monotonic() > deadline:
            raise TransientError(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(0.05)


def _end(pipe: subprocess.Popen[bytes]) -> None:
    if pipe.poll() is None:
        pipe.terminate()
        pipe.wait(timeout=60)


def _tell_how_to_query(home: Path, sink: EmbeddedServer) -> None:
    _say("running until Ctrl-C. Query the copy from another terminal as soon as it begins to fill:")
    _say(f'  headrace sql chdb:{home / "clickhouse"} "SELECT status, count(), sum(total) FROM shop.orders FINAL GROUP BY status"')
    _say(f"or with a client of yours, at {sink.url}; user and password: headrace connection chdb:{home / 'clickhouse'}")


def _say(message: str) -> None:
    print(f"demo: {message}", flush=True)
