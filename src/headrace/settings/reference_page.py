"""The reference of all settings: values, defaults and descriptions, from the settings classes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headrace.settings.dataclass_fields import TEXT_LIST, TEXT_PAIRS, Field, describe_type, setting_fields, to_plain
from headrace.settings.schema_policy import ALL_KINDS, ChangeKind, Policy, SchemaPolicy, allowed_policies
from headrace.settings.settings_file import DEBEZIUM, PLAIN_SECTIONS, SCHEMA_CHANGES, SCYLLA, TRANSFORMS
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, TableOptions
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.sources.debezium.events.options import FIXED as DEBEZIUM_FIXED
from headrace.sources.scylla.snapshot.options import FIXED as SCYLLA_FIXED
from headrace.transforms.options import TransformOptions

TABLES_PAGE: Final = "clickhouse"
_OF_TRANSFORMS: Final = f'{TRANSFORMS}."GLOB"'
PAGES: Final = {
    DEBEZIUM: "kafka",
    SCYLLA: "scylla",
    _OF_TRANSFORMS: "transforms",
    **{one.section: one.options_page for one in SINK_CONNECTORS if one.options_page},
}
"""The pages of sections that are not about target tables."""
BEGIN: Final = "<!-- settings: made by `headrace settings --markdown`, do not edit by hand -->"
END: Final = "<!-- end of settings -->"


class Row(NamedTuple):
    section: str
    name: str
    values: str
    default: str
    text: str
    later: bool
    """Whether it may change at a restart."""


def setting_rows() -> Iterator[Row]:
    yield from _table_rows()
    yield from (row(_OF_TRANSFORMS, one, False) for one in setting_fields(TransformOptions).values())
    for section, choices in PLAIN_SECTIONS.items():
        fixed = _fixed_keys(section)
        yield from (row(section, one, one.name not in fixed) for one in setting_fields(choices).values())


def _fixed_keys(section: str) -> Collection[str]:
    """Return the keys of a section that may not change when a pipe restarts."""
    sink = next((one for one in SINK_CONNECTORS if one.section == section), None)
    if sink is None:
        return {DEBEZIUM: DEBEZIUM_FIXED, SCYLLA: SCYLLA_FIXED}[section]
    return () if sink.changeable is None else setting_fields(PLAIN_SECTIONS[section]).keys() - sink.changeable


def _table_rows() -> Iterator[Row]:
    of_sink = [one for one in setting_fields(ClickHouseOptions).values() if one.name not in ("all_tables", "tables")]
    for section, fields in (("sink", of_sink), ('sink and sink.tables."GLOB"', setting_fields(TableOptions).values())):
        yield from (row(section, one, one.name in CHANGEABLE) for one in fields)
    yield from policy_rows()


def policy_rows() -> Iterator[Row]:
    for kind in ChangeKind:
        values = ", ".join(f"`{policy}`" for policy in allowed_policies(kind))
        yield Row(SCHEMA_CHANGES, kind.value, values, json.dumps(SchemaPolicy().of(kind)), "", True)
    yield Row(SCHEMA_CHANGES, ALL_KINDS, ", ".join(f"`{policy}`" for policy in Policy), "", "Every kind that may have this policy.", True)


def markdown(page: str = TABLES_PAGE) -> str:
    """Return the settings tables of a documentation page, between its markers."""
    rows = [one for one in setting_rows() if PAGES.get(one.section, TABLES_PAGE) == page]
    sections = dict.fromkeys(one.section for one in rows)
    titles = {section: " and ".join(f"`[{one}]`" for one in section.split(" and ")) for section in sections}
    parts = [f"**{title}**\n\n{table(one for one in rows if one.section == section)}" for section, title in titles.items()]
    return "\n\n".join([BEGIN, *parts, END]) + "\n"


def table(rows: Iterable[Row]) -> str:
    lines = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for one in rows:
        cells = (f"`{one.name}`{' ↻' if one.later else ''}", one.values, f"`{one.default}`" if one.default else "", one.text)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def row(section: str, one: Field, later: bool) -> Row:
    return Row(section, one.name, _values(one.kind), _default(one), one.text, later)


def _values(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if kind == TEXT_LIST:
        return "list of texts"
    if kind == TEXT_PAIRS:
        return "table of texts"
    return describe_type(kind).replace("a text in quotes", "text").replace('a list of texts, such as ["a", "b"]', "list of texts")


def _default(one: Field) -> str:
    value = to_plain(one.kind, one.default)
    return "" if value in ("", [], {}) else json.dumps(value)
