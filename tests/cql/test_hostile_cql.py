"""CQL servers that attack their client (`testkit.faults.hostile_cql`): an error in bounded memory and time, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cassandra.connection import ConnectionShutdown, DefaultEndPoint

from headrace.cql.address import parse_cql_url
from headrace.cql.bounded_connection import BoundedCqlConnection, check_rows
from headrace.cql.session import connect
from headrace.errors import DefiniteError, HeadraceError
from testkit.faults.hostile_cql import ATTACKS, EVENT_FRAME, hostile_cql, silence
from testkit.faults.hostile_server import bounded

_WAITED = ("endless_events",)
"""Attacks without an answer: the timeout is a transient error."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_an_error(name: str) -> None:
    # Long enough for a busy machine: a timeout is a transient error.
    patience_s = 3 if name in _WAITED else 30
    with bounded(900), hostile_cql(ATTACKS[name]) as port, pytest.raises(HeadraceError) as caught:
        connect(parse_cql_url(f"cql://127.0.0.1:{port}/k?connect-timeout={patience_s}&read-timeout={patience_s}"))
    assert name in _WAITED or isinstance(caught.value, DefiniteError), caught.value
    assert caught.value.hint


def test_frames_of_a_closed_connection_are_dropped() -> None:
    """All connections of the process share the driver's thread. A flood that it decoded to the end would delay the others for minutes."""
    with hostile_cql(silence) as port, bounded(900, 10):
        connection = BoundedCqlConnection(DefaultEndPoint("127.0.0.1", port), protocol_version=4)
        connection._io_buffer.io_buffer.write(EVENT_FRAME * 20_000)
        connection.close()
        with pytest.raises(ConnectionShutdown):
            connection.process_io_buffer()
        with pytest.raises(ConnectionShutdown):
            connection._io_buffer.io_buffer.write(EVENT_FRAME)


@pytest.mark.parametrize(
    ("rows", "columns", "left"), [(-1, 1, 100), (26, 1, 100), (1 << 31, 0, 100), (1, 70_000, 1 << 30), (4 << 20, 1, 1 << 30)]
)
def test_rows_that_cannot_be_there_are_refused(rows: int, columns: int, left: int) -> None:
    with pytest.raises(Exception, match="CQL's protocol"):
        check_rows(rows, columns, left)


def test_rows_of_a_page_are_taken() -> None:
    check_rows(5000, 200, 5000 * 200 * 4)
    check_rows(0, 0, 0)


@pytest.mark.parametrize("command", ["check", "tail"])
def test_commands_end_with_an_error_and_without_a_traceback(command: str) -> None:
    with hostile_cql(ATTACKS["cut_rows"]) as port:
        arguments = [command, f"scylla://127.0.0.1:{port}/k?connect-timeout=3", *(["--once"] if command == "tail" else [])]
        done = subprocess.run([sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "CQL's protocol" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
