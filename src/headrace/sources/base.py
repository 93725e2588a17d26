"""The interfaces of a source.

A source is a small picklable description. Its planner lives in one long-lived process: it returns where the next batch ends, and the splits
between two offsets. Its reader runs in tasks and turns a split into blocks. Offsets and splits go through Spark as JSON, bulk data never
does. Planning the same range again gives splits that cover the same changes with the same versions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

Json = dict[str, Any]
Offset = Json


class Split(Protocol):
    """A unit of work that one task runs, a frozen dataclass. `sources.splits` encodes and decodes it."""

    split_kind: ClassVar[str]
    """Distinguishes it from the other splits that the same task runs."""

    @property
    def once(self) -> bool:
        """Whether a task may run it only once, unless the driver has removed the rows of the first run."""

    def to_json(self) -> Json: ...

    @classmethod
    def from_json(cls, raw: Json) -> Self: ...


class Block(Protocol):
    """Rows of one table, in a form that the source and the sink share."""

    @property
    def subject(self) -> str:
        """The name of the table, for messages."""

    @property
    def changes(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def newest(self) -> int:
        """The commit time of the newest change, microseconds since 1970; 0 if it is unknown."""


S_contra = TypeVar("S_contra", bound=Split, contravariant=True)
B_co = TypeVar("B_co", bound=Block, covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Planner(Protocol):
    """Plans batches. It lives in one process, and may hold connections and threads."""

    def initial(self) -> Offset: ...

    def plan(self, start: Offset) -> Offset:
        """Return where the next batch ends. Wait a little for changes; return `start` if none came."""

    def splits(self, start: Offset, end: Offset) -> Sequence[Split]:
        """Return the splits between two offsets. Wait until the log up to `end` has arrived."""

    def commit(self, end: Offset) -> None:
        """Release everything before `end`: it is stored in the sink."""

    def stop(self) -> None: ...


class Source(Protocol):
    """A source of changes. Picklable."""

    def planner(self) -> Planner: ...


class Reader(Protocol[S_contra, B_co, R_co]):
    """Reads splits in a task. Picklable."""

    @property
    def split_types(self) -> tuple[type[Split], ...]:
        """The splits that it reads."""

    def read(self, split: S_contra) -> Generator[B_co, None, R_co]:
        """Yield the blocks of a split; return its result for the driver, such as the position of a snapshot. Picklable."""
