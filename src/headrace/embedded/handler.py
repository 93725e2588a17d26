"""Handles one HTTP request: ClickHouse's HTTP interface.

Invariant: status and headers are sent only when the statement has ended or produced more than `_HOLD` bytes. So a statement that fails
early answers with its error's status. One that fails later ends with the exception block that ClickHouse clients look for, and a truncated
chunked body, so it is never taken for a complete result.
"""

from __future__ import annotations

import io
import json
import logging
import secrets
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, cast

from headrace.embedded.access.credentials import Account
from headrace.embedded.access.statement_guard import StatementGuard
from headrace.embedded.content_encoding import FrameReader, FrameWriter, bounded, choose_coding, decode
from headrace.embedded.database_statements import OWN_CLIENT, SHOW, DatabaseStatements, show_statement
from headrace.embedded.engine.engine import Engine, Handle, OutputPipe, QueryStats
from headrace.embedded.engine.errors import ErrorCode, QueryFailure
from headrace.embedded.engine.statement_scanner import ScannedStatement, StatementKind, leading_word, parse_insert, parse_statement
from headrace.embedded.request_options import ExternalTable, RequestOptions, authenticate, read_fields, read_form, read_options
from headrace.embedded.session import Sessions
from headrace.http.origin_check import OriginCheck
from headrace.http.request import PIECE, BadRequest, HttpError, Readable, Request, RequestStream, frame_body
from headrace.http.response import ResponseWriter

log = logging.getLogger(__name__)

_HOLD: Final = 1 << 16
_SPOOL_BYTES: Final = 16 << 20
_MAX_QUERY: Final = 262_144
_MOST_QUERY: Final = 64 << 20
"""A statement is held in memory, whatever `max_query_size` is."""
_MOST_DIGITS: Final = 18
_QUERY_PATHS: Final = frozenset({"/", "/query", ""})
_REALM: Final = 'Basic realm="ClickHouse server HTTP API"'


class EmbeddedHandler:
    """Handles requests; shared by all connections."""

    liveness_paths = frozenset({"/ping", "/replicas_status"})

    def __init__(self, engine: Engine, account: Account, origin_check: OriginCheck, scratch: Path, databases: DatabaseStatements) -> None:
        self._engine = engine
        self._databases = databases
        self._account = account
        self._origin_check = origin_check
        self._guard = StatementGuard(engine.names("table_functions"), engine.names("table_engines") + engine.names("database_engines"))
        self._scratch = scratch
        self._sessions = Sessions(engine)
        self._common = {"X-ClickHouse-Server-Display-Name": engine.display_name}

    def close(self) -> None:
        self._sessions.close()

    def receive(self, request: Request, stream: RequestStream) -> None:
        request.body = frame_body(stream, request)
        if request.version == "HTTP/1.1" and "host" not in request.headers:
            raise BadRequest(400, "a request of HTTP/1.1 names its host")

    def send_error(self, error: HttpError, response: ResponseWriter) -> None:
        response.send(error.status, {**_TEXT, **error.headers}, f"{error.message}\n".encode())

    def answer(self, request: Request, response: ResponseWriter) -> None:
        response.common = self._common
        if request.path in self.liveness_paths:
            response.send(200, _TEXT, b"Ok.\n")
            return
        if request.path not in _QUERY_PATHS:
            text = f"There is no handle {request.path}\nUse / or /ping for health checks, or POST / for queries.\n"
            response.send(404, _TEXT, text.encode())
            return
        if request.method not in ("GET", "HEAD", "POST"):
            response.send(501, _TEXT, b"Only GET, HEAD and POST are supported.\n")
            return
        exchange = _Exchange(request, response)
        try:
            self._run(exchange)
        except QueryFailure as failure:
            if response.started:
                # The result is marked as failed, and closing the connection leaves it visibly incomplete.
                log.info("a result ended early: %s", failure.message)
                response.keep_alive = False
            else:
                self._send_failure(exchange, failure)

    def _run(self, exchange: _Exchange) -> None:
        request = exchange.request
        fields = read_fields(request.query)
        if request.method != "POST" and not fields and request.body.ended:
            exchange.response.send(200, _TEXT, b"Ok.\n")
            return
        self._check_origin(request.headers)
        authenticate(self._account, fields, request.headers)
        tables: list[ExternalTable] = []
        body: Readable = request.body
        content_type = request.headers.get("content-type", "")
        if content_type.lower().startswith("multipart/form-data"):
            form = read_form(body, content_type)
            fields, tables, body = {**fields, **form.fields}, form.tables, io.BytesIO()
        options = read_options(fields, request.headers, frozenset(table.name for table in tables))
        exchange.options = options
        exchange.query_id = options.query_id or str(uuid.uuid4())
        body = decode(body, request.headers.get("content-encoding", ""))
        if options.native_input:
            body = bounded(body, lambda source: FrameReader(source, options.verify_checksums))
        statement, rows = read_statement(options, body)
        self._guard.check(statement.head + b"\n" + statement.tail)
        if request.method != "POST" and statement.kind not in (StatementKind.OUTPUT, StatementKind.SESSION, StatementKind.EMPTY):
            raise ErrorCode.READONLY.failure(
                "Cannot execute query in readonly mode. For queries over HTTP, method GET implies readonly. "
                "You should use method POST for modifying queries"
            )
        options = exchange.options = self._with_final(options, statement, request.headers)
        with ExitStack() as claimed:
            handle = claimed.enter_context(self._sessions.handle(options, statement.kind, has_tables=bool(tables)))
            # As in ClickHouse, the session is free for the client's next request before the client has the whole response.
            exchange.response.before_end = claimed.close
            for table in tables:
                table.create(handle, fields, self._guard)
            about = self._databases.find(statement, options.settings, options.parameters)
            if about is None:
                self._execute(exchange, handle, statement, rows)
            elif about.verb == SHOW:
                self._stream(exchange, handle, show_statement(about, statement))
            else:
                self._databases.run(about, readonly=handle.readonly_level() != 0)
                exchange.response.send(200, self._headers(exchange, "", QueryStats()), b"")

    def _with_final(self, options: RequestOptions, statement: ScannedStatement, headers: Mapping[str, str]) -> RequestOptions:
        """Merge the rows of MaterializeMySQL databases in reads by users. Headrace's own statements write FINAL where they need it."""
        if "final" in options.settings or headers.get("user-agent", "").startswith(OWN_CLIENT):
            return options
        if statement.kind is StatementKind.SESSION:
            return options
        return replace(
            options, reads_final=self._databases.needs_final(statement, self._sessions.current_database(options), options.parameters)
        )

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host")
        if host is not None and not self._origin_check.is_own_host(host):
            raise ErrorCode.AUTHENTICATION_FAILED.failure(
                f"{host!r} is not a name of this server; `headrace serve --allow-host NAME` adds one"
            )
        if not self._origin_check.is_own_page(headers):
            raise ErrorCode.AUTHENTICATION_FAILED.failure("A page of another site may not query this server")

    def _execute(self, exchange: _Exchange, handle: Handle, statement: ScannedStatement, rows: Iterator[bytes]) -> None:
        options = exchange.options
        if statement.kind is StatementKind.EMPTY:
            raise ErrorCode.SYNTAX_ERROR.failure("Syntax error: Empty query")
        if statement.kind is StatementKind.INSERT_DATA:
            stats = handle.insert(statement, rows)
            exchange.response.send(200, self._headers(exchange, "", stats), b"")
        elif statement.kind is StatementKind.INSERT_INPUT:
            stats = handle.insert_through_query(statement, rows)
            exchange.response.send(200, self._headers(exchange, "", stats), b"")
        elif statement.kind is StatementKind.OUTPUT:
            self._stream(exchange, handle, statement)
        else:
            out, stats = handle.execute(statement.head, options.default_format)
            exchange.response.send(200, self._headers(exchange, options.default_format if out else "", stats), out)

    def _stream(self, exchange: _Exchange, handle: Handle, statement: ScannedStatement) -> None:
        options, response = exchange.options, exchange.response
        output_format = statement.format or options.default_format
        coding = ""
        if options.http_compression and not options.native_output:
            coding = choose_coding(exchange.request.headers.get("accept-encoding", ""))
        pipe = handle.output(statement, options.default_format, coding)
        try:
            source: Readable = FrameWriter(pipe) if options.native_output else pipe
            if options.wait_end:
                self._send_spooled(exchange, pipe, source, output_format, coding)
                return
            held, ended = _hold(source)
            if ended:
                stats = pipe.finish()
                response.send(200, self._headers(exchange, output_format, stats, coding if held else ""), held)
                return
            self._send_stream(
                exchange, pipe, source, held, self._headers(exchange, output_format, QueryStats(), coding), coded=bool(coding)
            )
        finally:
            pipe.close()

    def _send_spooled(self, exchange: _Exchange, pipe: OutputPipe, source: Readable, output_format: str, coding: str) -> None:
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, dir=str(self._scratch)) as spool:
            while piece := source.read(PIECE):
                spool.write(piece)
            stats = pipe.finish()
            size = spool.tell()
            spool.seek(0)
            headers = self._headers(exchange, output_format, stats, coding if size else "")
            exchange.response.send_file(200, headers, cast(BinaryIO, spool), size)

    def _send_stream(
        self, exchange: _Exchange, pipe: OutputPipe, source: Readable, held: bytes, headers: Mapping[str, str], coded: bool
    ) -> None:
        response = exchange.response
        tag = secrets.token_hex(8)
        response.begin_chunks(200, {**headers, "X-ClickHouse-Exception-Tag": tag})
        response.write_chunk(held)
        while piece := source.read(PIECE):
            response.write_chunk(piece)
        try:
            pipe.finish()
        except QueryFailure as failure:
            if not coded:
                # In the middle of a coded stream plain text would only hide the cut.
                response.write_chunk(exception_block(failure.text(self._engine.version), tag))
            raise
        response.end_chunks()

    def _headers(self, exchange: _Exchange, output_format: str, stats: QueryStats, coding: str = "") -> dict[str, str]:
        timezone = exchange.options.settings.get("session_timezone") or self._engine.timezone
        headers = {
            "Content-Type": content_type(output_format),
            "X-ClickHouse-Query-Id": exchange.query_id,
            "X-ClickHouse-Timezone": timezone,
            "X-ClickHouse-Summary": json.dumps(stats.summary(), separators=(",", ":")),
        }
        if output_format:
            headers["X-ClickHouse-Format"] = output_format
        if coding:
            headers["Content-Encoding"] = coding
        return headers

    def _send_failure(self, exchange: _Exchange, failure: QueryFailure) -> None:
        headers = {
            **_TEXT,
            "X-ClickHouse-Query-Id": exchange.query_id,
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Exception-Code": str(failure.code),
        }
        exchange.response.refused = failure.code in (ErrorCode.REQUIRED_PASSWORD, ErrorCode.AUTHENTICATION_FAILED)
        if failure.status == 401:
            headers["WWW-Authenticate"] = _REALM
        exchange.response.send(failure.status, headers, failure.text(self._engine.version).encode("utf-8", "surrogateescape"))


class _Exchange:
    """One request and its response."""

    def __init__(self, request: Request, response: ResponseWriter) -> None:
        self.request = request
        self.response = response
        self.options: RequestOptions = read_options({}, {})
        self.query_id = str(uuid.uuid4())


_TEXT: Final = {"Content-Type": "text/plain; charset=UTF-8"}


def read_statement(options: RequestOptions, body: Readable) -> tuple[ScannedStatement, Iterator[bytes]]:
    """Return the statement in the query parameter followed by the body, and the rows behind it."""
    limit = _max_query(options)
    prefix = options.query.encode("utf-8", "surrogateescape")
    read = bytearray(prefix + b"\n" if prefix else b"")
    room = limit + len(read)
    while len(read) <= room and (piece := body.read(min(PIECE, room + 1 - len(read)))):
        read += piece
    text = bytes(read)
    whole = len(text) <= room
    if leading_word(text) == b"INSERT":
        statement = parse_insert(text)
        if statement is not None and statement.data_start >= 0:
            return statement, _rows(text[statement.data_start :], body)
        if statement is not None and whole:
            return statement, iter(())
        if whole:
            # Incomplete or malformed: the engine reports the error.
            return ScannedStatement(StatementKind.OTHER, text), iter(())
    elif whole:
        return parse_statement(text), iter(())
    raise ErrorCode.SYNTAX_ERROR.failure(
        f"Syntax error: Max query size exceeded (can be increased with the `max_query_size` setting): {limit}"
    )


def _rows(first: bytes, body: Readable) -> Iterator[bytes]:
    if first:
        yield first
    while piece := body.read(PIECE):
        yield piece


def _max_query(options: RequestOptions) -> int:
    text = options.settings.get("max_query_size", "")
    chosen = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    return min(chosen, _MOST_QUERY) if chosen > 0 else _MAX_QUERY


def _hold(source: Readable) -> tuple[bytes, bool]:
    """Return the first bytes of a result, and whether they are all of it."""
    pieces: list[bytes] = []
    size = 0
    while size < _HOLD:
        piece = source.read(PIECE)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), False


def exception_block(text: str, tag: str) -> bytes:
    """Return ClickHouse's marker of a failure after part of the result was sent."""
    message = text.rstrip("\n").encode("utf-8", "surrogateescape") + b"\n"
    return b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (tag.encode(), message, len(message), tag.encode())


def content_type(output_format: str) -> str:
    if output_format.startswith("JSON"):
        return "application/json; charset=UTF-8"
    if output_format.startswith(("TabSeparated", "TSV")):
        return "text/tab-separated-values; charset=UTF-8"
    if output_format.startswith("CSV"):
        return f"text/csv; charset=UTF-8; header={'present' if 'Names' in output_format else 'absent'}"
    if output_format == "XML":
        return "application/xml; charset=UTF-8"
    binary = ("Native", "RowBinary", "Arrow", "Parquet", "ORC", "Avro", "MsgPack", "Protobuf", "CapnProto", "BSON", "Npy")
    return "application/octet-stream" if output_format.startswith(binary) else "text/plain; charset=UTF-8"
