"""The server's own reader, twice: copying the log byte for byte (the floor for every reader), and decoding it to text."""

from __future__ import annotations

from pathlib import Path

from bench.contenders.base import Command, Window
from bench.process_accounting import Usage
from bench.target import Target
from headrace.errors import DefiniteError

# caching_sha2_password without TLS needs the server's key; MariaDB has neither.
PLAIN_TRANSPORT = {"mysql": ("--ssl-mode=DISABLED", "--get-server-public-key"), "mariadb": ("--skip-ssl",)}


def remote_command(target: Target, *options: str) -> Command:
    """Build a mysqlbinlog command that reads the workload's files completely over a connection without TLS."""
    return Command(
        [
            *target.mysqlbinlog,
            "--read-from-remote-server",
            f"--host={target.host}",
            f"--port={target.port}",
            "--protocol=TCP",
            f"--user={target.user}",
            *PLAIN_TRANSPORT[target.flavour],
            *options,
            *(file.name for file in target.files),
        ],
        {"MYSQL_PWD": target.password},
    )


class RawCopy:
    """`mysqlbinlog --raw`."""

    title = "mysqlbinlog --raw (the floor)"
    note = "copies the log to files, decodes nothing"
    repeats = 3
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:
        return remote_command(target, "--raw", f"--result-file={scratch}/copy-")

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:
        for file in target.files:
            copied = (scratch / f"copy-{file.name}").stat().st_size
            if copied != file.size:
                raise DefiniteError(f"mysqlbinlog copied {copied} bytes of {file.size}", place=file.name)
        return Window(target.changes, usage.wall_s, usage.cpu_s, target.changes)


class DecodeToText:
    """`mysqlbinlog --verbose`; its text is discarded."""

    title = "mysqlbinlog --verbose"
    note = "decodes every row to text, which is discarded"
    repeats = 1
    mysql_only = False

    def command(self, target: Target, scratch: Path) -> Command:  # noqa: ARG002
        return remote_command(target, "--verbose", "--base64-output=decode-rows")

    def window(self, target: Target, scratch: Path, usage: Usage) -> Window:  # noqa: ARG002
        return Window(target.changes, usage.wall_s, usage.cpu_s, target.changes)
