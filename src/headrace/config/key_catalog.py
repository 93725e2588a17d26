"""All sections of `headrace.toml` with their keys: one list for messages, the JSON schema and the reference page."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.config.configuration import ProcessSettings
from headrace.config.file_keys import (
    PIPE_FIELDS,
    PRODUCER_FIELDS,
    SOURCE_KEYS,
    SOURCE_OPTIONS,
    SinkKeys,
    SourceKind,
)
from headrace.settings.dataclass_fields import Field, merge_fields, setting_fields
from headrace.settings.pipe_keys import FIXED
from headrace.settings.settings_file import PRODUCER, SINK
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, TableOptions
from headrace.sinks.connector import SinkConnector
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.sources.debezium.events.options import FIXED as DEBEZIUM_FIXED
from headrace.sources.scylla.snapshot.options import FIXED as SCYLLA_FIXED
from headrace.transforms.options import TransformOptions

_KINDS: Final = {
    SourceKind.MYSQL: ("a MySQL or MariaDB server", "^(mysql|mariadb)://"),
    SourceKind.FILES: ("binary log files", "^binlog:"),
    SourceKind.TOPICS: ("Debezium's topics", "^kafka://"),
    SourceKind.SCYLLA: ("ScyllaDB", "^scylla://"),
}
_FILE_SINKS: Final = [one for one in SINK_CONNECTORS if one.section != PRODUCER]
"""A custom producer has keys that only its class knows."""
_ADDRESS_KEYS: Final = frozenset({"url", "password", "password_file"})


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of section."""

    header: str
    """The text between the brackets."""
    subject: str
    """The kind of source or sink, if the header does not determine it."""
    fields: Mapping[str, Field]
    changeable: frozenset[str]
    """The keys that may change when a pipe restarts."""
    url: str = ""
    """A regular expression that addresses of this kind match."""

    @property
    def title(self) -> str:
        return f"[{self.header}] of {self.subject}" if self.subject else f"[{self.header}]"


def source_title(kind: SourceKind) -> str:
    """Return the name of a source's section in messages."""
    return f"[sources.NAME] of {_KINDS[kind][0]}"


def sink_title(connector: SinkConnector | None) -> str:
    """Return the name of a sink's section in messages."""
    return f"[sinks.NAME] of {connector.label}" if connector is not None else "[sinks.NAME]"


@functools.cache
def list_sections() -> tuple[Section, ...]:
    """Return all sections, in the order of a file."""
    process = setting_fields(ProcessSettings)
    return (
        Section("headrace", "", process, frozenset(process) - {"state"}),
        *(_source(kind) for kind in SOURCE_KEYS),
        *(_sink([*same]) for _, same in itertools.groupby(_FILE_SINKS, lambda one: one.label)),
        Section("sinks.NAME", "a class of your own", PRODUCER_FIELDS, frozenset()),
        Section("pipes.NAME", "", PIPE_FIELDS, frozenset({"enabled", "include", "exclude", "shared_target", "patience"})),
        Section('pipes.NAME.tables."GLOB"', "ClickHouse", setting_fields(TableOptions), CHANGEABLE),
        Section('pipes.NAME.tables."GLOB"', "every sink", setting_fields(TransformOptions), frozenset()),
    )


def _source(kind: SourceKind) -> Section:
    own, choices = merge_fields(*SOURCE_KEYS[kind]), SOURCE_OPTIONS.get(kind, ("", {}))[1]
    fixed = FIXED | DEBEZIUM_FIXED | SCYLLA_FIXED
    return Section("sources.NAME", _KINDS[kind][0], {**own, **choices}, frozenset({**own, **choices}) - fixed, _KINDS[kind][1])


def _sink(connectors: Sequence[SinkConnector]) -> Section:
    """Return the section of sinks that differ by their addresses only."""
    first = connectors[0]
    fields = {**setting_fields(SinkKeys), **sink_address_fields(first), **sink_option_fields(first)}
    schemes = "|".join(scheme for one in connectors for scheme in one.schemes)
    changeable = _ADDRESS_KEYS | frozenset(sink_address_fields(first))
    changeable |= frozenset(sink_option_fields(first)) if first.changeable is None else first.changeable
    return Section("sinks.NAME", first.label, fields, changeable, f"^({schemes})")


def sink_address_fields(connector: SinkConnector | None) -> dict[str, Field]:
    """Return the keys that become part of a sink's address."""
    return {} if connector is None or connector.address_options is None else dict(setting_fields(connector.address_options))


def sink_option_fields(connector: SinkConnector | None) -> dict[str, Field]:
    """Return the option keys of a sink, without those of single tables."""
    if connector is None:
        return {}
    if connector.section == SINK:
        of_sink = {name: one for name, one in setting_fields(ClickHouseOptions).items() if name not in ("all_tables", "tables")}
        return {**of_sink, **setting_fields(TableOptions)}
    return {} if connector.options is None else dict(setting_fields(connector.options))
