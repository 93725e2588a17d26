"""ClickHouse servers that attack their client (`testkit.faults.hostile_http`): an error in bounded memory and time, never a traceback."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from urllib3 import Timeout

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, HeadraceError
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.server import bounded_client
from headrace.sinks.clickhouse.server.bounded_client import BoundedClient, arrow_table
from headrace.sinks.clickhouse.server.client import connect, disconnect, long_running_connection
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from testkit.faults.hostile_http import HTTP_ATTACKS, NATIVE_ATTACKS, Attack, hostile_http
from testkit.faults.hostile_server import bounded
from testkit.pipelines.embedded_access import target_of

_MOST_MIB = 900
"""Memory for one response: twice its limit while it is assembled."""
_MOST_S = 60
_DISCONNECTS = ("endless_header_line", "bad_chunks", "not_http", "empty", "not_text", "negative_length")
"""Broken responses that a proxy or a stopping server may send: they may be retried."""


def rejection(attack: Attack) -> HeadraceError:
    """Return the error of connecting to a server with this first response."""
    with hostile_http(attack) as port, bounded(_MOST_MIB, _MOST_S), pytest.raises(HeadraceError) as caught:
        connect(ClickHouseTarget("127.0.0.1", port, "u", "s3cr3t"))
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", HTTP_ATTACKS)
def test_an_attack_by_the_first_answer_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_client, "CONNECTING_S", 5.0)
    raised = rejection(HTTP_ATTACKS[name])
    assert name in _DISCONNECTS or isinstance(raised, DefiniteError), raised


@contextlib.contextmanager
def turned(attack: Attack, clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    """A proxy of ClickHouse that attacks when a statement contains "hostile"."""
    with hostile_http(attack, real=clickhouse.port, on=b"hostile") as port:
        target = replace(target_of(clickhouse), port=port)
        connect(target)
        try:
            yield target
        finally:
            disconnect(target)


@pytest.mark.parametrize("name", [*NATIVE_ATTACKS, "endless_body", "empty", "not_text", "endless_error"])
def test_an_attack_by_a_small_result_is_an_error(name: str, clickhouse: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_client, "ANSWER_BYTES", 128 << 20)
    with turned({**HTTP_ATTACKS, **NATIVE_ATTACKS}[name], clickhouse) as target, bounded(_MOST_MIB, _MOST_S):
        connection = connect(target)
        with pytest.raises(HeadraceError) as caught, translate_errors(target, "asking"):
            connection.client.query("SELECT 1 AS hostile").result_rows[0]
    assert name in _DISCONNECTS or isinstance(caught.value, DefiniteError), caught.value


@pytest.mark.parametrize("name", ["endless_body", "huge_length", "gzip_bomb", "endless_error", "not_text", "endless_header_line"])
@pytest.mark.parametrize("ask", ["query", "text"])
def test_an_attack_by_rows_is_an_error(name: str, ask: str, clickhouse: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_client, "ANSWER_BYTES", 128 << 20)
    with turned(HTTP_ATTACKS[name], clickhouse) as target, bounded(_MOST_MIB, _MOST_S):
        if ask == "text" and name == "not_text":
            assert ClickHouseReader(TargetScope(target, ClickHouseOptions())).text("SELECT 1 AS hostile") == "\\\\xff\\\\xfe\\\\xfd\n"
            return
        with pytest.raises(HeadraceError) as caught:
            getattr(ClickHouseReader(TargetScope(target, ClickHouseOptions())), ask)("SELECT 1 AS hostile")
    assert name == "endless_header_line" or isinstance(caught.value, DefiniteError), caught.value


@pytest.mark.parametrize("rows", [b"[]\n" * (5 << 20), b"[" + b"0," * (16 << 20) + b"0]\n", b"{}\n", b"[1\n", b"[" * 100_000 + b"\n"])
def test_rows_that_are_small_on_the_wire_and_large_in_memory_are_refused(rows: bytes, clickhouse: EmbeddedServer) -> None:
    with (
        turned(lambda client: client.answer(rows), clickhouse) as target,
        bounded(_MOST_MIB, _MOST_S),
        pytest.raises(DefiniteError) as caught,
    ):
        ClickHouseReader(TargetScope(target, ClickHouseOptions())).query("SELECT 1 AS hostile")
    assert "too large" in caught.value.message or "HTTP interface" in caught.value.message


def _arrow(table: pa.Table, codec: str | None = None) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _claiming(size: int) -> bytes:
    """A compressed column with a false length."""
    plain = struct.pack("<q", 1 << 20)
    before, _, after = _arrow(pa.table({"a": pa.array([bytes(1 << 20)])}), "lz4").rpartition(plain)
    return before + struct.pack("<q", size) + after


def _shifted() -> bytes:
    """A column whose offsets point outside of its values."""
    offsets = pa.array([0, 1 << 30, 3], pa.int32()).buffers()[1]
    outside = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    return _arrow(pa.table({"a": outside}))


_COLUMNS = {
    "zstd bomb": lambda: _arrow(pa.table({"a": pa.array([bytes(64 << 20)] * 3)}), "zstd"),
    "a claim of 100 GB": lambda: _claiming(100 << 30),
    "a claim of less than nothing": lambda: _claiming(-7),
    "offsets outside": _shifted,
    "cut off": lambda: _arrow(pa.table({"a": [1, 2, 3]}))[:-60],
    "another number of columns": lambda: _arrow(pa.table({"a": [1], "b": [2]})),
    "no Arrow": lambda: b"\xff" * 1000,
    "empty": lambda: b"",
    "a length of 2 GiB": lambda: b"\xff\xff\xff\xff" + struct.pack("<i", 0x7FFFFFFF) + bytes(100),
}


@pytest.mark.parametrize("name", _COLUMNS)
def test_columns_that_claim_or_hold_too_much_are_refused(name: str, clickhouse: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_client, "ANSWER_BYTES", 128 << 20)
    columns = _COLUMNS[name]()
    with turned(lambda client: client.answer(columns), clickhouse) as target, bounded(_MOST_MIB, _MOST_S):
        connection = connect(target)
        with pytest.raises(DefiniteError) as caught, translate_errors(target, "reading"):
            arrow_table(connection.client.raw_query("SELECT 1 AS hostile", fmt="ArrowStream"), 1)
    assert caught.value.hint


def test_a_body_that_comes_a_byte_at_a_time_ends(clickhouse: EmbeddedServer) -> None:
    with (
        turned(HTTP_ATTACKS["slow_body"], clickhouse) as target,
        bounded(_MOST_MIB, _MOST_S),
        long_running_connection(target) as connection,
    ):
        assert isinstance(connection.client, BoundedClient)
        connection.client._backend.timeout = Timeout(connect=2, read=2)
        with pytest.raises(DefiniteError, match="64 KiB/s"), translate_errors(target, "asking"):
            connection.client.raw_query("SELECT 1 AS hostile")


def test_large_answers_of_a_real_server_are_read(clickhouse: EmbeddedServer) -> None:
    """The limits are far above what Headrace requests, and the error of a large result has a hint."""
    target = target_of(clickhouse)
    connection = connect(target)
    with translate_errors(target, "asking"):
        assert len(connection.client.query("SELECT number, toString(number) FROM numbers(1000000)").result_rows) == 1_000_000
        raw = connection.client.raw_query("SELECT repeat('x', 1000) FROM numbers(100000)", fmt="ArrowStream")
        assert arrow_table(raw, 1).num_rows == 100_000
        for codec in ("none", "lz4_frame", "zstd"):
            settings = {"output_format_arrow_compression_method": codec}
            raw = connection.client.raw_query("SELECT toString(number), number FROM numbers(100000)", settings=settings, fmt="ArrowStream")
            assert arrow_table(raw, 2).num_rows == 100_000
    _, rows = ClickHouseReader(TargetScope(target, ClickHouseOptions())).query("SELECT number, 'a,b' FROM numbers(100000)")
    assert rows[-1] == [99_999, "a,b"]
    with pytest.raises(DefiniteError, match="too large"):
        ClickHouseReader(TargetScope(target, ClickHouseOptions())).query("SELECT number FROM numbers(5000000)")
    disconnect(target)


@pytest.mark.parametrize("name", ["endless_body", "error_bomb"])
def test_the_command_sql_ends_with_an_error(name: str) -> None:
    with hostile_http(HTTP_ATTACKS[name]) as port:
        command = [sys.executable, "-m", "headrace", "sql", f"clickhouse://u:s3cr3t@127.0.0.1:{port}/d", "SELECT 1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr
