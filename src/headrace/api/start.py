"""Where reading starts or stops, as people write it: a word, a place in the log, or a position that was handed out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.sources.base import Offset
from headrace.sources.mysql.connection import MySQLAddress, query
from headrace.sources.mysql.planner import UNKNOWN_GTID
from headrace.sources.mysql.position import BinlogPosition, file_number
from headrace.sources.mysql.preflight import check_position
from headrace.sources.mysql.watermark import note_position

_FIRST_EVENT = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A place to start at: a batch's beginning, and what of the batch was handed out already."""

    position: BinlogPosition
    until: Offset | None = None
    """Where the batch that was under way ends; None if none was."""
    seen: dict[str, int] = field(default_factory=dict)


def resolve_place(connection: Connection[Any], address: MySQLAddress, start: str | dict[str, Any]) -> Place:
    """`now`, `oldest`, `FILE:OFFSET`, or a position handed out before, as a mapping or its JSON text."""
    raw = start
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        raw = _parse(raw)
    if isinstance(raw, dict):
        position = _position(raw)
        partly = raw.get("partly") or {}
        check_position(connection, address, position)
        return Place(position, partly.get("until"), dict(partly.get("seen", {})))
    if raw == "now":
        position = note_position(connection, address, epoch=0)
        connection.commit()
        return Place(position)
    if raw == "oldest":
        files = [str(row[0]) for row in query(connection, address, "SHOW BINARY LOGS")]
        return Place(BinlogPosition(min(files, key=file_number), _FIRST_EVENT, UNKNOWN_GTID))
    file, _, offset = raw.rpartition(":")
    if not file or not offset.isdigit():
        raise _unreadable(raw)
    position = BinlogPosition(file, int(offset), UNKNOWN_GTID)
    check_position(connection, address, position)
    return Place(position)


def _parse(text: str) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise _unreadable(text) from error
    return raw


def _position(raw: dict[str, Any]) -> BinlogPosition:
    try:
        return BinlogPosition.from_json(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(json.dumps(raw)) from error


def _unreadable(text: str) -> DefiniteError:
    return DefiniteError(
        f"{text!r} is not a place in the log", hint='write "now", "oldest", "FILE:OFFSET", or a position that was handed out before'
    )
