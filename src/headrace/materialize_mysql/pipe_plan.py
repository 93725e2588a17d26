"""Translates CREATE DATABASE to a pipe: arguments of `headrace replicate` and settings of its tables.

Invariant: everything in the statement is either in the plan or rejected by name with a reason; a plan contains no password. Unless the
statement says otherwise, ClickHouse's conventions apply: hidden `_sign` and `_version`, its sort key, its partitions, all in one database.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from headrace.errors import DefiniteError
from headrace.materialize_mysql.statement_parser import CreateMaterializedDatabase, TableOverride
from headrace.settings.dataclass_fields import TEXT_LIST, TEXT_PAIRS, closest_match, setting_fields
from headrace.settings.schema_policy import ChangeKind
from headrace.settings.settings_file import SCHEMA_CHANGES, PlainSettings, UserSettings, load_stored, parse_setting, split_list
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TableOptions

RETRY_MS: Final = 1000
_CONVENTIONS: Final = {"sort_key": "materialize", "partition_by": "primary", "hidden_columns": True, "keyless_views": True}
_CLAUSES: Final = {
    "ORDER BY": "sort_key",
    "PRIMARY KEY": "primary_key",
    "PARTITION BY": "partition_by",
    "SAMPLE BY": "sample_by",
    "TTL": "ttl",
}
_ADDRESS: Final = ("tls", "ca", "cert", "key", "connect_timeout", "read_timeout")
_ROWS: Final = ("max_rows_in_buffer", "max_rows_in_buffers")
_BYTES: Final = ("max_bytes_in_buffer", "max_bytes_in_buffers")
_CLICKHOUSE_SETTINGS: Final = (
    *_ROWS,
    *_BYTES,
    "max_flush_data_time",
    "max_wait_time_when_mysql_unavailable",
    "allows_query_when_mysql_lost",
    "allow_startup_database_without_connection_to_mysql",
    "materialized_mysql_tables_list",
    "use_binlog_client",
)
_FLAGS: Final = ("flush_rows", "flush_bytes", "flush_seconds", "relay_bytes", "chunk_rows", "snapshot", "zero_dates", "cascades", "master")
"""Settings that are flags of `headrace replicate`, with hyphens."""
_LISTS: Final = {"include_tables": "--tables", "exclude_tables": "--exclude"}
_UNSUPPORTED: Final = {
    "max_bytes_in_binlog_queue": "it belongs to use_binlog_client; use relay_bytes, the most log that is kept on local disk",
    "max_milliseconds_to_wait_in_binlog_queue": "nothing is dropped when the relay is full: the source waits",
    "max_bytes_in_binlog_dispatcher_buffer": "there is no such buffer",
    "max_flush_milliseconds_in_binlog_dispatcher": "use max_flush_data_time",
}


class SettingRejected(DefiniteError):
    """A setting of the statement is unknown, or cannot have this value."""


@dataclass(frozen=True, slots=True)
class PipePlan:
    """How the pipe of a database is run."""

    name: str
    source: str
    """The address, without password."""
    arguments: tuple[str, ...]
    """Of `headrace replicate`, without source, sink and state."""
    settings: PlainSettings = field(default_factory=dict)
    retry_ms: int = RETRY_MS
    """Delay before a pipe restarts after a transient error; negative: never."""
    starts_without_source: bool = False

    @property
    def chosen(self) -> UserSettings:
        return load_stored(self.settings, "the statement")


def plan_pipe(statement: CreateMaterializedDatabase) -> PipePlan:
    settings = dict(statement.settings)
    _check_known(settings)
    chosen = UserSettings({"sink": {"database": statement.name, **_CONVENTIONS}})
    if statement.cluster:
        chosen = parse_setting(("cluster",), statement.cluster, "ON CLUSTER").over(chosen)
    for name, value in settings.items():
        chosen = _chosen(name, value).over(chosen)
    tables = {f"{glob.escape(statement.database)}.{glob.escape(one.table)}": _override(one) for one in statement.overrides}
    if tables:
        chosen = load_stored({"sink": {"tables": tables}}, "TABLE OVERRIDE").over(chosen)
    return PipePlan(
        statement.name,
        _source(statement, settings),
        _arguments(statement, settings),
        chosen.plain,
        _whole(settings, "max_wait_time_when_mysql_unavailable", RETRY_MS),
        settings.get("allow_startup_database_without_connection_to_mysql", "0") == "1",
    )


def _check_known(settings: Mapping[str, str]) -> None:
    known = (
        *_CLICKHOUSE_SETTINGS,
        *_FLAGS,
        *_LISTS,
        *_ADDRESS,
        *ChangeKind,
        *setting_fields(TableOptions),
        *setting_fields(ClickHouseOptions),
    )
    for name in settings:
        if name in _UNSUPPORTED:
            raise _refused(name, "has no meaning here", _UNSUPPORTED[name])
        if name in ("database", "cluster"):
            raise _refused(name, "is given by the statement itself", "write CREATE DATABASE name ON CLUSTER cluster")
        if name not in known or name in ("all_tables", "tables"):
            near = closest_match(name, known)
            raise _refused(name, "is unknown", f"did you mean {near}?" if near else "see docs/clickhouse.md for what is known")
    if settings.get("allows_query_when_mysql_lost", "1") != "1":
        reason = "the tables stay readable when the source is away; how far they are is in headrace.positions"
        raise _refused("allows_query_when_mysql_lost", "cannot be 0", reason)
    if settings.get("use_binlog_client", "0") != "0":
        reason = "each database has its own pipe, position and connection for the log; leave it out, or set it to 0"
        raise _refused("use_binlog_client", "cannot be 1", reason)


def _chosen(name: str, value: str) -> UserSettings:
    """Return one Headrace setting as table settings."""
    if name in list(ChangeKind):
        return parse_setting((SCHEMA_CHANGES, name), value, f"SETTINGS {name}")
    known = {**setting_fields(TableOptions), **setting_fields(ClickHouseOptions)}
    if name not in known:
        return UserSettings()
    kind = known[name].kind
    if kind == TEXT_PAIRS:
        raise _refused(name, "takes a table of texts", "use TABLE OVERRIDE, or `headrace replicate` with --settings")
    if kind is bool and value in ("0", "1"):
        value = "true" if value == "1" else "false"
    if kind == TEXT_LIST:
        return load_stored({"sink": {name: [part.strip() for part in value.split(",") if part.strip()]}}, f"SETTINGS {name}")
    return parse_setting((name,), value, f"SETTINGS {name}")


def _source(statement: CreateMaterializedDatabase, settings: Mapping[str, str]) -> str:
    host = f"[{statement.host}]" if ":" in statement.host else statement.host
    query = urlencode({name.replace("_", "-"): settings[name] for name in _ADDRESS if name in settings})
    address = f"mysql://{quote(statement.user, safe='')}@{host}:{statement.port}/{quote(statement.database, safe='')}"
    return f"{address}?{query}" if query else address


def _arguments(statement: CreateMaterializedDatabase, settings: Mapping[str, str]) -> tuple[str, ...]:
    arguments = ["--name", statement.name]
    for flag, names in (("--flush-rows", _ROWS), ("--flush-bytes", _BYTES)):
        given = [_whole(settings, name, 0) for name in names if name in settings]
        if given:
            arguments += [flag, str(min(given))]
    if "max_flush_data_time" in settings:
        arguments += ["--flush-seconds", str(_whole(settings, "max_flush_data_time", 0) / 1000)]
    for name in _FLAGS:
        if name in settings:
            arguments += [f"--{name.replace('_', '-')}", settings[name]]
    database = glob.escape(statement.database)
    listed = [one.strip() for one in settings.get("materialized_mysql_tables_list", "").split(",") if one.strip()]
    for table in listed:
        arguments += ["--tables", f"{database}.{glob.escape(table)}"]
    for name, flag in _LISTS.items():
        for one in split_list(settings.get(name, "")):
            arguments += [flag, f"{database}.{one}"]
    if "--tables" not in arguments:
        arguments += ["--tables", f"{database}.*"]
    return tuple(arguments)


def _whole(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise _refused(name, "is a whole number", f"{text!r} is none") from None
    if number < 0 and name != "max_wait_time_when_mysql_unavailable":
        raise _refused(name, "cannot be negative", "leave it out for the default")
    return number


def _override(override: TableOverride) -> PlainSettings:
    own: PlainSettings = {}
    for clause, text in override.clauses:
        own[_CLAUSES[clause]] = list(split_list(text)) if clause == "ORDER BY" else text
    extra = {column.name: f"{column.type} {column.declared}".strip() for column in override.columns if column.declared}
    columns = [column for column in override.columns if not column.declared]
    parts: dict[str, dict[str, Any]] = {
        "extra_columns": {name: _with_codec(text, override, name) for name, text in extra.items()},
        "types": {column.name: column.type for column in columns if column.type},
        "codecs": {column.name: column.codec for column in columns if column.codec},
        "column_ttls": {column.name: column.ttl for column in columns if column.ttl},
        "indexes": dict(override.indexes),
    }
    return {**own, **{name: part for name, part in parts.items() if part}}


def _with_codec(text: str, override: TableOverride, name: str) -> str:
    column = next(one for one in override.columns if one.name == name)
    codec = f" CODEC({column.codec})" if column.codec else ""
    return f"{text}{codec}" + (f" TTL {column.ttl}" if column.ttl else "")


def _refused(name: str, why: str, hint: str) -> SettingRejected:
    return SettingRejected(f"the setting {name} {why}", place="SETTINGS", hint=hint)
