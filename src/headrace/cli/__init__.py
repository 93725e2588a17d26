"""The command line: a module per group of commands, with `add`, which declares them, and one function per command."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace import __version__, shutdown
from headrace.argument_secrets import hide_passwords
from headrace.cli import alerts, config, control, init, replicate, run, sinks, tables, tail, tools, verify
from headrace.cli.flags import DIFFERENT, FAILED, OK, UNDECIDED
from headrace.cli.manual import INTRODUCTION, Parser, attach_pages
from headrace.errors import HeadraceError, TransientError
from headrace.extras import explain_missing_packages
from headrace.service.log_formats import JsonFormatter, TextFormatter, mask_secrets
from headrace.shortage import shortages_at

_COMMAND_MODULES = (replicate, run, init, control, config, alerts, verify, tables, tail, sinks, tools)
"""In the order of the subparsers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 differences, 2 an explained error, 3 a comparison that could not decide."""
    if argv is None:
        # The entry point has done this already, unless a program calls `main` directly.
        hide_passwords()
    arguments = build_parser().parse_args(argv)
    text = TextFormatter("%(asctime)s %(levelname)s %(message)s")
    _set_up_log(arguments.verbose, JsonFormatter() if arguments.log_format == "json" else text)
    try:
        return _run(arguments)
    except HeadraceError as error:
        if shutdown.is_requested() and isinstance(error, TransientError):
            # A peer that is away does not matter to a command that is stopping.
            logging.getLogger("headrace").debug("stopped while: %s", error)
            return OK
        # The pipe file may have set the log format.
        log = logging.getLogger("headrace")
        if any(isinstance(handler.formatter, JsonFormatter) for handler in log.handlers):
            log.error("%s", error)
        else:
            print(f"headrace: {mask_secrets(str(error))}", file=sys.stderr)
        return FAILED


def _run(arguments: argparse.Namespace) -> int:
    """Run the command; a lack of disk space, memory, files or packages is an error with a remedy."""
    written = [getattr(arguments, "state", ""), getattr(arguments, "path", ""), tempfile.gettempdir()]
    with shortages_at(*(Path(directory) for directory in written if directory)), explain_missing_packages():
        return int(arguments.run(arguments))


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="headrace", description=INTRODUCTION)
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log debug messages, too")
    parser.add_argument("--log-format", choices=("text", "json"), default="", help="log lines of text, or one JSON object per line (text)")
    # The epilog lists the commands in groups.
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for group in _COMMAND_MODULES:
        group.add(subcommands)
    # For `help` and `completion`.
    parser.set_defaults(parser=parser)
    return attach_pages(parser)


def _set_up_log(verbose: bool, formatter: logging.Formatter) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger("headrace")
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    root.propagate = False


__all__ = ["DIFFERENT", "FAILED", "OK", "UNDECIDED", "build_parser", "main"]
