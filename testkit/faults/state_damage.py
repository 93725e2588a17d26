"""Damage to the files of a stopped pipe's state directory, and the two outcomes that are allowed: a definite error, or no difference.

Each case damages one file, changes the source, and runs the pipe. After an error the remedy is executed: the whole directory is restored
from one backup, and the pipe runs again (once for each file). Either way the sink must hold the source's rows.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import DefiniteError

SCRATCH = ("relay", "spark", "lock", "helper.json")
"""Files that every start creates: `lock` is empty, and `helper.json` describes a process that has ended."""
KINDS = ("empty", "truncate", "flip", "old copy", "other pipe", "delete")
_NUMBER = re.compile(r"[0-9]+")


def roles_of(state: Path) -> dict[str, Path]:
    """Return the files of a state directory by role: of batches, the newest two files of each kind."""
    found: dict[str, Path] = {}
    for file in sorted(path for path in state.rglob("*") if path.is_file() and path.relative_to(state).parts[0] not in SCRATCH):
        inside = str(file.relative_to(state))
        if "checkpoint" not in inside or not _NUMBER.search(file.name):
            found[inside] = file
            continue
        number = int(_NUMBER.findall(file.name)[0])
        batches = sorted(int(path.name) for path in file.parent.iterdir() if path.name.isdigit())
        age = len(batches) - 1 - batches.index(number) if number in batches else len(batches)
        if age < 2:
            found[_NUMBER.sub("NEWEST" if age == 0 else "BEFORE", inside)] = file
    return found


def damage(file: Path, kind: str, draw: random.Random, old: Path | None, other: Path | None) -> bool:
    """Damage a file; return False if its content stays the same."""
    before = file.read_bytes()
    if kind == "delete":
        file.unlink()
        return True
    if kind in ("old copy", "other pipe"):
        copy = old if kind == "old copy" else other
        if copy is None or not copy.exists():
            return False
        shutil.copy(copy, file)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "truncate":
        file.write_bytes(before[: draw.randrange(1, max(len(before), 2))])
    else:
        at = draw.randrange(len(before)) if before else 0
        file.write_bytes(before[:at] + bytes([before[at] ^ (1 << draw.randrange(8))]) + before[at + 1 :] if before else b"x")
    return file.read_bytes() != before


@dataclass
class DamageTrial:
    """One stopped pipe whose files are damaged one after the other."""

    state: Path
    run: Callable[[], None]
    """Run the pipe until it has caught up."""
    change: Callable[[], None]
    """Change rows of the source."""
    check: Callable[[], None]
    """Raise if the sink does not hold the source's rows."""
    old: Path
    """An older copy of the state directory."""
    other: Path
    """The state directory of another pipe of the same kind."""
    outcomes: dict[str, str] = field(default_factory=dict)
    _remedied: set[str] = field(default_factory=set)
    """Files for which the remedy was executed."""

    def cases(self) -> Iterator[tuple[str, str]]:
        for role in roles_of(self.state):
            yield from ((role, kind) for kind in KINDS)

    def try_case(self, role: str, kind: str, seed: int) -> None:
        """Damage one file, change the source, run; then execute the remedy, if there was an error."""
        file = roles_of(self.state).get(role)
        if file is None:
            # An earlier case deleted it, and the pipe does not need it.
            return
        copies = [roles_of(directory).get(role) for directory in (self.old, self.other)]
        self.try_damage(f"{kind} {role}", lambda: damage(file, kind, random.Random(f"{seed} {role} {kind}"), *copies))

    def try_damage(self, name: str, injure: Callable[[], bool]) -> None:
        backup = self.state.with_name("backup")
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self.state, backup, ignore=shutil.ignore_patterns("relay", "spark"))
        if not injure():
            return
        self.change()
        try:
            self.run()
            self.outcomes[name] = "no difference"
        except DefiniteError as error:
            if not error.place or not error.hint:
                raise AssertionError(f"{name}: the error names no place or no remedy") from error
            self.outcomes[name] = error.message
            shutil.rmtree(self.state)
            shutil.copytree(backup, self.state)
            if name.split(maxsplit=1)[-1] in self._remedied:
                # The next case that runs to its end compares the sink.
                return
            self._remedied.add(name.split(maxsplit=1)[-1])
            self.run()
        try:
            self.check()
        except AssertionError as error:
            raise AssertionError(f"after {name} ({self.outcomes[name]}) the sink differs from the source") from error
