"""The topic settings of a pipe: which topics, the start position, and limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.options import DebeziumOptions, UnavailablePolicy

MAX_OFFSETS: Final = 500_000
_START: Final = 'write earliest, latest, a moment such as 2024-05-01T12:00:00Z, or JSON such as {"shop.db.t": {"0": 120, "1": -2}}'


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """All settings of the source except its address."""

    pattern: str
    """A regular expression over complete topic names."""
    start: Mapping[str, str] = field(default_factory=lambda: {"startingOffsets": "earliest"})
    """In the syntax of Spark's Kafka source."""
    max_offsets: int = MAX_OFFSETS
    """The maximum number of records in a batch; 0: no limit."""
    min_partitions: int = 0
    """The minimum number of tasks in a batch; 0: one per partition."""
    jars: str = ""
    """The directory of Spark's Kafka connector, if not the default."""
    choices: DebeziumOptions = field(default_factory=DebeziumOptions)
    latency_s: float = 0.0
    """How long after a batch the next one begins, under steady records."""

    def check(self) -> None:
        if self.min_partitions and self.choices.unavailable is UnavailablePolicy.KEEP:
            raise DefiniteError(
                "with --min-partitions the records of a partition are read by several tasks at once, and the value before, which stays "
                "where an event has none, may not be there yet",
                place="--min-partitions",
                hint="leave it out, or say --set debezium.unavailable=halt",
            )


def check_chosen(pattern: str, topics: Iterable[str]) -> None:
    """Raise `DefiniteError` if a topic that was read is no longer selected: Spark would treat it as deleted."""
    for topic in sorted(topics):
        if re.fullmatch(pattern, topic) is None:
            raise DefiniteError(
                f"the topic {topic} was read so far, and is not among those that are chosen now",
                place="--topics, --topic-pattern",
                hint="choose it too, and leave its table out with --exclude if it is not wanted any more; or start over with another "
                "--state",
            )


def topic_pattern(globs: Sequence[str], pattern: str, named: str) -> str:
    """Combine globs, a pattern and the topics in the source's address into one regular expression."""
    names = [name.strip() for name in named.split(",") if name.strip()]
    parts = [*map(_of_glob, (*names, *globs)), *([f"(?:{pattern})"] if pattern else [])]
    if not parts:
        raise DefiniteError(
            "no topics are named", hint="name them in the address: kafka://host:port/shop.inventory.*; a pipe also has topics (--topics)"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise DefiniteError(f"the pattern for topics cannot be read: {error}", place="--topic-pattern", hint="correct it") from error
    return "|".join(parts)


def is_named(pattern: str) -> bool:
    """Whether a pattern consists of topic names only, so that it matches no topic that is created later."""
    return re.fullmatch(r"(?:[\w|-]|\\.)+", pattern) is not None


def _of_glob(glob: str) -> str:
    """Convert a glob to the regular expression syntax that Java and Python share."""
    words = {"*": "[^,]*", "?": "[^,]"}
    return "".join(words.get(letter, letter if letter.isalnum() or letter in "_-" else f"\\{letter}") for letter in glob)


def parse_start(text: str) -> dict[str, str]:
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    if text.startswith("{"):
        return {"startingOffsets": json.dumps(_offsets(text))}
    moment = _moment(text)
    return {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def _offsets(text: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise DefiniteError(f"the offsets to start at are not JSON: {error}", place="--start", hint=_START) from error
    for topic, inner in raw.items():
        if not isinstance(inner, dict) or not all(name.isdigit() and isinstance(offset, int) for name, offset in inner.items()):
            raise DefiniteError(f"the offsets of topic {topic} cannot be read", place="--start", hint=_START)
    return dict(raw)


def _moment(text: str) -> int:
    """Milliseconds since 1970."""
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise DefiniteError(f"{text!r} is no place to start at", place="--start", hint=_START) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
