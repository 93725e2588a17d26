"""Draws faults from a seed: kills of every process and resets of every connection.

After a fault the pipes have a limited time to show changes that were made after its end; the time of each is recorded. Sometimes a second
fault starts before the first has ended.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testkit.soak.monitors import Clock
from testkit.soak.operator import DAEMON, DRIVER, EMBEDDED, FORKER, JAVA, SOURCE, WORKER, Operator
from testkit.soak.proxy import Fault
from testkit.soak.traffic import Gate
from testkit.soak.world import World

_OWN = {"kill the driver": 2, "kill all at once": 2, "kill the JVM": 2, "kill the embedded ClickHouse": 2, "kill the sources' forker": 1}
"""Kills of long-lived processes, with their weights."""
_PASSING = {"kill a worker": 2, "kill the workers' daemon": 1, "kill a source's process": 2}
_PEERS = {"kill mariadb": 1, "kill mysql": 1, "kill kafka": 1, "kill clickhouse": 1, "stop mariadb": 1, "stop mysql": 1}
_DOWN_S = (0.5, 6.0)
_FAULT_S = {
    Fault.RESET: (0.0, 0.0),
    Fault.REFUSE: (2.0, 10.0),
    Fault.STALL: (3.0, 25.0),
    Fault.HALF_OPEN: (3.0, 20.0),
    Fault.SLOW: (5.0, 20.0),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One fault, and the recovery of the pipes."""

    at: float
    what: str
    seconds: float
    """The duration of the fault."""
    recovery_s: Mapping[str, float]
    """By route: from the fault's end until a change that was made after it was visible."""


class Chaos:
    """Draws faults and causes them."""

    def __init__(
        self, world: World, operator: Operator, gates: Mapping[str, list[Gate]], seed: int, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._world, self._operator, self._gates = world, operator, gates
        self._random, self._say, self._clock = random.Random(f"{seed} chaos"), say, clock
        self._faults = {f"{fault} {wire}": (wire, fault) for wire in world.wires for fault in Fault}
        self.events: list[Event] = []
        self.missed: list[str] = []
        """Faults without a target at their time."""

    def draw(self, *, calm: bool) -> str:
        """Draw the next fault."""
        weights = {**_PASSING, **_PEERS, **dict.fromkeys(self._faults, 1), **({} if calm else _OWN)}
        return self._random.choices(list(weights), list(weights.values()))[0]

    def gap_s(self) -> float:
        """Draw the pause after a recovery."""
        return self._random.uniform(1.0, 8.0)

    def is_hasty(self) -> bool:
        """Draw whether the next fault starts before the end of this one."""
        return self._random.random() < 0.2

    def strike(self, what: str) -> float:
        """Cause the fault; return its duration."""
        begun = self._clock()
        self._say(f"chaos: {what}")
        if what in self._faults:
            wire, fault = self._faults[what]
            self._world.wires[wire].suffer(fault, self._random.uniform(*_FAULT_S[fault]))
        elif what.partition(" ")[2] in self._world.peers:
            self._strike_peer(*what.split(" ", 1))
        else:
            self._strike_own(what)
        return self._clock() - begun

    def _strike_peer(self, verb: str, name: str) -> None:
        peer = self._world.peers[name]
        gates = self._gates.get(name, [])
        for gate in gates:
            gate.close()
        try:
            peer.kill() if verb == "kill" else peer.stop()
        finally:
            for gate in gates:
                gate.open()
        time.sleep(self._random.uniform(*_DOWN_S))
        peer.start()

    def _strike_own(self, what: str) -> None:
        if what == "kill all at once":
            run = self._random.choice(list(self._operator.units)).run
            if run is not None:
                run.kill()
            return
        kind = {
            "kill the driver": DRIVER,
            "kill the JVM": JAVA,
            "kill the embedded ClickHouse": EMBEDDED,
            "kill the sources' forker": FORKER,
            "kill a worker": WORKER,
            "kill the workers' daemon": DAEMON,
            "kill a source's process": SOURCE,
        }[what]
        there = sorted(pid for pid, found in self._operator.processes().items() if found == kind)
        if not there:
            self.missed.append(what)
            return
        try:
            os.kill(self._random.choice(there), signal.SIGKILL)
        except ProcessLookupError:
            self.missed.append(what)
