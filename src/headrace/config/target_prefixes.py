"""Target names per source of a pipe: the prefix, and `{source}` in table settings."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.settings.settings_file import KAFKA, SINK, TABLES, PlainSettings, UserSettings
from headrace.sinks.kafka.messages.options import TOPIC_FORMATS
from headrace.sinks.registry import has_table_store, is_topics

SOURCE: Final = "{source}"
_NAMES: Final = ("database", "target")


def apply_prefix(chosen: UserSettings, prefix: str, source: str, sink: str) -> UserSettings:
    """Return the settings for one source of a pipe."""
    if is_topics(sink):
        return UserSettings({**chosen.plain, KAFKA: _topics(chosen, prefix.replace(SOURCE, source), sink)}) if prefix else chosen
    if not has_table_store(sink):
        if prefix:
            raise DefiniteError("targets of this sink have no names to put a prefix to", place="prefix", hint="leave it out")
        return chosen
    tables = dict(chosen.plain.get(SINK, {}))
    if prefix and tables.get("target"):
        raise DefiniteError("prefix and target say both how tables are called", place="prefix", hint="put the prefix into target")
    if prefix:
        tables["target"] = f"{prefix}{{table}}"
    named = _substitute_source(tables, source)
    return UserSettings({**chosen.plain, SINK: named}) if named else chosen


def _topics(chosen: UserSettings, prefix: str, sink: str) -> PlainSettings:
    if parse_kafka_url(sink).topic:
        raise DefiniteError("the sink's address names the topic", place="prefix", hint="leave the topic out of the address, or the prefix")
    pattern = chosen.kafka.topic or TOPIC_FORMATS[chosen.kafka.format]
    return {**chosen.plain.get(KAFKA, {}), "topic": f"{prefix}{pattern}"}


def _substitute_source(choices: PlainSettings, source: str) -> PlainSettings:
    """Replace `{source}` in database and table names."""
    found: dict[str, Any] = {}
    for name, value in choices.items():
        if name in _NAMES:
            found[name] = value.replace(SOURCE, source)
        elif name == TABLES:
            found[name] = {glob: _substitute_source(own, source) for glob, own in value.items()}
        else:
            found[name] = value
    return found
