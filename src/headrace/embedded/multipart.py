"""multipart/form-data: query parameters too long for a URL, and external tables that exist for one request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from headrace.embedded.access.statement_guard import StatementGuard
from headrace.embedded.engine.engine import Handle, quote_name
from headrace.embedded.engine.errors import BAD_ARGUMENTS, INCORRECT_DATA, clickhouse_error
from headrace.embedded.engine.statement_scanner import ScannedStatement, StatementKind
from headrace.embedded.request_options import check_format
from headrace.http.request import PIECE, Readable

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
            raise clickhouse_error(BAD_ARGUMENTS, f"Neither structure nor types have not been provided for external table {self.name}")
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
            raise clickhouse_error(INCORRECT_DATA, f"The form is larger than {_MAX_FORM} bytes")
    boundary = _parameters(content_type).get("boundary", "")
    if not boundary:
        raise clickhouse_error(BAD_ARGUMENTS, "The multipart form names no boundary")
    form = MultipartForm({}, [])
    parts = (b"\r\n" + bytes(data)).split(b"\r\n--" + boundary.encode("latin-1"))
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise clickhouse_error(INCORRECT_DATA, "The multipart form is cut off")
    for part in parts[1:-1]:
        _read_part(part, form)
    return form


def _read_part(part: bytes, form: MultipartForm) -> None:
    head, blank, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    found = re.search(rb"content-disposition:([^\r\n]*)", head, re.IGNORECASE)
    if not blank or found is None:
        raise clickhouse_error(INCORRECT_DATA, "A part of the multipart form has no Content-Disposition")
    named = _parameters(found[1].decode("utf-8", "surrogateescape"))
    if "filename" in named:
        form.tables.append(ExternalTable(named.get("name", ""), content))
    else:
        form.fields[named.get("name", "")] = content.decode("utf-8", "surrogateescape")


def _parameters(header: str) -> dict[str, str]:
    message = Message()
    message["content-type"] = header.strip()
    return dict(message.get_params(failobj=[])[1:])
