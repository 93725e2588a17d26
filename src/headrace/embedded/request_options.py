"""Parses a request's options from its URL, headers and form fields, and the external tables of a form, which exist for one request.

Every parameter that the interface does not define is a setting or a query parameter, as in ClickHouse; the engine reports unknown settings.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from urllib.parse import parse_qsl

from headrace.embedded.access.credentials import Account
from headrace.embedded.access.statement_guard import StatementGuard
from headrace.embedded.engine.engine import Handle, quote_name
from headrace.embedded.engine.errors import ErrorCode
from headrace.embedded.engine.statement_scanner import ScannedStatement, StatementKind
from headrace.http.origin_check import is_same_secret
from headrace.http.request import PIECE, Readable

_OWN_WORDS = frozenset(
    {
        "query", "database", "default_format", "user", "password", "quota_key", "query_id", "session_id", "session_timeout",
        "session_check", "close_session", "compress", "decompress", "wait_end_of_query", "buffer_size", "client_protocol_version",
        "role", "stacktrace",
        "http_native_compression_disable_checksumming_on_decompress", "send_progress_in_http_headers", "http_headers_progress_interval_ms",
        "enable_http_compression",
    }
)  # fmt: skip
_MAX_SESSION_SECONDS = 3600
_MOST_FIELDS = 10_000
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class RequestOptions:
    query: str
    database: str
    default_format: str
    query_id: str
    session_id: str
    session_seconds: int
    session_must_exist: bool
    close_session: bool
    wait_end: bool
    native_output: bool
    native_input: bool
    verify_checksums: bool
    http_compression: bool
    settings: Mapping[str, str]
    parameters: Mapping[str, str]
    reads_final: bool = False
    """Whether the server chose FINAL; the setting `final` of the request is in `settings`."""


def read_fields(query: str) -> dict[str, str]:
    """Parse the URL's parameters; bytes that are not UTF-8 become surrogates."""
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise ErrorCode.BAD_ARGUMENTS.failure(f"The URL has more than {_MOST_FIELDS} parameters") from None


def read_options(fields: Mapping[str, str], headers: Mapping[str, str], external: frozenset[str] = frozenset()) -> RequestOptions:
    settings = {name: value for name, value in fields.items() if name not in _OWN_WORDS and not name.startswith("param_")}
    for table in external:
        for suffix in ("_format", "_types", "_structure"):
            settings.pop(table + suffix, None)
    return RequestOptions(
        query=fields.get("query", ""),
        database=fields.get("database") or headers.get("x-clickhouse-database", ""),
        default_format=check_format(fields.get("default_format") or headers.get("x-clickhouse-format") or "TabSeparated"),
        query_id=fields.get("query_id", "") or headers.get("x-clickhouse-query-id", ""),
        session_id=fields.get("session_id", ""),
        session_seconds=_session_seconds(fields.get("session_timeout", "60")),
        session_must_exist=_flag(fields, "session_check"),
        close_session=_flag(fields, "close_session"),
        wait_end=_flag(fields, "wait_end_of_query"),
        native_output=_flag(fields, "compress"),
        native_input=_flag(fields, "decompress"),
        verify_checksums=not _flag(fields, "http_native_compression_disable_checksumming_on_decompress"),
        http_compression=_flag(fields, "enable_http_compression", default=True),
        settings=settings,
        parameters={name.removeprefix("param_"): value for name, value in fields.items() if name.startswith("param_")},
    )


def check_format(name: str) -> str:
    """Return the format's name, which is inserted into statements; raise if it is not a plain identifier."""
    if not name.isascii() or not name.isidentifier():
        raise ErrorCode.UNKNOWN_FORMAT.failure(f"Unknown format {name}")
    return name


def authenticate(account: Account, fields: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """Check the request's credentials, given in one of three ways; raise if they are not the account's."""
    user, password = _credentials(fields, headers)
    same_user = is_same_secret(user, account.user)
    same_password = is_same_secret(password, account.password)
    if same_user and same_password:
        return
    code = ErrorCode.REQUIRED_PASSWORD if same_user and not password else ErrorCode.AUTHENTICATION_FAILED
    raise code.failure(f"{user}: Authentication failed: password is incorrect, or there is no user with such name")


def _credentials(fields: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, str]:
    ways = []
    if "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
        ways.append((headers.get("x-clickhouse-user", "default"), headers.get("x-clickhouse-key", "")))
    if "authorization" in headers:
        ways.append(_basic(headers["authorization"]))
    if "user" in fields or "password" in fields:
        ways.append((fields.get("user", "default"), fields.get("password", "")))
    if len(ways) > 1:
        raise ErrorCode.AUTHENTICATION_FAILED.failure(
            "Invalid authentication: it is not allowed to use several ways of authentication at once"
        )
    return ways[0] if ways else ("default", "")


def _basic(header: str) -> tuple[str, str]:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        raise ErrorCode.AUTHENTICATION_FAILED.failure(f"Invalid authentication: '{scheme}' HTTP Authorization scheme is not supported")
    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ErrorCode.AUTHENTICATION_FAILED.failure("Invalid authentication: malformed HTTP Authorization header") from None
    return user, password


def _session_seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ErrorCode.INVALID_SESSION_TIMEOUT.failure(f"Invalid session timeout: '{text[:40]}'")
    if int(text) > _MAX_SESSION_SECONDS:
        raise ErrorCode.INVALID_SESSION_TIMEOUT.failure(
            f"Session timeout '{text}' is larger than max_session_timeout: {_MAX_SESSION_SECONDS}"
        )
    return int(text)


def _flag(fields: Mapping[str, str], name: str, default: bool = False) -> bool:
    value = fields.get(name, "")
    if value == "":
        return default
    if value.lower() in ("1", "true"):
        return True
    if value.lower() in ("0", "false"):
        return False
    raise ErrorCode.BAD_ARGUMENTS.failure(f"Cannot parse '{value}' as a flag for parameter {name}")


_MAX_FORM = 64 << 20


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """Rows sent with a query, and the table name that the query uses."""

    name: str
    rows: bytes

    def create(self, handle: Handle, fields: Mapping[str, str], guard: StatementGuard) -> None:
        """Create the table on the request's own handle, with which it ends."""
        structure = fields.get(f"{self.name}_structure", "")
        types = fields.get(f"{self.name}_types", "")
        if not structure and types:
            structure = ", ".join(f"_{at} {kind}" for at, kind in enumerate(types.split(","), 1))
        if not structure:
            raise ErrorCode.BAD_ARGUMENTS.failure(f"Neither structure nor types have not been provided for external table {self.name}")
        name = quote_name(self.name)
        definition = f"CREATE TEMPORARY TABLE {name} ({structure}) ENGINE = Memory".encode("utf-8", "surrogateescape")
        guard.check(definition)
        handle.execute(definition)
        head = f"INSERT INTO {name}".encode()
        rows_format = check_format(fields.get(f"{self.name}_format", "TabSeparated"))
        handle.insert(ScannedStatement(StatementKind.INSERT_DATA, head, format=rows_format, source_at=len(head)), [self.rows])


@dataclass(frozen=True, slots=True)
class MultipartForm:
    fields: dict[str, str]
    tables: list[ExternalTable]


def read_form(body: Readable, content_type: str) -> MultipartForm:
    """Read a whole form into memory; its size is bounded."""
    data = bytearray()
    while piece := body.read(PIECE):
        data += piece
        if len(data) > _MAX_FORM:
            raise ErrorCode.INCORRECT_DATA.failure(f"The form is larger than {_MAX_FORM} bytes")
    boundary = _parameters(content_type).get("boundary", "")
    if not boundary:
        raise ErrorCode.BAD_ARGUMENTS.failure("The multipart form names no boundary")
    form = MultipartForm({}, [])
    parts = (b"\r\n" + bytes(data)).split(b"\r\n--" + boundary.encode("latin-1"))
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise ErrorCode.INCORRECT_DATA.failure("The multipart form is cut off")
    for part in parts[1:-1]:
        _read_part(part, form)
    return form


def _read_part(part: bytes, form: MultipartForm) -> None:
    head, blank, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    found = re.search(rb"content-disposition:([^\r\n]*)", head, re.IGNORECASE)
    if not blank or found is None:
        raise ErrorCode.INCORRECT_DATA.failure("A part of the multipart form has no Content-Disposition")
    named = _parameters(found[1].decode("utf-8", "surrogateescape"))
    if "filename" in named:
        form.tables.append(ExternalTable(named.get("name", ""), content))
    else:
        form.fields[named.get("name", "")] = content.decode("utf-8", "surrogateescape")


def _parameters(header: str) -> dict[str, str]:
    message = Message()
    message["content-type"] = header.strip()
    return dict(message.get_params(failobj=[])[1:])
