"""The embedded server through clickhouse-connect, the client the sink uses."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from clickhouse_connect.driver.external import ExternalData

from headrace.embedded.process import EmbeddedServer
from testkit.oracles.both_ends import sink_client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("embedded") / "db", password="pa ss'wörd") as running:
        yield running


@pytest.fixture(params=[True, False], ids=["compressed", "plain"])
def client(server: EmbeddedServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    with clickhouse_connect.get_client(host=server.host, port=server.port, password=server.password, compress=request.param) as made:
        made.command("CREATE DATABASE shop")
        yield made
        made.command("DROP DATABASE shop")


def test_a_wrong_password_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(DatabaseError) as caught:
        clickhouse_connect.get_client(host=server.host, port=server.port, password="wrong")
    assert caught.value.code == 516


def test_rows_of_many_types_go_in_and_come_back(client: Client) -> None:
    client.command(
        "CREATE TABLE shop.types (i Int64, u UInt64, f Float64, d Decimal(38, 10), s String, n Nullable(String), l LowCardinality(String), "
        "t DateTime64(6, 'UTC'), day Date32, e Enum8('a' = 1, 'b' = 2), a Array(Nullable(Int32)), m Map(String, UInt8)) "
        "ENGINE = MergeTree ORDER BY i"
    )
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, dt.UTC)
    rows = [
        [
            -(2**63),
            2**64 - 1,
            1.5,
            decimal.Decimal("-12345678901234567890.0123456789"),
            "ü\x00'",
            None,
            "x",
            moment,
            dt.date(1999, 1, 1),
            "a",
            [1, None],
            {"k": 1},
        ],
        [1, 0, -0.0, decimal.Decimal("0E-10"), "", "", "y", moment, dt.date(2100, 1, 1), "b", [], {}],
    ]
    summary = client.insert("shop.types", rows, column_names="*")
    assert summary.written_rows == 2
    back = client.query("SELECT * FROM shop.types ORDER BY i", tz_mode="aware").result_rows
    assert [list(row) for row in back] == rows


def test_arrow_goes_in_and_comes_back(client: Client) -> None:
    client.command(
        "CREATE TABLE shop.orders (id Int64, name String, total Decimal(12, 2), at DateTime64(6), _sign Int8, _version UInt64, "
        "_deleted UInt8 MATERIALIZED _sign = -1) ENGINE = ReplacingMergeTree(_version, _deleted) ORDER BY id"
    )
    table = pa.table(
        {
            "id": pa.array(range(50_000), pa.int64()),
            "name": pa.array([f"order {n}" for n in range(50_000)]),
            "total": pa.array([decimal.Decimal(n) / 100 for n in range(50_000)], pa.decimal128(12, 2)),
            "at": pa.array([n * 1_000_001 for n in range(50_000)], pa.timestamp("us")),
            "_sign": pa.array([1] * 50_000, pa.int8()),
            "_version": pa.array(range(1, 50_001), pa.uint64()),
        }
    )
    client.insert_arrow("orders", table, database="shop")
    delete = table.slice(0, 10).set_column(4, "_sign", pa.array([-1] * 10, pa.int8()))
    delete = delete.set_column(5, "_version", pa.array([10**6] * 10, pa.uint64()))
    client.insert_arrow("orders", delete, database="shop")
    assert client.query("SELECT count(), min(id), sum(total) FROM shop.orders FINAL").result_rows == [
        (49_990, 10, decimal.Decimal("12499749.55"))
    ]
    back = client.query_arrow("SELECT id, total FROM shop.orders FINAL ORDER BY id LIMIT 2")
    assert back.to_pydict() == {"id": [10, 11], "total": [decimal.Decimal("0.10"), decimal.Decimal("0.11")]}


def test_raw_inserts_and_raw_queries_pass_through(client: Client) -> None:
    client.command("CREATE TABLE shop.raw (a Int32, b String) ENGINE = MergeTree ORDER BY a")
    client.raw_insert("shop.raw", ["a", "b"], b"1,one\n2,two\n", fmt="CSV")
    client.raw_insert("shop.raw", ["a"], (b"%d\n" % n for n in range(3, 1000)), fmt="TSV")
    assert client.raw_query("SELECT count(), sum(a) FROM shop.raw", fmt="TSV") == b"999\t499500\n"


def test_parameters_settings_and_database(client: Client) -> None:
    got = client.query(
        "SELECT {n:Int64}, {s:String}, {d:DateTime}", parameters={"n": 7, "s": "it's\t", "d": dt.datetime(2024, 1, 2, 3, 4, 5)}
    )
    assert got.result_rows == [(7, "it's\t", dt.datetime(2024, 1, 2, 3, 4, 5))]
    assert client.query("SELECT getSetting('max_block_size')", settings={"max_block_size": 11}).result_rows == [(11,)]
    assert client.query("SELECT getSetting('max_block_size')").result_rows != [(11,)]
    client.database = "shop"
    assert client.command("SELECT currentDatabase()") == "shop"


def test_parameters_too_long_for_a_url_go_as_a_form(client: Client) -> None:
    text = "x" * 200_000
    assert client.query("SELECT length({s:String})", parameters={"s": text}).result_rows == [(200_000,)]


def test_external_tables_join(client: Client) -> None:
    external = ExternalData(file_name="ext.csv", data=b"1,one\n2,two\n", fmt="CSV", structure="id Int32, word String")
    rows = client.query("SELECT word FROM numbers(5) AS n JOIN ext ON ext.id = n.number ORDER BY id", external_data=external).result_rows
    assert rows == [("one",), ("two",)]


def test_errors_carry_the_code_and_name(client: Client) -> None:
    for query, code in (("SELECT * FROM nowhere.t", 81), ("SELECT * FROM shop.t", 60), ("SELEC 1", 62)):
        with pytest.raises(DatabaseError) as caught:
            client.command(query)
        assert caught.value.code == code
    with pytest.raises(DatabaseError) as caught:
        client.insert("shop.absent", [[1]], column_names=["a"])
    assert caught.value.code == 60


def test_a_failure_in_the_middle_of_a_stream_is_raised(client: Client) -> None:
    query = "SELECT number, throwIf(number = 3000000) FROM numbers(10000000)"
    with pytest.raises(StreamFailureError), client.query_row_block_stream(query) as stream:
        assert sum(len(block) for block in stream) < 0


def test_a_large_result_streams(client: Client) -> None:
    with client.query_column_block_stream("SELECT number FROM numbers(3000000)") as stream:
        assert sum(len(block[0]) for block in stream) == 3_000_000


def test_session_state_is_kept_by_the_client(client: Client) -> None:
    client.command("CREATE TEMPORARY TABLE mine (a Int8)")
    client.insert("mine", [[3], [4]], column_names=["a"], column_type_names=["Int8"])
    assert client.query("SELECT sum(a) FROM mine").result_rows == [(7,)]
    client.command("SET max_block_size = 19")
    assert client.query("SELECT getSetting('max_block_size')").result_rows == [(19,)]


def test_an_insert_with_a_deduplication_token_counts_once(client: Client) -> None:
    client.command("CREATE TABLE shop.once (a Int32) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100")
    for _ in range(3):
        client.insert_arrow("shop.once", pa.table({"a": pa.array([1, 2], pa.int32())}), settings={"insert_deduplication_token": "batch-7"})
    assert client.command("SELECT count() FROM shop.once") == 2


def test_a_config_file_in_the_working_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.xml").write_text("<clickhouse><mark_cache_size>12345</mark_cache_size></clickhouse>")
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer(tmp_path / "db") as server, sink_client(server.url, server.password) as made:
        value = made.command("SELECT value FROM system.server_settings WHERE name = 'mark_cache_size'")
        assert int(str(value)) == 64 << 20
