"""Preflight checks of sources for `headrace check`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from headrace.cql.address import CqlAddress
from headrace.model.table_selection import Selection
from headrace.settings.settings_file import UserSettings, parse_set_flag
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.preflight import Finding


def check_server(address: MySQLAddress, chosen: Selection) -> Sequence[Finding]:
    """Check a MySQL or MariaDB server."""
    from headrace.sources.mysql.preflight.report import examine
    from headrace.sources.mysql.server.connection import connect

    connection = connect(address)
    try:
        return examine(connection, address, chosen)
    finally:
        connection.close()


def check_cluster(address: CqlAddress, chosen: Selection, settings: Iterable[str] = ()) -> Sequence[Finding]:
    """Check a ScyllaDB cluster; `settings` as for `--set`."""
    from headrace.cql.session import connect
    from headrace.sources.scylla.preflight import examine

    wanted = UserSettings()
    for one in settings:
        wanted = parse_set_flag(one).over(wanted)
    with connect(address) as session:
        return examine(session, chosen, wanted.scylla, lambda: time.time_ns() // 1000)
