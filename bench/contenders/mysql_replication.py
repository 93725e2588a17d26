"""python-mysql-replication decodes every row to a dict. It is so slow that it reads a sample from the middle of the log; its figures are
scaled.
"""

from __future__ import annotations

from pathlib import Path

from bench.contenders.base import Command, Stopwatch, Window, python_command, read_window
from bench.process_accounting import Usage
from bench.target import Target
from headrace.errors import DefiniteError

SAMPLE_CHANGES = 30_000
SERVER_ID = 907_001


class MysqlReplication:
    """`BinLogStreamReader`, row events only."""

    title = "mysql-replication (Python)"
    note = f"a sample of {SAMPLE_CHANGES:,} changes from the middle of the log, scaled"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return python_command("mysql-replication", target, scratch)

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        window = read_window(scratch)
        if window.changes < min(SAMPLE_CHANGES, target.changes // 3):
            raise DefiniteError(
                f"mysql-replication gave only {window.changes} changes", place=f"{target.middle_file}:{target.middle_position}"
            )
        return window

    def read(self, target: Target) -> Window:
        return read_sample(target)


def read_sample(target: Target) -> Window:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    login = {"host": target.host, "port": target.port, "user": target.user, "passwd": target.password, "ssl_disabled": True}
    watch = Stopwatch()
    stream = BinLogStreamReader(
        connection_settings=login,
        server_id=SERVER_ID,
        is_mariadb=target.flavour == "mariadb",
        resume_stream=True,
        log_file=target.middle_file,
        log_pos=target.middle_position,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    changes = 0
    for event in stream:
        changes += len(event.rows)
        if changes >= SAMPLE_CHANGES:
            break
    wall_s, cpu_s = watch.read()
    stream.close()
    return Window(changes, wall_s, cpu_s, changes)
