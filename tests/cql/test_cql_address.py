"""Addresses of CQL clusters are parsed, and never show a password."""

from __future__ import annotations

import pickle

import pytest

from headrace.cql.address import CqlAddress, is_cql, parse_cql_url, password_variable
from headrace.errors import DefiniteError
from headrace.urls import Tls, TlsMode


def test_an_address_is_read_whole() -> None:
    found = parse_cql_url(
        "scylla://ann:p%40ss@one,two:19042/shop?dc=eu&ca=/etc/ca.pem&consistency=LOCAL-QUORUM&connect-timeout=3&read-timeout=7.5"
    )
    assert found == CqlAddress(
        (("one", 19042), ("two", 19042)),
        "shop",
        "ann",
        "p@ss",
        "eu",
        Tls(TlsMode.VERIFY_IDENTITY, "/etc/ca.pem"),
        "local_quorum",
        3.0,
        7.5,
    )
    assert str(found) == "scylla://ann@one:19042,two:19042/shop"
    assert "p@ss" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_defaults_and_other_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SINK_PASSWORD", "from the environment")
    sink = parse_cql_url("cql://bob@[::1]/")
    assert (sink.hosts, sink.password, sink.consistency, sink.keyspace) == ((("::1", 9042),), "from the environment", "quorum", "")
    assert str(sink) == "cql://bob@[::1]:9042/"
    assert parse_cql_url("scylla://one:1,two:2").hosts == (("one", 1), ("two", 2))
    assert parse_cql_url("scylla://one").password == ""
    assert password_variable("scylla://x") == "HEADRACE_SOURCE_PASSWORD"
    assert [is_cql(url) for url in ("scylla://x", "cql://x", "mysql://x")] == [True, True, False]


def test_a_password_in_the_clear_is_noticed() -> None:
    shown = [
        parse_cql_url(url).shows_password
        for url in ("scylla://a:b@far", "scylla://a:b@far?tls=required", "scylla://a:b@127.0.0.1", "scylla://far")
    ]
    assert shown == [True, False, False, False]


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x",
        "scylla://",
        "scylla://:secret@host",
        "scylla://host:secret/",
        "scylla://host:70000/",
        "scylla://[::1",
        "scylla://host/a/b",
        "scylla://host?word",
        "scylla://host?dc=a&dc=b",
        "scylla://host?dc=",
        "scylla://host?word=secret",
        "scylla://host?tls=secret",
        "scylla://host?consistency=secret",
        "scylla://host?connect-timeout=secret",
        "scylla://host?read-timeout=-1",
        "scylla://host?key=k.pem",
        "scylla://host?tls=required&ca=x.pem",
        "scylla://host?tls=disabled&cert=x.pem",
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_cql_url(url)
    assert caught.value.hint
    assert "secret" not in caught.value.message


def test_missing_files_are_reported() -> None:
    with pytest.raises(DefiniteError, match="ca cannot be loaded"):
        parse_cql_url("scylla://host?ca=/no/such.pem").tls.context()
