"""Handles records that cannot be read: the pipe halts, or they are stored elsewhere before their batch counts.

Invariant: a record is in the sink, or counted as one without a row change, or stored here, or the pipe has halted. A repeated batch stores
the record again under the same id: the table replaces it, and copies in a topic carry the same position in their headers.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.state.event_skips import EventSkips
from headrace.retry import retrying
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ERRORS, SKIPPED, UNREADABLE
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables, format_timestamp
from headrace.sinks.kafka.delivery import failure
from headrace.sources.debezium.events.options import DebeziumOptions, MalformedPolicy
from headrace.sources.debezium.events.records import RejectedRecord
from headrace.sources.debezium.offset_range_reader import OffsetRange, read_offset_range

log = logging.getLogger("headrace")

HEADERS: Final = "headrace.error."
_PLACE: Final = re.compile(r"(?P<topic>.+)\[(?P<partition>\d+)\]@(?P<offset>\d+)")
_FLUSH_S: Final = 30.0
_PIECE_RECORDS, _PIECE_BYTES = 500, 32 << 20


def check_choice(choices: DebeziumOptions) -> None:
    if (choices.on_malformed is MalformedPolicy.TOPIC) != bool(choices.dead_letter_topic):
        raise DefiniteError(
            "on_malformed = topic and dead_letter_topic belong together",
            place="[debezium]",
            hint="give both, or neither",
        )


def handle_bad_records(
    found: Sequence[RejectedRecord],
    choices: DebeziumOptions,
    own: OwnTables,
    address: KafkaAddress,
    pipe: str,
    skips: EventSkips | None = None,
) -> int:
    """Handle bad records as configured; afterwards none of them is lost. Skipped ones are stored, too.

    Return how many records were sent to the dead-letter topic. Those in `headrace.errors` can be counted there.
    """
    requested = [one for one in found if skips is not None and one.place in skips.pending]
    refused = [one for one in found if one not in requested]
    if skips is not None and requested:
        for some in _pieces(requested, address):
            retrying(functools.partial(_post, some, own, pipe, SKIPPED))
        skips.record_skipped({"place": one.place, "table": one.topic, "content": one.reason} for one in requested)
    if not refused:
        return 0
    if choices.on_malformed is MalformedPolicy.HALT:
        raise _halted(refused)
    for some in _pieces(refused, address):
        if choices.on_malformed is MalformedPolicy.DEAD_LETTER:
            retrying(functools.partial(_post, some, own, pipe))
        else:
            retrying(functools.partial(_send, some, choices.dead_letter_topic, address, pipe))
    where = "headrace.errors" if choices.on_malformed is MalformedPolicy.DEAD_LETTER else f"the topic {choices.dead_letter_topic}"
    first = refused[0]
    log.warning("%d records cannot be read and are in %s; the first: %s: %s", len(refused), where, first.place, first.reason)
    return len(refused) if choices.on_malformed is MalformedPolicy.TOPIC else 0


def _pieces(refused: Sequence[RejectedRecord], address: KafkaAddress) -> Iterator[list[RejectedRecord]]:
    """Return complete records in limited batches."""
    waiting: list[RejectedRecord] = []
    size = 0
    for one in refused:
        waiting.append(one if one.is_whole else retrying(functools.partial(_fetched, one, address)))
        size += len(waiting[-1].value or b"")
        if len(waiting) >= _PIECE_RECORDS or size >= _PIECE_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _fetched(one: RejectedRecord, address: KafkaAddress) -> RejectedRecord:
    """Fetch a record from its topic that was too large for a report."""
    for records in read_offset_range(address, OffsetRange(one.topic, one.partition, one.offset, one.offset + 1)):
        headers = [] if records.headers is None else records.headers[0].as_py() or []
        pairs = tuple((header["key"], header["value"]) for header in headers)
        return replace(one, key=records.key[0].as_py(), value=records.value[0].as_py(), headers=pairs, is_whole=True)
    return replace(one, reason=f"{one.reason} (and its topic holds it no more)")


def is_record(place: str) -> bool:
    return _PLACE.fullmatch(place) is not None


def is_passed(place: str, reached: KafkaPosition) -> bool:
    found = _PLACE.fullmatch(place)
    return found is not None and reached.offsets.get(found["topic"], {}).get(int(found["partition"]), 0) > int(found["offset"])


def _halted(refused: Sequence[RejectedRecord]) -> DefiniteError:
    first = refused[0]
    more = f" (and {len(refused) - 1} more of the batch)" if len(refused) > 1 else ""
    choice = "or keep such records with --set debezium.on_malformed=dead_letter (or topic)"
    return DefiniteError(
        f"a record cannot be read: {first.reason}{more}",
        place=first.place,
        hint=f"{first.hint}; {choice}" if first.hint else choice[3:],
        event=first.place,
    )


def _post(refused: Sequence[RejectedRecord], own: OwnTables, pipe: str, state: str = UNREADABLE) -> None:
    now = format_timestamp(time.time_ns() // 1000)
    own.ensure(ERRORS)
    own.insert(ERRORS, [_row(one, pipe, now, state) for one in refused])


def _row(one: RejectedRecord, pipe: str, now: str, state: str) -> dict[str, Any]:
    name = hashlib.sha256("\n".join((pipe, one.topic, str(one.partition), str(one.offset))).encode()).hexdigest()[:16]
    record = {
        "key": _shown(one.key),
        "value": _shown(one.value),
        "headers": [[header, _shown(value)] for header, value in one.headers],
    }
    return {
        "id": name,
        "pipe": pipe,
        "table": one.topic,
        "target": "",
        "state": state,
        "key": one.key.decode(errors="replace") if one.key is not None else "",
        "column": "",
        "reason": one.reason,
        "operation": "record",
        "version": one.offset,
        "position": one.place,
        "commit_time": format_timestamp(0),
        "row": json.dumps(record, ensure_ascii=False),
        "place": one.partition,
        "definition": "",
        "tries": 1,
        "failed_at": now,
        "updated_at": now,
    }


def _shown(value: bytes | None) -> dict[str, str] | str | None:
    """Represent bytes reversibly: as text if they are UTF-8, else as base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _send(refused: Sequence[RejectedRecord], topic: str, address: KafkaAddress, pipe: str) -> None:
    failures: list[KafkaError] = []
    doing, place = f"sending records that cannot be read to the topic {topic}", str(address)

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    # The broker limits the size of a record.
    producer = Producer({"message.max.bytes": "100000000", **address.client_settings(), "enable.idempotence": True, "log_level": 0})
    try:
        for one in refused:
            described = {"reason": one.reason, "topic": one.topic, "partition": str(one.partition), "offset": str(one.offset), "pipe": pipe}
            reasons = [(HEADERS + name, text.encode()) for name, text in described.items()]
            producer.produce(topic, value=one.value, key=one.key, headers=[*one.headers, *reasons], on_delivery=delivered)
        left = producer.flush(_FLUSH_S)
    except KafkaException as error:
        raise failure(error, doing, place) from error
    except BufferError as error:
        raise TransientError(f"the topic {topic} takes records too slowly: {error}", place=place) from error
    if failures:
        raise failure(failures[0], doing, place)
    if left:
        raise TransientError(f"{left} records were not taken by the topic {topic} within {_FLUSH_S:.0f} s", place=place)
