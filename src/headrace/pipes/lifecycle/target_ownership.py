"""A target table or topic has one owner: the pipe that claimed it first (decision 54).

A pipe claims a target before it creates or writes it. It reads all claims, writes its own and reads again. It owns the target only if the
second read shows no claim of another pipe; otherwise it removes its claim, waits for a random time and starts again. Of two pipes that
start at the same moment, the one that wrote last sees the other, so they never both own a target. A crash leaves a claim, never a target
with two owners; the same state finds its claim again.
"""

from __future__ import annotations

import random
import shlex
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import pause
from headrace.sinks.clickhouse.bookkeeping.progress_store import STOPPED_S
from headrace.sinks.target_claims import Claim, ClaimStore

_ATTEMPTS: Final = 8
"""How often pipes that start at the same moment retry."""
_MOST_NAMED: Final = 5
"""The maximum number of targets in an error message."""


class TargetOwnership:
    """The claims of one pipe. Safe for threads."""

    def __init__(self, store: ClaimStore, owner: Claim, sink: str, *, shared: bool) -> None:
        """`owner`: a claim without a target. `sink`: its address, without password. `shared`: whether other pipes may write there, too."""
        self._store, self._owner, self._sink, self._shared = store, owner, sink, shared
        self._owned: dict[str, Claim] = {}
        self._recorded: dict[str, Claim] = {}
        """Claims that earlier runs of the same state recorded."""
        self._lock = threading.Lock()

    def claim(self, targets: Iterable[str]) -> list[Claim]:
        """Claim targets and return the new claims; raise `DefiniteError` if another pipe owns one."""
        with self._lock:
            now_us = time.time_ns() // 1000
            wanted = {target: replace(self._owner, target=target, claimed_us=now_us) for target in targets if target not in self._owned}
            fresh: list[Claim] = []
            if wanted and self._shared:
                self._store.remove([claim for claim in self._store.read() if claim.state == self._owner.state and claim.target in wanted])
            elif wanted:
                wanted, fresh = self._claim(wanted)
            self._owned |= wanted
            return fresh

    @contextmanager
    def creating(self, targets: Iterable[str]) -> Iterator[None]:
        """Claim targets that are created in the block. Claims on targets that cannot be created are released."""
        wanted = set(targets)
        fresh = self.claim(wanted)
        try:
            yield
        except DefiniteError:
            self._release(fresh)
            raise
        self._confirm(wanted)

    def _release(self, claims: Sequence[Claim]) -> None:
        with self._lock:
            self._store.remove(claims)
            for claim in claims:
                del self._owned[claim.target]

    def _confirm(self, targets: Collection[str]) -> None:
        with self._lock:
            pending = {target for target in targets if not self._owned[target].created}
            if not pending or self._shared:
                return
            created = {target: replace(self._owned[target], created=True) for target in self._store.existing(pending)}
            self._store.write(list(created.values()))
            self._owned |= created

    def keep_only(self, targets: Collection[str]) -> None:
        """Release claims on targets that the pipe no longer writes."""
        with self._lock:
            self._store.remove([claim for target, claim in self._recorded.items() if target not in targets])
            self._recorded.clear()

    def _claim(self, wanted: Mapping[str, Claim]) -> tuple[dict[str, Claim], list[Claim]]:
        """Return the recorded claims, and those of them that are new."""
        for _ in range(_ATTEMPTS):
            found = self._store.read()
            self._recorded = {claim.target: claim for claim in found if claim.state == self._owner.state}
            others = [claim for claim in found if claim.target in wanted and claim.state != self._owner.state]
            rivals = self._rivals(others)
            if rivals:
                raise self._refused(rivals)
            kept = {target: claim for target, claim in self._recorded.items() if target in wanted}
            now = {target: replace(claim, created=kept[target].created) if target in kept else claim for target, claim in wanted.items()}
            # A claim that ended with its table would count again as soon as this pipe creates the table.
            self._store.remove(others)
            fresh = [claim for target, claim in now.items() if target not in kept]
            moved = [claim for target, claim in now.items() if target in kept and not kept[target].is_of(self._owner)]
            if not fresh and not moved:
                return now, fresh
            self._store.write([*fresh, *moved])
            rivals = self._rivals([claim for claim in self._store.read() if claim.target in wanted and claim.state != self._owner.state])
            if not rivals:
                return now, fresh
            self._store.remove(fresh)
            pause(random.uniform(0.05, 1.0))
        raise self._refused(rivals)

    def _rivals(self, others: Collection[Claim]) -> list[Claim]:
        """Return the valid claims: not those of dropped targets or of a former state of this directory."""
        counting = [claim for claim in others if not claim.is_replaced_by(self._owner)]
        created = {claim.target for claim in counting if claim.created}
        dropped = created - self._store.existing(created) if created else set()
        return [claim for claim in counting if not (claim.created and claim.target in dropped)]

    def _refused(self, rivals: Collection[Claim]) -> DefiniteError:
        first = min(rivals, key=lambda claim: claim.target)
        targets = sorted({claim.target for claim in rivals if claim.state == first.state})
        more = f" and {len(targets) - _MOST_NAMED} more" if len(targets) > _MOST_NAMED else ""
        seen_us = self._store.last_seen_us(first)
        seen = f"last seen {_moment(seen_us)}" if seen_us else f"since {_moment(first.claimed_us)}"
        remedy = f"headrace release {shlex.quote(self._sink)} {first.state}"
        return DefiniteError(
            f"another pipe writes to the target {', '.join(targets[:_MOST_NAMED])}{more}: pipe {first.pipe} from {first.source}, state "
            f"directory {first.directory} on {first.host}, {seen}",
            place=f"{self._sink}, pipe {self._owner.pipe}",
            hint="choose another target or leave these tables out; or, if the other pipe is no longer used, give up its claim: "
            f"{remedy}, then start again; or, if several pipes are to write there, start with --shared-target (shared_target = true "
            "of a pipe in a file)",
        )


def release_claims(store: ClaimStore, state: str, place: str) -> list[Claim]:
    """Release all claims of a state; raise `DefiniteError` if it has none, or if its pipe still runs."""
    claims = [claim for claim in store.read() if claim.state == state]
    if not claims:
        raise DefiniteError(
            f"no pipe with the state {state} has claimed a target", place=place, hint="take the id from the error of the pipe"
        )
    _check_stopped(store, claims[0], place)
    store.remove(claims)
    if any(claim.state == state for claim in store.read()):
        raise DefiniteError(
            f"the claim of the state {state} is still recorded", place=place, hint="check the clocks of the machines, then try again"
        )
    return claims


def _check_stopped(store: ClaimStore, claim: Claim, place: str) -> None:
    """Raise `DefiniteError` if the pipe of a claim runs: by its lock on this machine, by its heartbeat elsewhere."""
    is_here = claim.host == socket.gethostname()
    silent_s = time.time() - store.last_seen_us(claim) / 1e6
    if not (StateDirectory(Path(claim.directory), make=False).is_owned if is_here else silent_s < STOPPED_S):
        return
    wait = "" if is_here else f"; {STOPPED_S} s after its last sign of life the claim can be given up"
    raise DefiniteError(
        f"pipe {claim.pipe} still runs: state directory {claim.directory} on {claim.host}", place=place, hint=f"stop the pipe first{wait}"
    )


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
