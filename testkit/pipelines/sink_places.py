"""Sinks of the contract suites, opened through their connectors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.sinks.base import Sink
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.registry import SINK_CONNECTORS, find_sink_connector


def connector_of(name: str) -> SinkConnector:
    return next(one for one in SINK_CONNECTORS if one.name == name)


@dataclass(frozen=True)
class Place:
    """Where a sink is: its address and options."""

    address: str
    options: Any = None

    def request(self, directory: Path) -> OpenRequest:
        return OpenRequest(self.address, self.options, directory, "127.0.0.1")

    def open(self, name: str, directory: Path) -> AbstractContextManager[NamedSink[Sink]]:
        connector = connector_of(name)
        assert find_sink_connector(self.address) is connector
        assert connector.open is not None
        return connector.open(self.request(directory))

    def open_log(self, name: str, directory: Path, *, row_images: bool = False) -> AbstractContextManager[NamedSink[LogSink]]:
        connector = connector_of(name)
        assert connector.open_log is not None
        return connector.open_log(replace(self.request(directory), row_images=row_images))
