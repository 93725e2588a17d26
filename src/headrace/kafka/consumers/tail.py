"""Prints the content of a topic, message by message: mypipe's messages and Debezium's events, recognized by their bytes.

Every message gives one line: a change, or a note (tombstone, event without a row change, or unreadable with the reason).
"""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.errors import DefiniteError
from headrace.kafka.consumers.consumer import ChangeConsumer, ConsumerSettings
from headrace.kafka.consumers.message_source import MessageBatch
from headrace.kafka.consumers.row_changes import RowChange, What

_ARROWS: Final = {What.INSERT: "+", What.UPDATE: "~", What.DELETE: "-"}
_PREVIEW: Final = 60


@dataclass(frozen=True, slots=True)
class TailNote:
    kind: str
    """tombstone, event or unreadable."""
    text: str
    topic: str
    partition: int
    offset: int
    key: bytes | None

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


def tail(
    reading: ConsumerSettings, *, once: bool = False, limit: int | None = None, stop: threading.Event | None = None
) -> Iterator[RowChange | TailNote]:
    """Yield each message of the topics as it arrives; `once`: up to their current end."""
    with ChangeConsumer(reading) as consumption:
        for batches in consumption.batches(until_end=once, limit=limit, stop=stop):
            for batch in batches:
                yield from _inspect(consumption, batch)


def text_line(found: RowChange | TailNote) -> str:
    if isinstance(found, TailNote):
        key = f" key {_shown(found.key)}" if found.key is not None else ""
        return f"{found.place} {found.kind.upper()}{key}{': ' if found.text else ''}{found.text}"
    when = f" {found.committed:%Y-%m-%dT%H:%M:%S.%f}Z" if found.committed is not None else ""
    snapshot = " (snapshot)" if found.snapshot_row is not None else ""
    rows = " -> ".join(_json(row) for row in (found.old, found.new) if row is not None)
    more = "".join(f" {name}={value}" for name, value in (("position", found.position), ("transaction", found.transaction)) if value)
    return f"{found.place}{when} {_ARROWS[found.what]} {found.what.value.upper()} {found.database}.{found.table}{snapshot} {rows}{more}"


def json_line(found: RowChange | TailNote) -> str:
    place = {"topic": found.topic, "partition": found.partition, "offset": found.offset, "key": _text(found.key)}
    if isinstance(found, TailNote):
        return _json({"type": found.kind, "text": found.text, **place})
    named = ("database", "table", "old", "new", "transaction", "position", "snapshot_row", "committed")
    return _json({"type": found.what.value, **{name: getattr(found, name) for name in named}, **place})


def _inspect(consumption: ChangeConsumer, batch: MessageBatch) -> list[RowChange | TailNote]:
    """Return a change or a note for each message of a batch, in order."""
    found: dict[int, RowChange | TailNote] = {change.offset: change for change in consumption.readable(batch)}
    for row, message in enumerate(batch.messages):
        offset = batch.offset(row)
        if offset not in found:
            found[offset] = _note(consumption, batch, row, message.value(), message.key())
    return [found[offset] for offset in sorted(found)]


def _note(consumption: ChangeConsumer, batch: MessageBatch, row: int, value: bytes | None, key: bytes | None) -> TailNote:
    kind, text = "tombstone", ""
    if value is not None:
        try:
            kind, text = "event", consumption.other(batch, row)
        except DefiniteError as error:
            kind, text = "unreadable", f"{error.message} ({_shown(value)})"
    return TailNote(kind, text, batch.topic, batch.partition, batch.offset(row), key)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME).decode()


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return _text(value)
        case decimal.Decimal():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return _span(value)
    raise TypeError(type(value))


def _span(value: dt.timedelta) -> str:
    """Format a time span as MySQL prints it."""
    micros = value // dt.timedelta(microseconds=1)
    seconds, rest = divmod(abs(micros), 1_000_000)
    text = f"{'-' if micros < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest:06}" if rest else text


def _text(raw: bytes | None) -> str | None:
    """Format bytes as text if they are UTF-8, else in hexadecimal."""
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"0x{raw.hex()}"
    return text if text.isprintable() else f"0x{raw.hex()}"


def _shown(raw: bytes | None) -> str:
    text = _text(raw) or ""
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}…"
