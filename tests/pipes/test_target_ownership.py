"""Claims on targets, with an in-memory store and random delays: two pipes never own one target."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from headrace.errors import DefiniteError
from headrace.pipes.lifecycle import target_ownership
from headrace.pipes.lifecycle.target_ownership import TargetOwnership, release_claims
from headrace.sinks.target_claims import Claim


class Store:
    """Claims in memory; every call takes a random time, so that threads interleave."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], Claim] = {}
        self.there: set[str] = set()
        self.seen_us = 0
        self.writes = 0
        self._lock = threading.Lock()

    def read(self) -> list[Claim]:
        time.sleep(random.uniform(0, 0.002))
        with self._lock:
            return list(self.claims.values())

    def write(self, claims: Sequence[Claim]) -> None:
        time.sleep(random.uniform(0, 0.002))
        with self._lock:
            self.writes += len(claims)
            self.claims |= {(claim.target, claim.state): claim for claim in claims}

    def remove(self, claims: Sequence[Claim]) -> None:
        with self._lock:
            for claim in claims:
                self.claims.pop((claim.target, claim.state), None)

    def existing(self, targets: Collection[str]) -> set[str]:
        return self.there.intersection(targets)

    def last_seen_us(self, claim: Claim) -> int:
        del claim
        return self.seen_us


def owner(number: int) -> Claim:
    return Claim("", f"state{number}", f"pipe{number}", "mysql://h/", f"host{number}", f"/state/{number}", 0)


def owns(store: Store, of: Claim, *targets: str, shared: bool = False) -> TargetOwnership:
    """Claim targets and create them, as a pipe does."""
    made = TargetOwnership(store, of, "chdb:x", shared=shared)
    with made.creating(targets):
        store.there |= set(targets)
    return made


def refused(store: Store, of: Claim, *targets: str) -> DefiniteError:
    with pytest.raises(DefiniteError, match="another pipe writes to the target") as caught:
        TargetOwnership(store, of, "chdb:x", shared=False).claim(targets)
    return caught.value


@pytest.mark.parametrize("round_", range(20))
def test_of_pipes_that_start_together_one_wins(round_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_ownership, "pause", lambda _: time.sleep(random.uniform(0.001, 0.03)))
    random.seed(round_)
    store, together, won = Store(), threading.Barrier(3), []

    def start(number: int) -> None:
        mine = TargetOwnership(store, owner(number), "chdb:x", shared=False)
        together.wait()
        try:
            # Each also has its own target, which must not stay claimed after a failure.
            mine.claim(["w.t", f"w.own{number}"])
            won.append(number)
        except DefiniteError:
            pass

    threads = [threading.Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert set(store.claims) == {("w.t", f"state{won[0]}"), (f"w.own{won[0]}", f"state{won[0]}")}


def test_a_restart_writes_nothing_and_a_moved_state_is_recorded() -> None:
    store = Store()
    owns(store, owner(1), "w.t")
    written = store.writes
    owns(store, owner(1), "w.t")
    assert store.writes == written
    owns(store, replace(owner(1), host="other", directory="/moved"), "w.t")
    [claim] = store.claims.values()
    assert (claim.host, claim.directory, claim.created) == ("other", "/moved", True)
    refused(store, owner(2), "w.t")


def test_a_new_state_of_the_same_pipe_and_directory_inherits() -> None:
    store = Store()
    owns(store, owner(1), "w.t")
    for other in ({"pipe": "x"}, {"source": "mysql://other/"}, {"host": "x"}, {"directory": "/x"}):
        refused(store, replace(owner(1), state="new", **other), "w.t")
    owns(store, replace(owner(1), state="new"), "w.t")
    assert {claim.state for claim in store.claims.values()} == {"new"}
    # The removed state is restored from a backup to another directory.
    refused(store, replace(owner(1), directory="/backup"), "w.t")


def test_a_claim_ends_with_its_target_but_counts_before_the_target_exists() -> None:
    store = Store()
    TargetOwnership(store, owner(1), "chdb:x", shared=False).claim(["w.t"])
    refused(store, owner(2), "w.t")
    owns(store, owner(1), "w.t")
    store.there.clear()
    owns(store, owner(2), "w.t")
    refused(store, owner(1), "w.t")


def test_claims_of_failed_creations_are_released() -> None:
    store = Store()
    owns(store, owner(1), "w.kept")
    mine = TargetOwnership(store, owner(1), "chdb:x", shared=False)
    with pytest.raises(DefiniteError, match="no"), mine.creating(["w.kept", "w.t"]):
        raise DefiniteError("no")
    assert {claim.target for claim in store.claims.values()} == {"w.kept"}


def test_what_is_no_longer_chosen_is_given_up() -> None:
    store = Store()
    owns(store, owner(1), "w.t", "w.u")
    owns(store, owner(1), "w.u").keep_only({"w.u"})
    owns(store, owner(2), "w.t")
    refused(store, owner(1), "w.t", "w.u")


def test_the_error_names_the_owner_and_its_claims_can_be_given_up() -> None:
    store = Store()
    owns(store, owner(1), *(f"w.t{number}" for number in range(7)))
    store.seen_us = 1_700_000_000_000_000
    error = refused(store, owner(2), *(f"w.t{number}" for number in range(7)))
    assert error.message == (
        "another pipe writes to the target w.t0, w.t1, w.t2, w.t3, w.t4 and 2 more: pipe pipe1 from mysql://h/, state directory "
        "/state/1 on host1, last seen 2023-11-14 22:13:20 UTC"
    )
    assert "headrace release chdb:x state1, then start again" in error.hint
    store.seen_us = time.time_ns() // 1000
    with pytest.raises(DefiniteError, match="pipe pipe1 still runs"):
        release_claims(store, "state1", "chdb:x")
    store.seen_us -= 60_000_000
    assert len(release_claims(store, "state1", "chdb:x")) == 7
    with pytest.raises(DefiniteError, match="no pipe with the state state1"):
        release_claims(store, "state1", "chdb:x")
    owns(store, owner(2), "w.t0")


def test_shared_targets() -> None:
    store = Store()
    owns(store, owner(1), "w.t")
    owns(store, owner(2), "w.t", shared=True)
    owns(store, owner(1), "w.t")
    refused(store, owner(2), "w.t")
    owns(store, owner(1), "w.t", shared=True)
    owns(store, owner(2), "w.t")
