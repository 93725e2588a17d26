"""Damaged logs: a recording cut into units, the rows of each unit, and the rules that hold when it is damaged.

Blind damage to a log with checksums: nothing from the damaged event on is published. Believed damage: a definite error, or rows that could
have come from a server; and damage inside of one row event changes no row of another. Mapped files and arenas end at forbidden pages in
part of the runs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.kernels.arrow_arena import Arena, Slot
from headrace.sources.mysql.rows import row_decoder
from headrace.sources.mysql.segments import event_expander
from headrace.sources.mysql.segments.segment_reader import read_segment
from testkit.faults.damage import HEADER, Damaged, Unit, assemble, damage_and_repair, damage_blindly, event_starts, split_events
from testkit.faults.fences import Fenced
from testkit.generators.plausible import check_block
from testkit.oracles.binlogs import images_of, scan_log
from testkit.oracles.chain import FIRST, Chain
from testkit.recordings.recordings import Recording, stored_image

SOAK = bool(os.environ.get("HEADRACE_SOAK"))
_FENCED_EVERY = 8
_CUT_STRIDE = 7
_HEADS = frozenset({15, 35, 161, 163})
_ROW_EVENTS = frozenset({23, 24, 25, 30, 31, 32, 39})
_DEPENDENT = ("xa",)
"""Recordings whose transactions depend on each other."""
_SHIFTED = ("compressed", "xa")
"""Recordings whose rows are not at the offsets of their versions."""


class DamagedLog:
    """A recording, cut into units, and what each must decode to."""

    def __init__(self, recording: Recording, directory: Path) -> None:
        self.recording = recording
        self.chain = Chain(directory, recording.file, mariadb=recording.flavour == "mariadb")
        self.catalogs = [recording.catalog(every_before=flag) for flag in (True, False)]
        self.ends = _group_ends(recording)
        self.units = list(_units(recording, self.ends))
        self.bounds = _safe_bounds(self.chain, recording)
        self.images = [self._images(self.read(unit.log, unit.checksum, fenced=False)) for unit in self.units]

    def read(self, log: bytes, checksum: bool, *, fenced: bool, every_before: bool = True) -> list[ChangeBlock]:
        published = self.chain.publish(log, checksum=checksum)
        if published.fault is not None and self.recording.file in published.fault.place:
            offset = int(published.fault.place.rpartition(":")[2])
            assert published.end <= offset, f"published up to {published.end} in spite of {published.fault}"
        catalog = self.catalogs[not every_before]
        blocks: list[ChangeBlock] = []
        with _Fences(fenced):
            for segment in published.segments:
                blocks += read_segment(segment, catalog)
        if published.fault is not None:
            raise published.fault
        return blocks

    @staticmethod
    def _images(blocks: list[ChangeBlock]) -> dict[int, Any]:
        found = {image.version: stored_image(image) for image in images_of(blocks)}
        assert len(found) == sum(block.rows for block in blocks), "two images of one version"
        return found

    def try_blind(self, seed: int) -> str:
        """With checksums, everything before the damage is published, and nothing after it."""
        damaged = damage_blindly(self.recording.log, seed)
        end, fault = self.chain.scan(damaged.log, checksum=self.recording.checksum)
        if self.recording.log.startswith(damaged.log):
            assert fault is None, damaged.what
            return "a beginning"
        if _only_marks_in_use(self.recording.log, damaged.log):
            return "marked as in use"
        assert end <= damaged.at, f"published up to {end}, damaged at {damaged.at}: {damaged.what}"
        return "noticed" if fault is not None else "waits for more"

    def try_believed(self, seed: int) -> str:
        number = seed % len(self.units)
        unit = self.units[number]
        damaged = damage_and_repair(unit, seed)
        every_before = seed % 3 != 0
        try:
            blocks = self.read(damaged.log, unit.checksum, fenced=seed % _FENCED_EVERY == 0, every_before=every_before)
        except DefiniteError:
            return "error"
        for block in blocks:
            check_block(block)
        if every_before and damaged.body is not None and not self.recording.name.endswith(_SHIFTED):
            self._check_others(number, damaged, blocks)
        return "rows"

    def cuts(self) -> Iterator[Callable[[], str]]:
        """Cut the file at every offset, and cut each event at every length with a correct frame."""
        for end in range(FIRST, len(self.recording.log)):
            yield partial(self._cut_file, end)
        for number, unit in enumerate(self.units):
            for chosen in range(unit.first if number else 0, len(unit.events)):
                for end in range(HEADER, len(unit.events[chosen]), 1 if SOAK else _CUT_STRIDE):
                    yield partial(self._cut_event, number, chosen, end)

    def _cut_file(self, end: int) -> str:
        cut = self.recording.log[:end]
        published, fault = self.chain.scan(cut, checksum=self.recording.checksum)
        assert fault is None, "a shorter log is not damaged"
        assert published in self.bounds, "not on a bound"
        assert published >= max((group for group in self.ends if group <= end), default=0), "complete groups are missing"
        return "a beginning"

    def _cut_event(self, number: int, chosen: int, end: int) -> str:
        unit = self.units[number]
        events = [event[:end] if i == chosen else event for i, event in enumerate(unit.events)]
        try:
            blocks = self.read(assemble(events, unit.checksum), unit.checksum, fenced=end % _FENCED_EVERY == 0)
        except DefiniteError:
            return "error"
        for block in blocks:
            check_block(block)
        rows = {stored_image(image)[2:] for image in images_of(blocks)}
        assert rows <= {image[2:] for image in self.images[number].values()}, "a row that the recording does not have"
        return "rows"

    def _check_others(self, number: int, damaged: Damaged, blocks: list[ChangeBlock]) -> None:
        """Check that damage to one row event's body does not change the rows of other events."""
        assert damaged.body is not None
        start, end = damaged.body
        if damaged.log[start + 4] not in _ROW_EVENTS:
            return
        for block in blocks:
            for version in block.version.to_pylist():
                offset = version & 0xFFFFFFFF
                assert version in self.images[number] or start <= offset < end, "a row outside of every event"
        apart = [block for block in blocks if not any(start <= version & 0xFFFFFFFF < end for version in block.version.to_pylist())]
        for image in images_of(apart):
            assert stored_image(image) == self.images[number][image.version], "damage elsewhere changed this row"


def _safe_bounds(chain: Chain, recording: Recording) -> list[int]:
    """Return the offsets at which a file may end so that all of its groups are complete."""
    found = [FIRST]
    for start in [*event_starts(recording.log), len(recording.log)]:
        end, fault = chain.scan(recording.log[:start], checksum=recording.checksum)
        assert fault is None, fault
        if end == start:
            found.append(end)
    return found


def _group_ends(recording: Recording) -> list[int]:
    _, groups, _, _ = scan_log(recording.log[FIRST:], FIRST, checksum=recording.checksum)
    return [int(end) for end in groups[:, scan.END]]


def _units(recording: Recording, ends: list[int]) -> list[Unit]:
    events = split_events(recording.log, recording.checksum)
    first = next((i for i, event in enumerate(events) if event[4] not in _HEADS), len(events))
    if recording.name.endswith(_DEPENDENT):
        return [Unit(tuple(events), first, recording.checksum)]
    units, group, at = [], [], FIRST
    for number, event in enumerate(events):
        at += len(event) + (4 if recording.checksum or event[4] == 15 else 0)
        if number >= first:
            group.append(event)
        if at in ends:
            units.append(Unit((*events[:first], *group), first, recording.checksum))
            group = []
    return units


def _only_marks_in_use(log: bytes, damaged: bytes) -> bool:
    """Whether only the bit LOG_EVENT_BINLOG_IN_USE differs: servers change it without a new checksum."""
    flags = FIRST + 17
    return (
        len(log) == len(damaged)
        and log[:flags] == damaged[:flags]
        and log[flags + 1 :] == damaged[flags + 1 :]
        and (log[flags] ^ damaged[flags] == 1)
    )


class _FencedArena(Arena):
    """An arena that ends at a guard page."""

    def __init__(self, slots: list[Slot], rows: int, data_bytes: int) -> None:
        super().__init__(slots, rows, data_bytes)
        self.a1 = Fenced(len(self.a1)).before_end(self.a1.tobytes())
        self.a2, self.a4, self.a8 = self.a1.view(np.int16), self.a1.view(np.int32), self.a1.view(np.int64)


class _FencedFiles:
    """Replaces the module `mmap`: a mapped range ends at a guard page."""

    ALLOCATIONGRANULARITY, MAP_PRIVATE = mmap.ALLOCATIONGRANULARITY, mmap.MAP_PRIVATE
    PROT_READ, PROT_WRITE = mmap.PROT_READ, mmap.PROT_WRITE

    @staticmethod
    def mmap(descriptor: int, length: int, flags: int, prot: int, offset: int) -> Any:
        with mmap.mmap(descriptor, length, flags=flags, prot=prot, offset=offset) as mapped:
            return Fenced(length).before_end(mapped[:])


class _Fences:
    """Inside the block, mapped files and arenas end at guard pages."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def __enter__(self) -> None:
        if self._wanted:
            row_decoder.Arena = _FencedArena  # type: ignore[attr-defined]
            event_expander.mmap = _FencedFiles  # type: ignore[attr-defined,assignment]

    def __exit__(self, *_: object) -> None:
        row_decoder.Arena = Arena  # type: ignore[attr-defined]
        event_expander.mmap = mmap  # type: ignore[attr-defined]
