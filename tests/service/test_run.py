"""`headrace run` as a process, controlled by commands and over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.service.running_process import CONTROL_FILE, ControlEndpoint, HttpControl, read_endpoint
from headrace.service.status import PipeStage
from testkit.pipelines.pipeline import Run
from testkit.servers.accounts import create_replica_account

FILE = """
[headrace]
state = "state"
listen = "127.0.0.1:0"
log = "json"

[sources.shop]
url = "mysql://{user}:${{SHOP_PASSWORD}}@127.0.0.1:{port}/{database}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""
PASSWORD = "p@ss/w0rd:of the-shop"


@pytest.fixture
def shop(mariadb_server: PrivateServer, tmp_path: Path) -> Callable[..., None]:
    """A file with one pipe; returns a function that runs statements at its source."""
    own = os.urandom(3).hex()
    database = f"shop_{own}"

    def execute(*statements: str) -> None:
        with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    account = create_replica_account(mariadb_server, f"run_{own}")
    execute(
        f"ALTER USER '{account.user}'@'%' IDENTIFIED BY '{PASSWORD}'",
        f"CREATE DATABASE {database}",
        f"USE {database}",
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, item VARCHAR(20))",
        f"INSERT INTO {database}.orders SELECT seq, 'tea' FROM seq_1_to_2000",
    )
    (tmp_path / "headrace.toml").write_text(FILE.format(user=account.user, port=mariadb_server.port, database=database))
    return lambda statement: execute(f"USE {database}", statement)


def test_control_commands_reach_a_running_process(shop: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, state = str(tmp_path / "headrace.toml"), tmp_path / "state"
    run = Run(["run", file], tmp_path / "log", {"SHOP_PASSWORD": PASSWORD})

    def said(*words: str, code: int = 0) -> str:
        assert cli.main(words) == code
        out, err = capsys.readouterr()
        return out + err

    try:
        run.until((state / CONTROL_FILE).exists)
        contact = read_endpoint(state)
        remote = HttpControl(contact)
        run.until(lambda: remote.pipe("shop").stage is PipeStage.STREAMING)
        # None of the commands has the password of the process.
        assert re.search(r"│ shop +│ streaming", said("status", file))
        assert said("dashboard", file) == f"{contact.url}/#token={contact.token}\n"
        assert _get(contact, "/ready") == (200, b'{"ready":true,"not_ready":[]}')
        [orders] = [table.name for table in remote.pipe("shop").tables]

        shop("INSERT INTO orders SELECT seq, 'coffee' FROM seq_3001_to_3500")
        run.until(lambda: remote.pipe("shop").changes >= 500)
        figures = _figures(contact)
        assert figures["headrace_pipe_changes_total"] == 500
        assert figures["headrace_pipe_batches_total"] >= 1
        assert figures["headrace_pipe_bytes_total"] > 500
        assert figures["headrace_pipe_failed"] == 0
        assert 0 <= figures["headrace_pipe_lag_seconds"] < 600
        assert figures["headrace_process_memory_bytes"] > 1 << 26
        assert figures["headrace_table_snapshot_rows"] == 2000

        assert "shop: pauses" in said("pause", "shop", "--file", file)
        run.until(lambda: remote.pipe("shop").stage is PipeStage.PAUSED)
        shop("DELETE FROM orders WHERE id <= 100")
        assert "resumes" in said("resume", "shop", "--file", file)
        run.until(lambda: remote.pipe("shop").stage is PipeStage.STREAMING)
        text = said("verify", "--pipe", "shop", "--file", file, "--wait", "120")
        assert f"{orders}: equal, 2,400 rows, 0 differences" in text
        assert remote.query("shop", f"SELECT toUInt32(count()) FROM {orders} FINAL")[1] == [[2400]]
        assert "reads" in said("resync", orders, "--pipe", "shop", "--file", file)
        run.until(lambda: f"reading {orders} again" in run.output)

        # As a terminal does on Ctrl-C.
        ended = run.interrupt_group()
    finally:
        run.kill()
    assert ended.code == 130
    assert "no process runs here" in said("status", file, code=2)
    _check_log(ended.output, contact.token)


def _check_log(text: str, token: str) -> None:
    """JSON lines with the pipe's name, and no secret; output for people is marked."""
    lines = [json.loads(line) for line in text.splitlines() if not line.startswith("headrace: ")]
    assert all(line.keys() >= {"ts", "level", "logger", "message"} for line in lines)
    assert {line.get("pipe") for line in lines if line["message"].startswith("snapshot: ")} == {"shop"}
    for secret in (PASSWORD, "p%40ss%2Fw0rd", token):
        assert secret not in text


def _get(contact: ControlEndpoint, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(contact.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _figures(contact: ControlEndpoint) -> dict[str, Any]:
    _, text = _get(contact, "/metrics")
    return {sample.name: sample.value for family in text_string_to_metric_families(text.decode()) for sample in family.samples}
