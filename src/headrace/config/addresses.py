"""Source and sink addresses of a pipe file: their kind, with passwords, and redacted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from headrace.config.key_catalog import SourceKind
from headrace.cql.address import parse_cql_url
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url, without_secrets
from headrace.pipes.source_registry import BINLOG_FILES
from headrace.sinks.clickhouse.connector import EMBEDDED_SCHEME
from headrace.sinks.registry import SINK_CONNECTORS, find_sink_connector, join_forms, sink_connector
from headrace.sources.debezium_route import check_is_read
from headrace.sources.mysql.server.connection import parse_mysql_url

_SOURCES: Final = {"mysql": SourceKind.MYSQL, "mariadb": SourceKind.MYSQL, "kafka": SourceKind.TOPICS, "scylla": SourceKind.SCYLLA}
_DEFAULT_USERS: Final = {"mysql": "root", "mariadb": "root", "clickhouse": "default", "clickhouses": "default"}
"""The user of an address that names none."""
SOURCE_FORMS: Final = "write mysql://user@host:port/database, binlog:DIR, kafka://host:port or scylla://user@host:port/keyspace"
SINK_FORMS: Final = f"write {join_forms(one.form.replace(':password', '') for one in SINK_CONNECTORS)}"


def source_kind(url: str, place: str) -> SourceKind:
    if BINLOG_FILES.is_address(url):
        return SourceKind.FILES
    kind = _SOURCES.get(url.partition("://")[0])
    if kind is None:
        try:
            check_is_read(url)
        except DefiniteError as error:
            raise DefiniteError(error.message, place=place, hint=error.hint) from None
        raise DefiniteError("the source's address cannot be read", place=place, hint=SOURCE_FORMS)
    return kind


def add_password(url: str, password: str, place: str) -> str:
    """Add a password from a separate key to the address."""
    scheme, found, rest = url.partition("://")
    if not found:
        raise DefiniteError("there is no account at this address, and so no password", place=place, hint="leave the password out")
    end = min(place for place in (rest.find("/"), rest.find("?"), len(rest)) if place >= 0)
    account, at, host = rest[:end].rpartition("@")
    if ":" in account:
        raise DefiniteError("the address has a password already", place=place, hint="give it in one place only")
    user = account if at else _DEFAULT_USERS.get(scheme, "")
    if not user:
        raise DefiniteError("the address names no user for the password", place=place, hint=f"write {scheme}://user@host")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{rest[end:]}"


def has_account(url: str) -> bool:
    """Return whether an address names a user and no password, so that a password can be added."""
    try:
        return bool(add_password(url, "", ""))
    except DefiniteError:
        return False


def resolve_path(url: str, directory: Path) -> str:
    """Make the path of a `chdb:` or `binlog:` address relative to the file's directory."""
    for scheme in (EMBEDDED_SCHEME, *BINLOG_FILES.schemes):
        if url.startswith(scheme) and url != scheme:
            return f"{scheme}{directory / url.removeprefix(scheme)}"
    return url


def check_source(url: str, kind: SourceKind) -> None:
    """Raise `DefiniteError` if it cannot be read."""
    parse = {SourceKind.MYSQL: parse_mysql_url, SourceKind.TOPICS: parse_kafka_url, SourceKind.SCYLLA: parse_cql_url}
    if kind is SourceKind.FILES:
        if url in BINLOG_FILES.schemes:
            raise DefiniteError("the address names no directory of log files", hint="write binlog:DIRECTORY")
        return
    parse[kind](url)


def add_query_settings(url: str, settings: Mapping[str, str]) -> str:
    if not settings:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(settings)}"


def check_sink(url: str) -> None:
    """Raise `DefiniteError` if it cannot be read."""
    sink_connector(url).check_address(url)


def redact(url: str, mask: str = "") -> str:
    """Return the address without secrets; a mask replaces the password."""
    connector = find_sink_connector(url)
    if connector is not None and connector.secret_query:
        return url.partition("?")[0]
    if "://" not in url:
        return url
    parts = urlsplit(without_secrets(url)[0])
    account, at, host = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    hidden = f":{mask}" if colon and mask else ""
    return urlunsplit(parts._replace(netloc=f"{user}{hidden}{at}{host}"))
