"""Commands against MySQL servers that attack their client (`testkit.faults.hostile_mysql`): a definite error, bounded memory and time."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, HeadraceError
from headrace.sources.mysql.server.connection import connect, parse_mysql_url, query
from testkit.faults import hostile_mysql
from testkit.faults.hostile_mysql import ATTACKS, hostile_server

_MOST_BYTES = 1200 << 20
"""The limit of resident memory: Python with its imports, and one result."""
_COMMANDS = {
    "check": ["check", "{source}"],
    "tail": ["tail", "{source}", "--once"],
    "verify": ["verify", "{source}", "{sink}"],
    "replicate": ["replicate", "{source}", "chdb:{directory}/sink", "--state", "{directory}/state", "--once"],
    "config check": ["config", "check", "{directory}/headrace.toml", "--connect"],
}


def asked(port: int) -> str:
    return f"mysql://u:s3cr3t@127.0.0.1:{port}/db?connect-timeout=2&read-timeout=2"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_definite_error(name: str) -> None:
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with hostile_server(ATTACKS[name]) as port:
        address = parse_mysql_url(asked(port))
        with pytest.raises(HeadraceError) as caught:
            query(connect(address), address, "SELECT 1")
    assert isinstance(caught.value, DefiniteError), caught.value
    assert "MySQL's protocol" in caught.value.message
    assert caught.value.hint
    assert time.monotonic() - begin < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < _MOST_BYTES
    assert hostile_mysql.STOLEN == []


@pytest.mark.slow(
    "endless_packet",
    "tail",
    "config check",
    because="test_an_attack_is_a_definite_error[endless_packet]; test_every_command_that_connects_ends[local_infile-check]",
)
@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("name", ["local_infile", "endless_packet"])
def test_every_command_that_connects_ends(name: str, command: str, tmp_path: Path) -> None:
    with hostile_server(ATTACKS[name]) as port, ExitStack() as stack:
        sink = ""
        if any("{sink}" in part for part in _COMMANDS[command]):
            # verify queries the sink before the source.
            served = stack.enter_context(EmbeddedServer(tmp_path / "served"))
            sink = f"clickhouse://{served.user}@{served.host}:{served.port}/"
        text = f'[sources.s]\nurl = "{asked(port)}"\n[sinks.t]\nurl = "chdb:x"\n[pipes.p]\nsource = "s"\nsink = "t"\n'
        (tmp_path / "headrace.toml").write_text(text)
        arguments = [part.format(source=asked(port), sink=sink, directory=tmp_path) for part in _COMMANDS[command]]
        # `time` reports the peak memory of the command and its children.
        script = "import resource, subprocess, sys; c = subprocess.run(sys.argv[1:]).returncode; "
        script += "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(c)"
        done = subprocess.run(
            [sys.executable, "-c", script, sys.executable, "-m", "headrace", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert "MySQL's protocol" in said
    assert "s3cr3t" not in said
    assert int(said.split("peak ")[1].split()[0]) << 10 < _MOST_BYTES
