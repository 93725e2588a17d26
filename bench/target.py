"""The input of a contender: a running server, and the range of its binary log that holds the workload."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATABASE = "bench"
USER = "bench"
PASSWORD = "bench"  # of a private server on loopback with generated rows


@dataclass(frozen=True, slots=True)
class LogFile:
    """One complete binary log file of the server."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Target:
    """A server on loopback whose first log files contain exactly the workload."""

    flavour: str
    version: str
    port: int
    pid: int
    changes: int
    rows: int
    """Rows in the tables after the workload."""
    files: tuple[LogFile, ...]
    start_file: str
    start_position: int
    start_gtids: str
    """The position after the tables were created, where the first transaction starts."""
    middle_file: str
    middle_position: int
    """The start of a transaction halfway through the workload. The log from here on has the same mix as the whole."""
    binlog_directory: str
    mysqlbinlog: tuple[str, ...]
    """The command of the flavour's own mysqlbinlog."""
    host: str = "127.0.0.1"
    user: str = USER
    password: str = PASSWORD
    database: str = DATABASE

    @property
    def log_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Target:
        raw: dict[str, Any] = json.loads(path.read_text())
        files = tuple(LogFile(**file) for file in raw.pop("files"))
        return cls(**{**raw, "files": files, "mysqlbinlog": tuple(raw["mysqlbinlog"])})
