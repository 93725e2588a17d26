"""Many clients at once, and results larger than memory should hold."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from pathlib import Path
from urllib.parse import urlencode

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.embedded_access import PASSWORD
from testkit.pipelines.httpclient import Client

# --- concurrency ---------------------------------------------------------------------------------------------------------------


def test_concurrent_clients_do_not_see_each_others_database_or_settings(server: EmbeddedServer, client: Client) -> None:
    for name in ("da", "db", "dc"):
        client.run(f"CREATE DATABASE IF NOT EXISTS {name}")

    def work(number: int) -> int:
        mine = Client(server.port)
        with contextlib.closing(mine.connection):
            for turn in range(40):
                database = ("da", "db", "dc")[(number + turn) % 3]
                size = str(1000 * number + turn + 1)
                query = "SELECT currentDatabase(), getSetting('max_block_size'), {v:String}"
                got = mine.run(query, database=database, max_block_size=size, param_v=size)
                assert got == f"{database}\t{size}\t{size}\n".encode()
                assert mine.run("SELECT currentDatabase(), getSetting('max_block_size') IN (1000, 65409, 65505, 65536)").startswith(
                    b"default\t"
                )
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_concurrent_inserts_and_reads_lose_nothing(server: EmbeddedServer, client: Client, table: str) -> None:
    def work(number: int) -> None:
        mine = Client(server.port)
        with contextlib.closing(mine.connection):
            for turn in range(20):
                rows = b"".join(b"%d\n" % (number * 1_000_000 + turn * 1000 + n) for n in range(100))
                mine.run(f"INSERT INTO {table} (a) FORMAT TSV", rows)
                assert int(mine.run(f"SELECT count() FROM {table} WHERE intDiv(a, 1000000) = {number}")) == 100 * (turn + 1)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert client.run(f"SELECT count(), uniqExact(a) FROM {table}") == b"12000\t12000\n"


# --- large results -------------------------------------------------------------------------------------------------------------


def _memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.parametrize("name", ["Native", "JSON", "ArrowStream"])
def test_ten_million_rows_stream_in_bounded_memory(server: EmbeddedServer, client: Client, name: str) -> None:
    before = _memory_mib(server.pid)
    client.connection.request(
        "GET", f"/?{urlencode({'query': f'SELECT number FROM numbers(10000000) FORMAT {name}', 'password': PASSWORD})}"
    )
    response = client.connection.getresponse()
    assert response.headers["Transfer-Encoding"] == "chunked"
    size = peak = 0
    while piece := response.read(4 << 20):
        size += len(piece)
        peak = max(peak, _memory_mib(server.pid))
    assert size > 20_000_000
    assert peak - before < 150, f"{before} MiB before, {peak} MiB during {size} bytes"


def test_a_client_that_leaves_ends_its_query(server: EmbeddedServer, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        path = f"/?query=SELECT+number,'left'+FROM+numbers(100000000000)&password={PASSWORD}"
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    running = "SELECT count() FROM system.processes WHERE query LIKE '%numbers(100000000000)%' AND query NOT LIKE '%processes%'"
    wait_until(lambda: client.run(running) == b"0\n", 10)
