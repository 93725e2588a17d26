"""The registered source connectors, and how to find one by address.

To add a source: write the folder of its pipe with a `connector.py`, and list the connector here.
"""

from __future__ import annotations

from typing import Final

from headrace.pipes.debezium.connector import DEBEZIUM
from headrace.pipes.mysql.connector import BINLOG_FILES, MYSQL
from headrace.pipes.scylla.connector import SCYLLA
from headrace.pipes.spec import SourceConnector

__all__ = ["BINLOG_FILES", "DEBEZIUM", "MYSQL", "SCYLLA", "SOURCE_CONNECTORS", "find_source_connector", "source_connector"]

SOURCE_CONNECTORS: Final[tuple[SourceConnector, ...]] = (MYSQL, BINLOG_FILES, DEBEZIUM, SCYLLA)


def find_source_connector(address: str) -> SourceConnector | None:
    """Return the connector of an address; None if no source has such addresses."""
    return next((one for one in SOURCE_CONNECTORS if one.is_address(address)), None)


def source_connector(address: str) -> SourceConnector:
    """Return the connector of an address. An unknown address is MySQL's, whose parser reports the error."""
    return find_source_connector(address) or MYSQL
