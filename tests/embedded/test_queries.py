"""The HTTP interface of the embedded server: routes, queries, parameters, sessions, forms and errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from urllib.parse import urlencode

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.pipelines.embedded_access import PASSWORD
from testkit.pipelines.httpclient import Client

# --- health and routes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ping", "/replicas_status"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_checks_answer_ok(client: Client, path: str, method: str) -> None:
    client.connection.request(method, path)
    response = client.connection.getresponse()
    assert (response.status, response.read()) == (200, b"Ok.\n" if method == "GET" else b"")
    assert response.headers["Content-Length"] == "4"


def test_an_unknown_path_is_not_found(client: Client) -> None:
    client.connection.request("GET", "/nothing?query=SELECT+1")
    response = client.connection.getresponse()
    assert response.status == 404
    assert b"/nothing" in response.read()


# --- queries -------------------------------------------------------------------------------------------------------------------


def test_the_query_is_the_parameter_followed_by_the_body(client: Client) -> None:
    assert client.ask("SELECT 1", method="GET").body == b"1\n"
    assert client.ask(body="SELECT 2").body == b"2\n"
    assert client.ask("SELECT", body="3 + 4").body == b"7\n"


def test_a_result_carries_clickhouse_headers(client: Client) -> None:
    answer = client.ask("SELECT number FROM numbers(3)", query_id="my-id", default_format="JSONEachRow")
    assert answer.headers["X-ClickHouse-Query-Id"] == "my-id"
    assert answer.headers["X-ClickHouse-Format"] == "JSONEachRow"
    assert answer.headers["X-ClickHouse-Timezone"]
    assert answer.headers["X-ClickHouse-Server-Display-Name"]
    assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["read_rows"] == "3"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 AS x FORMAT JSONCompactEachRow", b"[1]\n"),
        ("SELECT 1 AS x FORMAT CSVWithNames SETTINGS max_threads = 1", b'"x"\n1\n'),
        ("SELECT 1 SETTINGS max_threads = 1", b"1\n"),
        ("WITH 5 AS x SELECT x", b"5\n"),
        ("(SELECT 1) UNION ALL (SELECT 1)", b"1\n1\n"),
        ("SELECT 1 -- comment", b"1\n"),
        ("EXISTS TABLE nothing_here", b"0\n"),
        ("DESCRIBE TABLE system.one", b"dummy\tUInt8\t\t\t\t\t\n"),
        ("EXPLAIN SYNTAX SELECT 1", b"SELECT 1\\nFROM system.one\n"),
        ("SELECT ';' ;", b";\n"),
        ("SELECT 'ü', '\\\\'", "ü\t\\\\\n".encode()),
    ],
)
def test_every_kind_of_reading_statement_answers(client: Client, query: str, expected: bytes) -> None:
    assert client.run(query) == expected


def test_parameters_are_substituted_as_clickhouse_does(client: Client) -> None:
    query = "SELECT {i:Int32} + 1, {s:String}, {l:Array(UInt8)}, {n:Nullable(String)}"
    fields = {"param_i": "41", "param_s": "it's\\t\\\\", "param_l": "[1,2]", "param_n": "\\N"}
    assert client.ask(query, method="GET", **fields).body == b"42\tit\\'s\\t\\\\\t[1,2]\t\\N\n"
    assert client.ask("SELECT {missing:Int32}").code == 456


def test_settings_are_parameters_and_last_one_request(client: Client) -> None:
    assert client.run("SELECT getSetting('max_block_size')", max_block_size="123") == b"123\n"
    assert client.run("SELECT getSetting('max_block_size')") != b"123\n"
    unknown = client.ask("SELECT 1", no_such_setting="1")
    assert (unknown.status, unknown.code) == (404, 115)
    injected = client.ask("SELECT 1", **{"max_threads = 1, readonly": "1"})
    assert (injected.status, injected.code) == (400, 36)


def test_the_database_parameter_and_header_choose_the_database(client: Client) -> None:
    client.run("CREATE DATABASE IF NOT EXISTS `od'd`")
    assert client.run("SELECT currentDatabase()", database="od'd") == b"od\\'d\n"
    assert client.ask("SELECT currentDatabase()", headers={"X-ClickHouse-Database": "system"}).body == b"system\n"
    assert client.run("SELECT currentDatabase()") == b"default\n"
    missing = client.ask("SELECT 1", database="nowhere")
    assert (missing.status, missing.code) == (404, 81)


def test_the_answer_to_a_statement_without_result_is_empty(client: Client, table: str) -> None:
    answer = client.ask(f"ALTER TABLE {table} ADD COLUMN c Int8")
    assert (answer.status, answer.body) == (200, b"")
    assert "X-ClickHouse-Format" not in answer.headers


# --- errors --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("SELEC 1", 400, 62),
        ("SELECT 'open", 400, 62),
        ("", 400, 62),
        ("SELECT 1; SELECT 2", 400, 62),
        ("SELECT * FROM no_table", 404, 60),
        ("INSERT INTO no_table VALUES (1)", 404, 60),
        ("SELECT no_column", 404, 47),
        ("SELECT noFunction()", 404, 46),
        ("SELECT 1 FORMAT NoFormat", 404, 73),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT toDate('x')", 400, 38),
        ("SELECT 1 INTO OUTFILE '/tmp/never' FORMAT CSV", 500, 358),
        ("DROP TABLE no_table", 404, 60),
    ],
)
def test_an_error_has_clickhouse_status_code_and_text(client: Client, query: str, status: int, code: int) -> None:
    answer = client.ask(query, body=b"")
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.body.startswith(f"Code: {code}. DB::Exception: ".encode())
    assert b"(version 2" in answer.body


def test_get_reads_only(client: Client, table: str) -> None:
    for query in (f"DROP TABLE {table}", f"INSERT INTO {table} VALUES (1)", f"TRUNCATE TABLE {table}", f"OPTIMIZE TABLE {table}"):
        answer = client.ask(query, method="GET")
        assert (answer.status, answer.code) == (500, 164)
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"


def test_an_early_failure_in_a_json_result_is_still_an_error_status(client: Client) -> None:
    answer = client.ask("SELECT throwIf(number = 5) FROM numbers(10) FORMAT JSON")
    assert (answer.status, answer.code) == (500, 395)


def test_a_late_failure_cuts_the_result_and_says_why(client: Client) -> None:
    client.connection.request(
        "GET", f"/?{urlencode({'query': 'SELECT number, throwIf(number = 3000000) FROM numbers(10000000)', 'password': PASSWORD})}"
    )
    response = client.connection.getresponse()
    tag = response.headers["X-ClickHouse-Exception-Tag"]
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    received = caught.value.partial
    assert f"__exception__\r\n{tag}\r\nCode: 395.".encode() in received[-5000:]
    assert received.endswith(f" {tag}\r\n__exception__\r\n".encode())


def test_wait_end_of_query_turns_a_late_failure_into_a_status(client: Client) -> None:
    answer = client.ask("SELECT number, throwIf(number = 3000000) FROM numbers(10000000)", wait_end_of_query="1")
    assert (answer.status, answer.code) == (500, 395)


# --- sessions ------------------------------------------------------------------------------------------------------------------


def test_a_session_keeps_settings_database_and_temporary_tables(client: Client) -> None:
    client.run("SET max_block_size = 77", session_id="s1")
    client.run("USE system", session_id="s1")
    client.run("CREATE TEMPORARY TABLE mine (a Int8)", session_id="s1")
    client.run("INSERT INTO mine VALUES (5)", session_id="s1")
    read = "SELECT getSetting('max_block_size'), currentDatabase(), a FROM mine"
    assert client.run(read, session_id="s1") == b"77\tsystem\t5\n"
    assert client.ask(read, session_id="s2").code == 60
    assert client.ask(read).code == 60


def test_what_a_request_of_a_session_sets_for_itself_does_not_stay(client: Client) -> None:
    client.run("SET max_block_size = 77", session_id="s3")
    both = "SELECT getSetting('max_block_size'), getSetting('max_threads'), currentDatabase()"
    before = client.run(both, session_id="s3")
    assert client.run(both, session_id="s3", max_block_size="5", max_threads="9", database="system") == b"5\t9\tsystem\n"
    assert client.run(both, session_id="s3") == before


def test_what_a_session_sets_after_a_request_with_settings_stays(client: Client) -> None:
    client.run("SET max_block_size = 77", session_id="s4")
    for value in ("88", "DEFAULT"):
        client.run("SELECT 1", session_id="s4", max_block_size="5")
        client.run(f"SET max_block_size = {value}", session_id="s4")
        client.run("SELECT 1", session_id="s4", max_block_size="5")
        expected = value if value != "DEFAULT" else client.run("SELECT getSetting('max_block_size')").decode().strip()
        assert client.run("SELECT getSetting('max_block_size')", session_id="s4").decode().strip() == expected


def test_session_rules_are_enforced(client: Client, server: EmbeddedServer) -> None:
    assert client.ask("SELECT 1", session_id="unknown", session_check="1").code == 372
    assert client.ask("SELECT 1", session_id="s", session_timeout="many").code == 374
    other = Client(server.port)
    with contextlib.closing(other.connection):
        slow = threading.Thread(target=client.run, args=("SELECT sleep(1)",), kwargs={"session_id": "busy"})
        slow.start()
        time.sleep(0.4)
        assert other.ask("SELECT 1", session_id="busy").code == 373
        slow.join()


def test_a_session_is_free_when_the_response_has_ended(client: Client, server: EmbeddedServer) -> None:
    """Clients with a connection pool send the next statement of a session over another connection."""
    client.run("CREATE TEMPORARY TABLE mine (a Int64)", session_id="pooled")
    whole = {"wait_end_of_query": "1"}
    statements = [("INSERT INTO mine VALUES (1)", {}), ("SELECT count() FROM mine", {}), ("SELECT number FROM numbers(300000)", {})]
    statements += [("SELECT number FROM numbers(300000)", whole), ("SET log_comment = 'x'", {}), ("SELECT throwIf(1)", {})]
    with contextlib.ExitStack() as stack:
        others = [client, *(Client(server.port) for _ in range(2))]
        for other in others[1:]:
            stack.enter_context(contextlib.closing(other.connection))
        codes = set()
        for round_number in range(12):
            for place, (statement, options) in enumerate(statements):
                connection = others[(round_number + place) % len(others)]
                codes.add(connection.ask(statement, session_id="pooled", max_threads="2", **options).code)
    assert codes == {0, 395}


# --- forms ---------------------------------------------------------------------------------------------------------------------


def test_a_multipart_form_brings_parameters_and_external_tables(client: Client) -> None:
    boundary = "frontier"
    parts = [
        ('name="query"', b"SELECT sum(a) + {x:Int32} FROM ext"),
        ('name="param_x"', b"100"),
        ('name="ext"; filename="ext.csv"', b"1,one\r\n2,two\r\n"),
    ]
    body = b"".join(b"--frontier\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (head.encode(), data) for head, data in parts)
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    fields = {"ext_format": "CSV", "ext_structure": "a Int32, b String"}
    assert client.ask("", body + b"--frontier--\r\n", headers=headers, **fields).body == b"103\n"
    assert client.ask("", body, headers=headers, **fields).code == 117
    assert client.ask("SELECT * FROM ext").code == 60


def test_no_request_gets_the_state_of_another(client: Client) -> None:
    """Handles wait in a pool for requests with equal settings."""
    for _ in range(3):
        assert client.run("SELECT getSetting('max_block_size')", max_block_size="123") == b"123\n"
        assert client.run("SELECT getSetting('max_block_size')", max_block_size="124") == b"124\n"
        assert client.run("SELECT getSetting('max_block_size') > 1000") == b"1\n"
        # A setting of the statement itself ends with it.
        assert client.run("SELECT getSetting('max_block_size') SETTINGS max_block_size = 55") == b"55\n"
        assert client.run("SELECT {n:Int32}", param_n="7") == b"7\n"
        assert client.ask("SELECT {n:Int32}").code == 456
        assert client.run("SELECT currentDatabase()", database="system") == b"system\n"
        assert client.run("SELECT currentDatabase()") == b"default\n"
        # A statement that fails, or that may leave state, ends its handle.
        assert client.ask("SELECT throwIf(1)").code == 395
        client.run("CREATE TEMPORARY TABLE left_over (n Int32) ENGINE = Memory")
        assert client.ask("SELECT * FROM left_over").code == 60
        client.run("SET max_block_size = 77")
        assert client.run("SELECT getSetting('max_block_size') > 1000") == b"1\n"


def test_a_waiting_handle_sees_later_changes(client: Client, table: str) -> None:
    assert client.run(f"SELECT count() FROM {table}") == b"0\n"
    client.run(f"INSERT INTO {table} (a) VALUES (4)")
    assert client.run(f"SELECT count() FROM {table}") == b"1\n"
    client.run(f"DROP TABLE {table} SYNC")
    assert client.ask(f"SELECT count() FROM {table}").code == 60
    client.run("CREATE DATABASE short_lived")
    client.run("CREATE TABLE short_lived.t (n Int32) ENGINE = Memory")
    assert client.run("SELECT count() FROM t", database="short_lived") == b"0\n"
    client.run("DROP DATABASE short_lived SYNC")
    client.run("CREATE DATABASE short_lived")
    client.run("CREATE TABLE short_lived.t (n Int32) ENGINE = Memory AS SELECT 1")
    assert client.run("SELECT count() FROM t", database="short_lived") == b"1\n"
    client.run("DROP DATABASE short_lived SYNC")
    gone = client.ask("SELECT 1", database="short_lived")
    assert (gone.status, gone.code) == (404, 81)
