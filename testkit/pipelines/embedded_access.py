"""The password of embedded servers in tests, and their addresses.

`set_password` sets it for servers that this process or its children start (HEADRACE_SERVE_PASSWORD), and for sinks that are addressed as
`clickhouse://default@127.0.0.1:PORT` (HEADRACE_SINK_PASSWORD). A test of the random password removes both variables.
"""

from __future__ import annotations

import base64
import os
from typing import Final

from headrace.embedded.process import PASSWORD_VARIABLE, EmbeddedServer
from headrace.sinks.clickhouse.server.url import PASSWORD_VARIABLE as SINK_PASSWORD_VARIABLE
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

PASSWORD: Final = "embedded-in-tests"


def set_password() -> None:
    """Set `PASSWORD` for all embedded servers of this process and its children, and for all sinks."""
    os.environ[PASSWORD_VARIABLE] = os.environ[SINK_PASSWORD_VARIABLE] = PASSWORD


def target_of(server: EmbeddedServer, database: str | None = None, others: tuple[tuple[str, int], ...] = ()) -> ClickHouseTarget:
    """The sink's target for a running embedded server."""
    return ClickHouseTarget(server.host, server.port, server.user, server.password, database, others=others)


def url_of(server: EmbeddedServer) -> str:
    """Return the sink URL of a running embedded server. Its password comes from the environment (`set_password`)."""
    return f"clickhouse://{server.user}@{server.host}:{server.port}"


def basic(password: str = PASSWORD, user: str = "default") -> dict[str, str]:
    """The header of HTTP basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
