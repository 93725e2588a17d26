"""The source's address: settings, defaults and errors."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import DefiniteError
from headrace.sources.mysql.server.connection import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, MySQLAddress, parse_mysql_url
from headrace.urls import Tls, TlsMode


def test_all_settings() -> None:
    found = parse_mysql_url(
        "mysql://u%40x:p%2Fw@db.example:3307/shop?tls=verify-ca&ca=%2Fa%20b%2Fca.pem&cert=c.pem&key=k.pem"
        "&socket=/run/x.sock&connect-timeout=2.5&read-timeout=30"
    )
    tls = Tls(TlsMode.VERIFY_CA, "/a b/ca.pem", "c.pem", "k.pem")
    assert found == MySQLAddress("db.example", 3307, "u@x", "p/w", "shop", tls, "/run/x.sock", 2.5, 30.0)
    assert pickle.loads(pickle.dumps(found)) == found
    assert "p/w" not in f"{found} {found!r}"
    assert "k.pem" in repr(found)


def test_defaults() -> None:
    found = parse_mysql_url("mariadb://h/db")
    assert found == MySQLAddress("h", 3306, "root", "", "db", None, "", CONNECT_TIMEOUT_S, READ_TIMEOUT_S)


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("mysql://localhost/d", "disabled"),
        ("mysql://127.0.0.1/d", "disabled"),
        ("mysql://[::1]/d", "disabled"),
        ("mysql://db.example/d", "preferred"),
        ("mysql://10.0.0.1/d", "preferred"),
        ("mysql://db.example/d?socket=/x", "disabled"),
        ("mysql://localhost/d?tls=required", "required"),
        ("mysql://h/d?ca=ca.pem", "verify-identity"),
        ("mysql://h/d?cert=c.pem&key=k.pem", "required"),
        ("mysql://h/d?cert=c.pem&tls=verify-ca", "verify-ca"),
    ],
)
def test_modes(url: str, mode: str) -> None:
    assert parse_mysql_url(url).effective_tls.mode == mode


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("password=s3cret", "known settings: tls, ca, cert, key, socket, connect-timeout, read-timeout"),
        ("TLS=required", "known settings: tls"),
        ("s3cret", "known settings: tls"),
        ("tls=s3cret", "tls=disabled|preferred|required|verify-ca|verify-identity"),
        ("tls=", "write tls=VALUE"),
        ("tls=required&tls=disabled", "give it once"),
        ("key=k.pem", "give the certificate"),
        ("tls=required&ca=x.pem", "ca= has no effect with tls=required"),
        ("tls=preferred&cert=x.pem", "cert= has no effect with tls=preferred"),
        ("connect-timeout=s3cret", "write connect-timeout=10"),
        ("read-timeout=0", "write read-timeout=10"),
        ("read-timeout=-1", "write read-timeout=10"),
        ("read-timeout=nan", "write read-timeout=10"),
    ],
)
def test_invalid_input_is_reported_without_its_text(settings: str, says: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_mysql_url(f"mysql://u@h/db?{settings}")
    assert says in str(caught.value)
    assert "s3cret" not in str(caught.value).replace("unknown setting 's3cret'", "")


def test_files_that_cannot_be_loaded_are_named() -> None:
    for tls in (Tls(TlsMode.VERIFY_CA, ca="/no/such/ca.pem"), Tls(TlsMode.REQUIRED, cert="/no/such/ca.pem")):
        with pytest.raises(DefiniteError, match=r"No such file.*\n? *.*") as caught:
            tls.context()
        assert "/no/such/ca.pem" in str(caught.value)
