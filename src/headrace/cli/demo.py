"""`headrace demo`."""

from __future__ import annotations

import argparse
import threading

from headrace.cli.flags import Subcommands, add_command
from headrace.shutdown import stop_on_signal


def add(subcommands: Subcommands) -> None:
    command = add_command(subcommands, demo, "demo", "replicate a live private database into an embedded ClickHouse and verify it")
    command.add_argument("--live", action="store_true", help="run until interrupted, and print how to query")
    command.add_argument("--shop", action="store_true", help="only the database and its customers, until interrupted")
    command.add_argument("--port", type=int, default=3307, help="of --shop: where its server listens on 127.0.0.1 (%(default)s)")
    command.add_argument("--seconds", type=float, default=20.0, help="how long the workload runs (%(default)s)")
    command.add_argument("--directory", default="", help="the folder of the demo's files (a temporary one, removed at the end)")


def demo(arguments: argparse.Namespace) -> int:
    """A live database, replicated and verified; or the database alone."""
    if arguments.shop:
        from headrace.demo.shop_command import open_shop

        closed = threading.Event()
        stop_on_signal(closed.set)
        return open_shop(arguments.port, arguments.directory, closed.is_set)
    from headrace.demo.run import run_demo

    return run_demo(live=arguments.live, seconds=arguments.seconds, directory=arguments.directory)
