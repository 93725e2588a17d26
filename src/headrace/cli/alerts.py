"""`headrace alerts test`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.flags import FAILED, OK, Subcommands, add_command
from headrace.terminal_text import print_line

_FILE = "headrace.toml"


def add(subcommands: Subcommands) -> None:
    text = "try the receivers of alerts of a pipe file"
    command = subcommands.add_parser("alerts", help=text, description=text[0].upper() + text[1:] + ".")
    inner = command.add_subparsers(title="commands", required=True, metavar="COMMAND")
    testing = add_command(inner, test, "test", "send a test alert to every receiver, and report the outcome")
    testing.add_argument("name", nargs="?", default="", metavar="NAME", help="only to the receiver of [alerts.NAME] (all)")
    testing.add_argument("-f", "--file", default=_FILE, metavar="FILE", help="the file (%(default)s)")


def test(arguments: argparse.Namespace) -> int:
    """Send one alert to each receiver; the passwords of sources and sinks are not needed."""
    import time

    from headrace.alerts.receivers import send_test
    from headrace.alerts.rules import find_rules
    from headrace.config.alert_sections import read_receivers
    from headrace.config.load import read_document
    from headrace.errors import HeadraceError

    rules, link = read_receivers(read_document(Path(arguments.file)))
    failures = 0
    for rule in find_rules(rules, arguments.name):
        began = time.monotonic()
        try:
            print_line(f"{rule.name}: sent to {rule.shown}: {send_test(rule, link)}, {time.monotonic() - began:.1f} s")
        except HeadraceError as error:
            failures += 1
            print_line(f"{rule.name}: not sent: {error.message} (at {error.place})")
            print_line(f"    remedy: {error.hint}")
    return FAILED if failures else OK
