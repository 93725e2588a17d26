"""Indexes a directory of binary log files, copied from a server or still growing, for the planner.

The files are read in place and never changed; tasks map them into memory. They are indexed in the order of their numbers, with the same
checks as a server's stream (sizes, positions, checksums). Nothing is skipped: a missing number, a file that ends inside a transaction
although another follows, or an unreadable file is an error. An unfinished transaction at the end of the last file waits for the rest.
Indexing again gives the same groups, so a run can start at any position.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError, HeadraceError
from headrace.sources.mysql.binlog.commit_times import BacklogWriter
from headrace.sources.mysql.binlog.relay import Appender, IndexedLog, IndexedLogFile
from headrace.sources.mysql.events.event_types import FORMAT_DESCRIPTION_EVENT, HEADER_SIZE, MAGIC, parse_format_description
from headrace.sources.mysql.server.log_identity import LogReplaced, created_at, digest_of
from headrace.sources.mysql.server.position import BinlogPosition, file_number

_NAME: Final = re.compile(r"(?P<base>.+)\.[0-9]{6,}")
_ENCRYPTED: Final = b"\xfdbin"
_PIECE_BYTES: Final = 16 << 20
_POLL_S: Final = 0.5
_COPY_AGAIN: Final = "copy the files again, while the server does not write to them (FLUSH BINARY LOGS first)"


@dataclass(frozen=True, slots=True)
class FileHead:
    """The server that wrote a log file, and whether its events end in a checksum."""

    server_version: str
    server_id: int
    checksum: bool
    created: int
    """When the file was created, in seconds since 1970."""

    @property
    def mariadb(self) -> bool:
        return "MariaDB" in self.server_version


def find_files(directory: Path) -> list[Path]:
    """Return a server's log files in a directory, in the order in which they were written."""
    try:
        found = [entry for entry in directory.iterdir() if _NAME.fullmatch(entry.name) and entry.is_file()]
    except OSError as error:
        raise DefiniteError(f"the directory of log files cannot be read: {error}", place=str(directory), hint="check the path") from error
    if not found:
        raise DefiniteError(
            "the directory holds no binary log files", place=str(directory), hint="name a directory with files such as binlog.000001"
        )
    bases = sorted({entry.name.rpartition(".")[0] for entry in found})
    if len(bases) > 1:
        raise DefiniteError(
            f"the directory holds log files of several names: {', '.join(bases)}", place=str(directory), hint="keep the files of one in it"
        )
    found.sort(key=lambda entry: file_number(entry.name))
    for one, other in pairwise(found):
        if file_number(other.name) != file_number(one.name) + 1:
            raise DefiniteError(
                f"log files are missing between {one.name} and {other.name}", place=str(directory), hint="copy the missing files too"
            )
    return found


def read_head(path: Path) -> FileHead:
    """Parse the first event of a file; raise if it is no readable log file."""
    place = f"{path}:{len(MAGIC)}"
    with path.open("rb") as file:
        magic, header = file.read(len(MAGIC)), file.read(HEADER_SIZE)
        if magic == _ENCRYPTED:
            raise DefiniteError("the log file is encrypted", place=str(path), hint="read the log through its server, which decrypts it")
        size = int.from_bytes(header[9:13], "little")
        if magic != MAGIC or len(header) < HEADER_SIZE or header[4] != FORMAT_DESCRIPTION_EVENT or size <= HEADER_SIZE:
            raise DefiniteError("this is not a binary log file, or its beginning is damaged", place=str(path), hint=_COPY_AGAIN)
        body = file.read(size - HEADER_SIZE)
    if len(body) < size - HEADER_SIZE:
        raise DefiniteError("the log file breaks off in its first event", place=str(path), hint=_COPY_AGAIN)
    described = parse_format_description(body, place)
    return FileHead(described.server_version, int.from_bytes(header[5:9], "little"), described.checksum, created_at(header))


def last_position(directory: Path, epoch: int = 0) -> BinlogPosition:
    """Return the current end of the last whole group."""
    newest = find_files(directory)[-1]
    return BinlogPosition(newest.name, whole_until(newest), epoch=epoch)


def whole_until(path: Path, end: int | None = None) -> int:
    """Return the end of the last whole group of a file, or of its bytes up to `end`."""
    appender = Appender(IndexedLogFile(path.name, path, len(MAGIC)), read_head(path).checksum, in_place=True)
    for piece in _pieces(path, len(MAGIC), end):
        appender.append(piece)
        if appender.fault is not None:
            raise appender.fault
    return appender.safe_end


def check_file(directory: Path, position: BinlogPosition) -> None:
    """Raise if the directory does not hold the log of the position."""
    identity, path = position.identity, directory / position.file
    if identity is None or not path.exists():
        return
    created = read_head(path).created
    with path.open("rb") as file:
        file.seek(identity.start)
        found = file.read(identity.end - identity.start)
    if created != identity.created or digest_of(found, identity.start) != identity.digest:
        raise LogReplaced(
            f"the log file {position.file} is not the one that was read up to {position}",
            place=str(path),
            hint="restore the former files, or read the new ones with a new state directory and new target tables",
        )


class DirectoryLog(IndexedLog):
    """Indexes a directory's files from a position on, and follows their growth."""

    def __init__(self, directory: Path, limit_bytes: int, backlog: BacklogWriter | None = None) -> None:
        super().__init__(limit_bytes, backlog)
        self._directory = directory

    def _begin(self, position: BinlogPosition) -> None:
        names = [path.name for path in find_files(self._directory)]
        if position.file not in names:
            raise DefiniteError(
                f"the directory has no log file {position.file}, where reading must go on; it has {names[0]} to {names[-1]}",
                place=str(self._directory),
                hint="copy the missing files too; to start over, remove the state directory and the target tables",
            )
        self._enter(self._directory / position.file, position.offset)
        check_file(self._directory, position)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._index(self.files[-1])
        except HeadraceError as error:
            self._fail(error)
        # The thread must hand every error to the reader before it ends.
        except Exception as error:
            self._fail(DefiniteError(f"the log files cannot be followed: {type(error).__name__}: {error}", place=str(self._directory)))
            raise

    def _enter(self, path: Path, offset: int) -> None:
        size = path.stat().st_size
        if offset > size:
            raise DefiniteError(
                f"log file {path.name} ends at {size}, before the position {offset} where reading must go on",
                place=str(self._directory),
                hint=_COPY_AGAIN,
            )
        head, log_file = read_head(path), self._open(path.name, path, offset)
        log_file.checksum, log_file.created = head.checksum, head.created

    def _index(self, log_file: IndexedLogFile) -> None:
        """Index one file until another follows it."""
        appender = Appender(log_file, log_file.checksum, in_place=True)
        at = max(log_file.safe_end, log_file.start)
        while not self._stopping:
            # Check for the next file before the size: once it exists, this file is complete.
            follows = self._follower(log_file)
            size = log_file.path.stat().st_size
            if size < at:
                raise DefiniteError(
                    f"log file {log_file.name} became shorter while it was read", place=str(log_file.path), hint=_COPY_AGAIN
                )
            known = self._newest_identity() if size > at else None
            if known is not None:
                check_file(self._directory, known)
            for piece in _pieces(log_file.path, at, size):
                at += len(piece)
                self._append(appender, piece)
                if self._stopping:
                    return
            if follows is not None:
                if appender.safe_end != size:
                    raise DefiniteError(
                        f"log file {log_file.name} breaks off inside a transaction, but {follows.name} follows it",
                        place=f"{log_file.path}:{appender.safe_end}",
                        hint=f"{_COPY_AGAIN}; if the server crashed there, cut the file off at that place",
                    )
                self._enter(follows, len(MAGIC))
                return
            if self.backlog is not None:
                self.backlog.heard(idle=False)
            with self.changed:
                self.changed.wait_for(lambda: self._stopping, _POLL_S)

    def _follower(self, log_file: IndexedLogFile) -> Path | None:
        number = file_number(log_file.name)
        return next((path for path in find_files(self._directory) if file_number(path.name) == number + 1), None)


def _pieces(path: Path, start: int, end: int | None = None) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes [start, end) of a file in parts."""
    with path.open("rb", buffering=0) as file:
        stop = os.fstat(file.fileno()).st_size if end is None else end
        file.seek(start)
        while start < stop:
            piece = np.empty(min(_PIECE_BYTES, stop - start), dtype=np.uint8)
            got = file.readinto(piece.data) or 0
            if not got:
                raise DefiniteError(f"log file {path.name} became shorter while it was read", place=str(path), hint=_COPY_AGAIN)
            yield piece[:got]
            start += got
