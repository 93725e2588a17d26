"""A source of numbers and a sink of lines, for tests of runtimes. All of it is picklable, and works in other processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from headrace.errors import DefiniteError, TransientError
from headrace.sources.base import Json, Offset, Split


@dataclass(frozen=True, slots=True)
class Line:
    """A block of one row."""

    subject: str
    number: int
    changes: int = 1
    nbytes: int = 8
    newest: int = 0


@dataclass(frozen=True, slots=True)
class NumberSplit:
    """A split of one number."""

    split_kind: ClassVar[str] = "number"
    number: int
    once: bool = False

    def to_json(self) -> Json:
        return {"number": self.number, "once": self.once}

    @classmethod
    def from_json(cls, raw: Json) -> NumberSplit:
        return cls(raw["number"], raw["once"])


@dataclass(frozen=True, slots=True)
class NumberReader:
    """Returns a block per split."""

    split_types: ClassVar[tuple[type[Split], ...]] = (NumberSplit,)
    fails: dict[int, str] = field(default_factory=dict)

    def read(self, split: NumberSplit) -> Generator[Line, None, Json]:
        number = split.number
        match self.fails.get(number):
            case "definite":
                raise DefiniteError(f"number {number} is bad", place=f"split {number}", hint="leave it out", event=f"event {number}")
            case "transient":
                raise TransientError(f"number {number} is away", place=f"split {number}")
        yield Line(f"table{number % 2}", number)
        return {"number": number}


@dataclass(frozen=True, slots=True)
class LineSink:
    """Appends a line per block to a file."""

    path: Path
    failures: int = 0
    """How many writes fail with a transient error before one succeeds, all tasks together."""

    def for_replay(self) -> LineSink:
        return self

    def writer(self) -> LineSink:
        return self

    def write(self, block: Line) -> None:
        failed = self.path.with_suffix(".failed")
        if self.failures and len(_lines(failed)) < self.failures:
            _append(failed, "failed")
            raise TransientError("the sink is away")
        _append(self.path, json.dumps({"number": block.number, "process": os.getpid()}))

    def close(self) -> None:
        _append(self.path.with_suffix(".closed"), "closed")

    @property
    def numbers(self) -> list[int]:
        return [json.loads(line)["number"] for line in _lines(self.path)]

    @property
    def closed(self) -> int:
        return len(_lines(self.path.with_suffix(".closed")))


@dataclass(frozen=True, slots=True)
class NumberSource:
    """Plans batches of two numbers, up to `last`."""

    last: int
    log: Path
    """The planner's calls, a line each: it may live in another process."""

    def planner(self) -> NumberPlanner:
        return NumberPlanner(self)

    def calls(self, name: str) -> list[int]:
        return [at for called, at in map(json.loads, _lines(self.log)) if called == name]


class NumberPlanner:
    """The planner of `NumberSource`."""

    def __init__(self, source: NumberSource) -> None:
        self._source = source

    def initial(self) -> Offset:
        return {"at": 0}

    def plan(self, start: Offset) -> Offset:
        end = min(start["at"] + 2, self._source.last)
        if end == start["at"]:
            time.sleep(0.01)
        return {"at": end}

    def splits(self, start: Offset, end: Offset) -> list[NumberSplit]:
        self._note("splits", start["at"])
        return [NumberSplit(number) for number in range(start["at"], end["at"])]

    def commit(self, end: Offset) -> None:
        self._note("commit", end["at"])

    def stop(self) -> None:
        self._note("stop", 0)

    def _note(self, name: str, at: int) -> None:
        _append(self._source.log, json.dumps([name, at]))


def retry_twice(call: Callable[[], None]) -> None:
    """Retry a write after a transient error, at most twice."""
    for _ in range(2):
        try:
            call()
        except TransientError:
            continue
        return
    call()


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
