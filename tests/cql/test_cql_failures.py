"""Errors of CQL servers and the driver: temporary ones are transient, all others definite."""

from __future__ import annotations

import ssl

import cassandra
import pytest
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown, ProtocolError
from cassandra.protocol import OverloadedErrorMessage, SyntaxException

from headrace.cql.address import parse_cql_url
from headrace.cql.errors import server_errors, translate_error
from headrace.errors import DefiniteError, TransientError

ADDRESS = parse_cql_url("scylla://ann:hidden@far:9042/ks?tls=required")


def _no_host(*errors: Exception) -> NoHostAvailable:
    return NoHostAvailable("nobody", {f"host{at}": error for at, error in enumerate(errors)})


@pytest.mark.parametrize(
    "error",
    [
        cassandra.ReadTimeout("late", consistency=4, required_responses=2, received_responses=1),
        cassandra.Unavailable("few", consistency=4, required_replicas=2, alive_replicas=1),
        cassandra.OperationTimedOut(),
        cassandra.WriteFailure("failed"),
        cassandra.UnresolvableContactPoints(("far",)),
        cassandra.RateLimitReached(op_type=cassandra.OperationType.Read, rejected_by_coordinator=True),
        OverloadedErrorMessage(0x1001, "busy", None),
        ConnectionShutdown("gone"),
        ConnectionRefusedError(111, "refused"),
        _no_host(ConnectionRefusedError(111, "refused"), cassandra.OperationTimedOut()),
        _no_host(),
        ssl.SSLEOFError(8, "ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_transient_errors_of_the_driver(error: Exception) -> None:
    found = translate_error(error, ADDRESS, "SELECT 1")
    assert isinstance(found, TransientError)
    assert found.hint
    assert "hidden" not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        cassandra.AuthenticationFailed("wrong"),
        cassandra.Unauthorized("no SELECT"),
        cassandra.InvalidRequest("no such table"),
        SyntaxException(0x2000, "line 1", None),
        ProtocolError("what"),
        _no_host(ConnectionRefusedError(111, "refused"), cassandra.AuthenticationFailed("wrong")),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
        # (The driver's formats.)
        PermissionError(
            1, "Tried connecting to [('h', 1)]. Last error: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired (_ssl.c:1)"
        ),
        _no_host(PermissionError(1, "Last error: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unknown (_ssl.c:1)")),
        cassandra.DriverException("bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_definite_errors_of_the_driver(error: Exception) -> None:
    found = translate_error(error, ADDRESS)
    assert isinstance(found, DefiniteError)
    assert found.hint
    assert str(ADDRESS) in found.place


def test_other_exceptions_pass_unchanged() -> None:
    ours = DefiniteError("known", place="here", hint="so")
    with pytest.raises(DefiniteError) as caught, server_errors(ADDRESS):
        raise ours
    assert caught.value is ours
    with pytest.raises(ZeroDivisionError), server_errors(ADDRESS):
        raise ZeroDivisionError
