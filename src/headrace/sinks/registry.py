"""The registered sink connectors, and how to find one by address.

To add a sink: write its folder with a `connector.py`, and list the connector here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.connector import CLICKHOUSE, EMBEDDED_CLICKHOUSE
from headrace.sinks.connector import SinkConnector
from headrace.sinks.cql.connector import CQL
from headrace.sinks.kafka.connector import KAFKA
from headrace.sinks.producer_connector import PRODUCER
from headrace.sinks.stdout.connector import STDOUT

SINK_CONNECTORS: Final[tuple[SinkConnector, ...]] = (CLICKHOUSE, EMBEDDED_CLICKHOUSE, KAFKA, CQL, STDOUT, PRODUCER)
_BY_PRECEDENCE: Final = (STDOUT, PRODUCER, *(one for one in SINK_CONNECTORS if one not in (STDOUT, PRODUCER)))
"""A package that claims the scheme of a built-in sink by an entry point replaces that sink."""


def join_forms(forms: Iterable[str]) -> str:
    """Return forms of addresses as a list for people."""
    *others, last = forms
    return f"{', '.join(others)} or {last}"


def find_sink_connector(address: str) -> SinkConnector | None:
    """Return the connector of an address; None if no sink has such addresses."""
    return next((one for one in _BY_PRECEDENCE if one.is_address(address)), None)


def sink_connector(address: str) -> SinkConnector:
    """Return the connector of an address; raise `DefiniteError` if no sink has such addresses."""
    found = find_sink_connector(address)
    if found is None:
        raise DefiniteError(
            f"the sink's address {address.partition(':')[0]!r}… cannot be read",
            hint=f"write {join_forms(one.form for one in SINK_CONNECTORS)}",
        )
    return found


def has_table_store(address: str) -> bool:
    """Return whether an address is that of a sink with a table store."""
    found = find_sink_connector(address)
    return found is not None and found.has_table_store


def is_topics(address: str) -> bool:
    """Return whether an address is that of a sink whose targets are topics."""
    found = find_sink_connector(address)
    return found is not None and found.is_topics


def prints_here(address: str) -> bool:
    """Return whether a sink writes to the standard output of this process."""
    found = find_sink_connector(address)
    return found is not None and found.prints


def is_same_sink(one: str, other: str) -> bool:
    """Return whether two names of sinks mean the same targets, as far as the names tell."""
    first, second = find_sink_connector(one), find_sink_connector(other)
    if first is None or first is not second:
        return one == other
    return first.is_same(one, other)


def redact_sink(address: str) -> str:
    """Return the address of a sink without its secrets."""
    found = find_sink_connector(address)
    return address.partition("?")[0] if found is None else found.redact(address)
