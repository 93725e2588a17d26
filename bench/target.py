"""What a contender is given: a running server, and the stretch of its binary log that holds the workload."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATABASE = "bench"
USER = "bench"
PASSWORD = "bench"  # of a private server on loopback that holds generated rows


@dataclass(frozen=True, slots=True)
class LogFile:
    """One binary log file of the server, whole."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Target:
    """A server on loopback whose first log files, from their first byte to their last, are the workload and nothing else."""

    flavour: str
    version: str
    port: int
    pid: int
    changes: int
    rows: int
    """How many rows the tables hold in the end."""
    files: tuple[LogFile, ...]
    start_file: str
    start_position: int
    start_gtids: str
    """Just after the tables were created: the first transaction's start."""
    middle_file: str
    middle_position: int
    """A transaction's start, halfway through the workload: a stretch from here is like the whole."""
    binlog_directory: str
    mysqlbinlog: tuple[str, ...]
    """How to run the flavour's own mysqlbinlog."""
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
