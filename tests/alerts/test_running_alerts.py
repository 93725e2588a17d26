"""`headrace run` with a real MariaDB: each kind of alert reaches a webhook and a mail server, with link and remedy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.service.running_process import CONTROL_FILE, HttpControl, read_endpoint
from headrace.service.status import PipeStage
from testkit.pipelines.pipeline import Run
from testkit.servers.accounts import create_replica_account
from testkit.servers.alert_receivers import Webhook, mail_server, webhook
from testkit.servers.prometheus import PrivatePrometheus

RULES = Path(str(files("headrace.dashboard") / "prometheus-rules.yml"))
FILE = """
[headrace]
state = "state"
listen = "127.0.0.1:0"

[sources.shop]
url = "mysql://{user}:{password}@127.0.0.1:{port}/{database}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

[alerts.hook]
url = "http://127.0.0.1:{hook}/services/path-secret"
lag_seconds = 1
lag_for_seconds = 2
low_disk = "1000000G"

[alerts.oncall]
url = "smtp://127.0.0.1:{mail}"
sender = "headrace@example.com"
to = ["oncall@example.com"]
events = ["failed", "recovered"]
"""


def received(run: Run, hook: Webhook, kind: str) -> dict[str, Any]:
    """Wait for an alert of a kind; return the first one."""
    run.until(lambda: kind in hook.kinds(), 120)
    return next(one.body for one in hook.accepted if one.body["kind"] == kind)


def await_end(run: Run, hook: Webhook, alert: dict[str, Any]) -> None:
    run.until(lambda: alert["id"] in [one.body["recovers"] for one in hook.accepted], 120)


def test_a_pipe_that_lags_differs_fails_and_recovers(mariadb_server: PrivateServer, tmp_path: Path) -> None:
    database, file, state = f"shop_{os.urandom(3).hex()}", tmp_path / "headrace.toml", tmp_path / "state"

    def execute(*statements: str) -> None:
        with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    account = create_replica_account(mariadb_server, f"alerts_{os.urandom(3).hex()}")
    execute(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, placed DATE)",
        f"USE {database}",
        f"INSERT INTO {database}.orders SELECT seq, '2026-01-01' FROM seq_1_to_100",
    )
    orders = f"{database}.orders"
    with webhook() as hook, mail_server() as server:
        named = {"user": account.user, "password": account.password, "port": mariadb_server.port, "database": database}
        file.write_text(FILE.format(**named, hook=hook.port, mail=server.port))
        run = Run(["run", str(file)], tmp_path / "log")
        try:
            run.until((state / CONTROL_FILE).exists)
            contact = read_endpoint(state)
            remote = HttpControl(contact)
            run.until(lambda: remote.pipe("shop").stage is PipeStage.STREAMING)
            low = received(run, hook, "low_disk")
            assert low["pipe"] == "shop"
            assert low["place"] in str(state)

            execute(f"ALTER TABLE {orders} ADD COLUMN note INT")
            altered = received(run, hook, "schema_change")
            assert altered["link"] == f"{contact.url}/#/pipes/shop"
            assert "ADD COLUMN note INT" in altered["details"][0]

            _stop_the_sink_and_write(tmp_path / "warehouse", lambda: execute(f"INSERT INTO {orders} VALUES (101, NULL, 1)"), run, hook)
            await_end(run, hook, received(run, hook, "lag"))

            # A row of the copy is lost.
            assert cli.main(["sql", f"chdb:{tmp_path / 'warehouse'}", f"ALTER TABLE {orders} DELETE WHERE id = 7"]) == cli.OK
            with PrivatePrometheus(tmp_path / "prometheus", contact.url.removeprefix("http://"), RULES) as prometheus:
                remote.verify("shop")
                run.until(lambda: ("HeadraceDifferences", "firing", "shop") in prometheus.alerts(), 120)
                assert not {name for name, _, _ in prometheus.alerts()} & {"HeadracePipeFailed", "HeadraceDown", "HeadraceDeadLetters"}
            different = received(run, hook, "differences")
            assert different["details"] == [f"{orders}: 1 rows differ"]

            execute("SET SESSION sql_mode = ''", f"INSERT INTO {orders} VALUES (102, '0000-00-00', 1)")
            # The only pipe has failed: the process ends, after it has sent the alert.
            assert run.wait().code == cli.FAILED
            _check_failure([one.body for one in hook.accepted], f"{contact.url}/#/pipes/shop", contact.token)
            assert [str(message["Subject"]).partition(" shop")[0] for message in server.messages] == ["[headrace] failed:"]

            assert cli.main(["skip", "--state", str(state / "shop"), "--yes"]) == cli.OK
            before = len(hook.accepted)
            # While it was down, it fell behind.
            file.write_text(file.read_text().replace("lag_seconds = 1", "lag_seconds = 3600"))
            run = Run(["run", str(file)], tmp_path / "log")
            failed = next(one.body for one in hook.accepted if one.body["kind"] == "failed")
            await_end(run, hook, failed)
            run.until(lambda: len(server.messages) == 2)
            assert "recovered" in server.messages[1]["Subject"]
            time.sleep(2)
            # Nothing is reported twice after the restart: no schema change, difference or full disk.
            of_lag = {one.body["id"] for one in hook.accepted if one.body["kind"] == "lag"}
            assert [one.body["kind"] for one in hook.accepted[before:] if one.body["recovers"] not in of_lag] == ["recovered"]
            status = HttpControl(read_endpoint(state)).alerts()
            assert {one.kind for one in status.open} - {"lag"} == {"low_disk", "differences"}
            assert status.deliveries[0].outcome in ("sent: HTTP 200", "sent: accepted")
            assert run.interrupt_group().code == 130
        finally:
            run.kill()
    for secret in ("path-secret", account.password):
        assert secret not in run.output
        assert secret not in (state / "alerts.json").read_text()


def _stop_the_sink_and_write(directory: Path, write: Callable[[], None], run: Run, hook: Webhook) -> None:
    """Suspend the embedded server until the lag is reported."""
    serving = read_serving_process(directory)
    assert serving is not None
    os.kill(serving.pid, signal.SIGSTOP)
    try:
        write()
        received(run, hook, "lag")
    finally:
        os.kill(serving.pid, signal.SIGCONT)


def _check_failure(alerts: Sequence[dict[str, Any]], link: str, token: str) -> None:
    [failed] = [one for one in alerts if one["kind"] == "failed"]
    assert failed["summary"].startswith("shop: failed: ")
    assert "0000-00-00" in failed["summary"]
    assert failed["place"]
    assert "zero_dates" in failed["remedy"]
    assert failed["link"] == link
    assert all(token not in str(one) for one in alerts)


def test_a_receiver_that_fails_does_not_keep_the_process(mariadb_server: PrivateServer, tmp_path: Path) -> None:
    """The account does not exist, so the pipe fails at once; the alert waits for the next start."""
    with webhook() as hook:
        hook.answers = [500] * 1000
        named = {"user": "nobody", "password": "pass-secret", "port": mariadb_server.port, "database": "shop"}
        (tmp_path / "headrace.toml").write_text(FILE.format(**named, hook=hook.port, mail=hook.port))
        run = Run(["run", str(tmp_path / "headrace.toml")], tmp_path / "log")
        try:
            assert run.wait().code == cli.FAILED
        finally:
            run.kill()
        assert {one.headers["answered"] for one in hook.posted} == {"500"}
    assert '"kind": "failed"' in (tmp_path / "state" / "alerts.json").read_text()
