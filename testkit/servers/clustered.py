"""The embedded engine as the cluster `one` with one shard, itself, for tests of Distributed tables.

The engine does not listen; it compares the ports to recognise itself as the shard.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from headrace.embedded import __main__ as child
from headrace.embedded import server
from headrace.embedded.process import EmbeddedServer

CLUSTER = "one"
_CONFIGURED = """
    <tcp_port>9000</tcp_port>
    <remote_servers><one><shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard></one></remote_servers>
</clickhouse>"""


class ClusteredServer(EmbeddedServer):
    """An embedded server with the cluster."""

    _program: ClassVar = (str(Path(__file__).resolve()),)


def main() -> int:
    plain = server.render_config()
    server.render_config = lambda: plain.replace("\n</clickhouse>", _CONFIGURED)  # type: ignore[attr-defined]
    return child.main()


if __name__ == "__main__":
    sys.exit(main())
