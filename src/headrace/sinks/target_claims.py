"""Claims on targets: which pipe writes to which table or topic, recorded in the sink itself.

A sink offers a `ClaimStore`, which all pipes read and write. The store needs no locks and no conditional writes, because
`pipes/lifecycle/target_ownership` writes a claim first and reads all claims back before a pipe counts as the owner. Every call may be
repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Claim:
    """One pipe's claim on one target."""

    target: str
    """`database.table`, `keyspace.table`, or a topic."""
    state: str
    """The id of the pipe's state."""
    pipe: str
    source: str
    """The source's address, without password."""
    host: str
    directory: str
    """The state directory on `host`."""
    claimed_us: int
    """Microseconds since 1970."""
    created: bool = False
    """Whether the target existed after it was claimed. A target that is missing later was dropped, and the claim ends with it."""

    def is_of(self, owner: Claim) -> bool:
        """Whether it is a claim of this state, in the directory where the state is now."""
        return (self.state, self.host, self.directory, self.pipe) == (owner.state, owner.host, owner.directory, owner.pipe)

    def is_replaced_by(self, owner: Claim) -> bool:
        """Whether it belongs to a former state of the owner's pipe and directory, which the user removed to start over."""
        former, now = ((one.pipe, one.source, one.host, one.directory) for one in (self, owner))
        return self.state != owner.state and former == now


class ClaimStore(Protocol):
    """Where a sink records claims."""

    def read(self) -> list[Claim]:
        """All claims."""

    def write(self, claims: Sequence[Claim]) -> None:
        """Record claims; each replaces an earlier claim of the same state on the same target. Visible to every reader on return."""

    def remove(self, claims: Sequence[Claim]) -> None:
        """Remove claims, by target and state."""

    def existing(self, targets: Collection[str]) -> set[str]:
        """Those of the targets that exist in the sink."""

    def last_seen_us(self, claim: Claim) -> int:
        """When the pipe of a claim last reported that it runs, in microseconds since 1970; 0 if the sink does not know."""
