"""Compressed requests and results: HTTP's codings, and ClickHouse's own blocks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.embedded.content_encoding import FrameReader, FrameWriter, cityhash128, decode
from headrace.embedded.process import EmbeddedServer
from testkit.pipelines.httpclient import Client

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


def _bomb(coding: str, mib: int) -> bytes:
    """Compressed zeros of `mib` MiB."""
    piece = bytes(1 << 20)
    if coding == "deflate":
        packer = zlib.compressobj(9)
        first = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
        # Every later piece compresses to the same bytes.
        return first + (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)) * (mib - 1)
    if coding == "xz":
        xz = lzma.LZMACompressor(preset=0)
        return b"".join(xz.compress(piece) for _ in range(mib)) + xz.flush()
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, {"br": "brotli"}.get(coding, coding)) as stream:
        for _ in range(mib):
            stream.write(piece)
    return bytes(out.getvalue())


def _peak_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", text)[0]) >> 10


@pytest.mark.slow(
    "gzip",
    "br",
    "bz2",
    because=(
        "test_a_body_that_grows_beyond_measure_is_refused_in_bounded_memory[deflate], "
        "test_a_body_that_grows_beyond_measure_is_refused_in_bounded_memory[xz]"
    ),
)
@pytest.mark.parametrize("coding", ["deflate", "gzip", "xz", "br", "zstd", "bz2"])
def test_a_body_that_grows_beyond_measure_is_refused_in_bounded_memory(
    server: EmbeddedServer, client: Client, table: str, coding: str
) -> None:
    packed = _bomb(coding, 420 if coding in ("deflate", "gzip") else 280)
    assert len(packed) < 600_000
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    before = _peak_mib(server.pid)
    answer = client.ask(f"INSERT INTO {table} (b) FORMAT LineAsString", packed, headers={"Content-Encoding": coding})
    assert answer.code == 271
    assert b"1000 times" in answer.body
    # One piece, and the decoder's window.
    assert _peak_mib(server.pid) - before < 100
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_lz4_is_unpacked_in_pieces() -> None:
    """A byte of LZ4 expands to at most 255 bytes, so its size has no other limit; memory does not depend on it."""
    packed = _bomb("lz4", 280)
    assert len(packed) > (280 << 20) // 256
    Path("/proc/self/clear_refs").write_text("5")
    before, total, body = _peak_mib(os.getpid()), 0, decode(_Bytes(packed), "lz4")
    while piece := body.read(1 << 20):
        assert len(piece) <= 1 << 20
        total += len(piece)
    assert total == 280 << 20
    assert _peak_mib(os.getpid()) - before < 50


@pytest.mark.parametrize("coding", ["snappy", "compress", "gzip, gzip"])
def test_other_codings_are_refused(client: Client, table: str, coding: str) -> None:
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", b"1\n", headers={"Content-Encoding": coding})
    assert answer.status != 200
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_a_statement_that_grows_beyond_measure_is_refused_in_bounded_memory(server: EmbeddedServer, client: Client) -> None:
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    before = _peak_mib(server.pid)
    answer = client.ask(body=_bomb("zstd", 280), headers={"Content-Encoding": "zstd"}, max_query_size="9" * 15)
    assert answer.status != 200
    assert _peak_mib(server.pid) - before < 300


def test_a_dictionary_that_is_too_large_is_refused(client: Client, table: str) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "preset": 0}]
    packed = lzma.compress(b"1\n", filters=filters)
    assert client.ask(f"INSERT INTO {table} (a) FORMAT TSV", packed, headers={"Content-Encoding": "xz"}).code == 271


def test_blocks_that_claim_or_hold_too_much_are_refused(server: EmbeddedServer, client: Client, table: str) -> None:
    def framed(method: int, data: bytes, plain_size: int) -> bytes:
        block = struct.pack("<BII", method, len(data) + 9, plain_size) + data
        return cityhash128(block) + block

    largest = bytes(64 << 20)
    bomb = framed(0x90, pa.compress(largest, codec="zstd", asbytes=True), len(largest)) * 8
    assert len(bomb) < 300_000
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    before = _peak_mib(server.pid)
    for body in (bomb, framed(0x90, b"", 1 << 30), framed(0x82, b"x", 1 << 20), framed(0x82, b"", 0xFFFFFFFF)):
        answer = client.ask(f"INSERT INTO {table} (b) FORMAT LineAsString", body, decompress="1")
        assert answer.code == 271, answer
    assert _peak_mib(server.pid) - before < 300
    head = struct.pack("<BII", 0x90, 0x7FFFFFFF, 10)
    assert client.ask(f"INSERT INTO {table} (b) FORMAT LineAsString", bytes(16) + head, decompress="1").code == 271


def test_a_large_insert_that_shrinks_well_still_works(client: Client, table: str) -> None:
    rows = b"0\n" * (8 << 20)
    packed = zlib.compress(rows, 1)
    answer = client.ask(f"INSERT INTO {table} (a) FORMAT TSV", packed, headers={"Content-Encoding": "deflate"})
    assert answer.status == 200, answer.body
    assert client.run(f"SELECT count() FROM {table}") == b"%d\n" % (8 << 20)


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
