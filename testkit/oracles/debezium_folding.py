"""Folds Debezium's change events in JSON into rows: the last event of each key wins.

It does not use Headrace's readers. The types are those of the tables of `testkit.generators.workload`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from testkit.oracles.topics import read_topic
from testkit.servers.broker import PrivateBroker

_EPOCH = datetime(1970, 1, 1)


def _decimal(value: str) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-2)


_READ: Mapping[str, Callable[[Any], Any]] = {"balance": _decimal, "changed": lambda micros: _EPOCH + timedelta(microseconds=micros)}


def folded_rows(broker: PrivateBroker, topic: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a topic, as the source's SELECT gives them."""
    rows: dict[bytes | None, Mapping[str, Any]] = {}
    for message in read_topic(broker, topic):
        if message.value is None:
            rows.pop(message.key, None)
            continue
        event = json.loads(message.value)
        event = event.get("payload", event)
        if event["op"] == "d":
            rows.pop(message.key, None)
        else:
            rows[message.key] = event["after"]
    return sorted((tuple(_plain(name, row[name]) for name in columns) for row in rows.values()), key=repr)


def _plain(name: str, value: Any) -> Any:
    return _READ[name](value) if name in _READ and value is not None else value
