"""Opens the sink of an address, with the options of its connector. Options for another kind of sink are an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import DefiniteError
from headrace.settings.settings_file import UserSettings
from headrace.sinks.base import Sink
from headrace.sinks.clickhouse.connector import CLICKHOUSE, EMBEDDED_CLICKHOUSE, embedded_path, open_clickhouse
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.registry import SINK_CONNECTORS, sink_connector
from headrace.sinks.target_claims import ClaimStore


def open_clickhouse_sink(
    address: str, *, choices: ClickHouseOptions | None = None, creates: bool = False
) -> AbstractContextManager[NamedSink[ClickHouseSink]]:
    """Open a sink that holds tables: `clickhouse://user:password@host:port/db`, or `chdb:PATH` for an embedded ClickHouse in a directory.

    `creates`: a missing directory is created, because the caller writes to the sink; otherwise it is an error.
    """
    # Commands about tables always mean the built-in connectors, also if a package has claimed their schemes.
    if not CLICKHOUSE.is_address(address) and not EMBEDDED_CLICKHOUSE.is_address(address):
        sink_connector(address).require_tables(address)
    return open_clickhouse(address, choices, creates=creates)


def open_sink(address: str, chosen: UserSettings, state: Path, host: str) -> AbstractContextManager[NamedSink[Sink]]:
    """Open a sink for change blocks. `state` is the pipe's directory, `host` is where its tasks reach this process."""
    connector = sink_connector(address)
    check_sink_sections(connector, chosen)
    if connector.open is None:
        raise DefiniteError(
            f"{connector.label} takes ScyllaDB's log only",
            place=connector.redact(address),
            hint="choose ClickHouse or Kafka for other sources",
        )
    return connector.open(OpenRequest(address, chosen.section_options(connector.section), state, host))


def check_sink_sections(connector: SinkConnector, chosen: UserSettings) -> None:
    """Raise `DefiniteError` if the settings hold options of another kind of sink."""
    for other in SINK_CONNECTORS:
        if other.section and other.section != connector.section:
            see = f" (see [{connector.section}])" if connector.section else ", which has no settings"
            chosen.check_sections((other.section,), f"this is about {other.section_subject}, and the sink is {connector.label}{see}")


@contextmanager
def open_claims(address: str) -> Iterator[tuple[ClaimStore, str]]:
    """Open the record of which pipe writes to which target of a sink; yield it with the address without secrets."""
    connector = sink_connector(address)
    if connector.open_claims is None:
        raise DefiniteError(
            f"{connector.label} does not record which pipe writes to it",
            place=connector.redact(address),
            hint="give ClickHouse, Kafka or CQL",
        )
    with connector.open_claims(address) as found:
        yield found


def embedded_connection(address: str) -> dict[str, str]:
    """Return host, port, user, password and URL of the running server of `chdb:PATH`."""
    path = embedded_path(address)
    holder = read_serving_process(path.resolve())
    if holder is None or not holder.port:
        raise DefiniteError(
            "no embedded server runs on the directory",
            place=str(path.resolve()),
            hint=f"start one: headrace serve {path}; or start the pipe that fills it",
        )
    account = read_account(path.resolve())
    # A client cannot connect to "any address".
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(holder.host, holder.host)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{holder.port}/"
    return {"host": host, "port": str(holder.port), "user": account.user, "password": account.password, "url": url}
