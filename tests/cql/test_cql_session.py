"""Sessions with a real Cassandra: accounts, encryption, errors; and the private server itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from cassandra.concurrent import execute_concurrent_with_args

from headrace.cql.address import CqlAddress, parse_cql_url
from headrace.cql.decode.pages import read_rows
from headrace.cql.session import CqlSession, connect
from headrace.errors import DefiniteError, HeadraceError, TransientError
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.certificates import Authority


def _failure(address: CqlAddress) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught, connect(address):
        pass
    assert caught.value.hint
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_session_answers_and_says_what_is_refused(cql: CqlSession, keyspace: str, cassandra: PrivateCassandra | GivenCluster) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text)")
    statement = cql.prepare(f"INSERT INTO {keyspace}.t (k, v) VALUES (?, ?)")
    assert cql.prepare(f"INSERT INTO {keyspace}.t (k, v) VALUES (?, ?)") is statement
    cql.driver.execute(statement, (1, "one"))
    assert [tuple(row) for row in cql.execute(f"SELECT k, v FROM {keyspace}.t WHERE k = %s", (1,))] == [(1, "one")]
    assert cql.datacenters

    with pytest.raises(DefiniteError, match=r"(?s)no_such_table.*remedy") as caught:
        cql.execute(f"SELECT * FROM {keyspace}.no_such_table")
    assert f"SELECT * FROM {keyspace}.no_such_table" in caught.value.place
    with pytest.raises(DefiniteError, match="the server refuses"):
        cql.execute("SELECTED")

    assert isinstance(_failure(cassandra.address(dc="nowhere")), DefiniteError)
    assert _failure(cassandra.address(dc="nowhere")).hint.endswith(", ".join(cql.datacenters))
    # No server; and a server without encryption.
    away = _failure(parse_cql_url("scylla://127.0.0.1:1/?connect-timeout=2"))
    assert isinstance(away, TransientError)
    assert "tls=" in away.hint
    _failure(cassandra.address(tls="required", connect_timeout=2))


def test_writes_survive_a_kill_and_accounts_and_tls_are_checked(fresh_cassandra: Callable[..., PrivateCassandra], tmp_path: Path) -> None:
    trusted, stranger = Authority(tmp_path, "trusted"), Authority(tmp_path, "stranger")
    server = fresh_cassandra(accounts=True, tls=trusted.issue("elsewhere", hosts=("node.example",)))
    elsewhere = _failure(server.address(ca=trusted.cert))
    assert isinstance(elsewhere, DefiniteError)
    assert "tls=verify-ca" in elsewhere.hint
    good = server.address(ca=trusted.cert, tls="verify-ca")
    with connect(pickle.loads(pickle.dumps(good))) as session:
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE k.t (k int, c int, PRIMARY KEY (k, c))")
        session.execute("CREATE ROLE reader WITH PASSWORD = 'secret' AND LOGIN = true")
        insert = session.prepare("INSERT INTO k.t (k, c) VALUES (0, ?)")
        execute_concurrent_with_args(session.driver, insert, [(c,) for c in range(500)], concurrency=64)
        pages = read_rows(session, "SELECT c FROM k.t WHERE k = 0", fetch_size=50)
        found = next(pages).column("c").to_pylist()
        server.kill()
        with pytest.raises(TransientError):
            session.execute("SELECT * FROM k.t")
        with pytest.raises(TransientError):
            list(read_rows(session, "SELECT c FROM k.t WHERE k = 0", patience_s=0.5))
        server.tls = trusted.issue("server", hosts=("127.0.0.1",))
        server.start()
        # An unanswered request is repeated.
        found += [value for page in pages for value in page.column("c").to_pylist()]
        assert [int.from_bytes(value, "big") for value in found] == list(range(500))

    with connect(server.address(ca=trusted.cert)) as session:
        assert session.execute("SELECT count(*) FROM k.t")[0].count == 500
    unknown = _failure(server.address(ca=stranger.cert))
    assert isinstance(unknown, DefiniteError)
    assert "certificate is not accepted" in unknown.message
    plain = _failure(server.address(connect_timeout=2))
    assert isinstance(plain, TransientError)
    assert "tls=verify-identity" in plain.hint
    wrong = _failure(server.address(tls="required", user="reader", password="secretive"))
    assert isinstance(wrong, DefiniteError)
    assert "HEADRACE_SOURCE_PASSWORD" in wrong.hint
    anonymous = parse_cql_url(f"scylla://{server.host}/?tls=required")
    assert "demands an account" in _failure(anonymous).message
    reader = server.address(tls="verify-ca", ca=trusted.cert, user="reader", password="secret")
    with connect(reader) as session, pytest.raises(DefiniteError, match=r"may not do this.*SELECT"):
        session.execute("SELECT * FROM k.t")
