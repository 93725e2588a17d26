"""Compressed requests and results: HTTP's codings, and ClickHouse's own blocks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib

import pyarrow as pa
import pytest

from headrace.embedded.frames import FrameReader, FrameWriter
from headrace.embedded.process import EmbeddedServer
from testkit.httpclient import Client

_ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    **{
        name: (lambda data, codec=codec: pa.Codec(codec).compress(data, asbytes=True))
        for name, codec in {"br": "brotli", "zstd": "zstd", "lz4": "lz4"}.items()
    },
}


def _decode(coding: str, data: bytes) -> bytes:
    if coding == "deflate":
        return zlib.decompress(data)
    if coding == "xz":
        return lzma.decompress(data)
    codec = {"br": "brotli"}.get(coding, coding)
    return pa.CompressedInputStream(pa.BufferReader(data), codec).read()


@pytest.mark.parametrize("coding", list(_ENCODERS))
def test_requests_are_decoded(client: Client, table: str, coding: str) -> None:
    rows = "".join(f"{n}\n" for n in range(100_000)).encode()
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", _ENCODERS[coding](rows), headers={"Content-Encoding": coding})
    assert answer.status == 200, answer.body
    assert client.run(f"SELECT count(), max(a) FROM {table}") == b"100000\t99999\n"


@pytest.mark.parametrize("coding", list(_ENCODERS))
def test_a_request_cut_off_inside_its_coding_inserts_nothing(client: Client, table: str, coding: str) -> None:
    packed = _ENCODERS[coding](b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(50_000)))
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", packed[: len(packed) // 2], headers={"Content-Encoding": coding})
    assert answer.code == 271, answer
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


@pytest.mark.parametrize("coding", [name for name in _ENCODERS if name != "bz2"])
@pytest.mark.parametrize("rows", [1, 300_000])
def test_results_are_coded_as_the_client_accepts(client: Client, coding: str, rows: int) -> None:
    answer = client.ask(f"SELECT number FROM numbers({rows})", headers={"Accept-Encoding": coding})
    assert answer.headers["Content-Encoding"] == coding
    assert _decode(coding, answer.body).splitlines()[-1] == b"%d" % (rows - 1)


def test_results_are_plain_where_coding_is_not_wanted(client: Client) -> None:
    for headers, fields in (
        ({}, {}),
        ({"Accept-Encoding": "gzip;q=0"}, {}),
        ({"Accept-Encoding": "gzip"}, {"enable_http_compression": "0"}),
    ):
        assert client.ask("SELECT 1", headers=headers, **fields).body == b"1\n"
    assert client.ask("SELECT 1", b"x", headers={"Content-Encoding": "rot13"}).code == 89


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._file.read(size)


def _drain(source: FrameReader | FrameWriter) -> bytes:
    return b"".join(iter(lambda: source.read(1 << 20), b""))


def test_clickhouse_block_compression_goes_both_ways(client: Client, table: str) -> None:
    rows = b"".join(b"%d\n" % n for n in range(300_000))
    client.run(f"INSERT INTO {table} (a) FORMAT TSV", _drain(FrameWriter(_Bytes(rows))), decompress="1")
    packed = client.run(f"SELECT a FROM {table} ORDER BY a", compress="1")
    assert len(packed) < len(rows)
    assert _drain(FrameReader(_Bytes(packed), verify=True)) == rows


def test_a_damaged_compressed_block_is_refused(client: Client, table: str) -> None:
    packed = bytearray(_drain(FrameWriter(_Bytes(b"1\n2\n"))))
    packed[-1] ^= 1
    assert client.ask(f"INSERT INTO {table} (a) FORMAT TSV", bytes(packed), decompress="1").code == 40
    assert client.ask(f"INSERT INTO {table} (a) FORMAT TSV", bytes(packed[:20]), decompress="1").code == 271


def test_block_checksums_are_those_the_engine_writes(server: EmbeddedServer, client: Client) -> None:
    client.run("CREATE TABLE sums (n UInt64, s String) ENGINE = MergeTree ORDER BY n SETTINGS min_bytes_for_wide_part = 0")
    for rows in (1, 3, 17, 100, 2_000, 100_000):
        client.run(f"INSERT INTO sums SELECT number, toString(sipHash64(number)) FROM numbers({rows})")
    files = [path for path in server.path.glob("store/*/*/*/[ns].bin") if path.stat().st_size]
    assert len(files) >= 2
    for path in files:
        assert _drain(FrameReader(_Bytes(path.read_bytes()), verify=True))
