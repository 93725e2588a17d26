"""The process's connection to a ClickHouse server.

Invariant: every INSERT that sends rows carries `INSERT_SETTINGS`. They turn off every server feature that silently changes or drops a
value (defaults for NULLs and missing columns, skipped unknown columns, clipped dates), and they make inserts synchronous: an answered
insert is stored and visible. A retried insert is safe because tables merge by version. The server's own deduplication is off,
because it would drop a replay into a table that was truncated in between. Tables that count duplicates are the exception: their blocks
carry deduplication tokens and use `TOKEN_SETTINGS`. Of a target with several hosts, one that answers is used (see `url`); a caller that
calls `connect` for each operation moves to the next host when one fails.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.httputil import get_pool_manager

from headrace.errors import DefiniteError, TransientError
from headrace.sinks.clickhouse.server.bounded_client import BoundedClient, connection_limits
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.server_limits import ServerLimits, limits_query, parse_limits
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, choose_host

# urllib3 warns about connections beyond the pool's size, which is normal with many pipes.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 10, 300
LONG_ANSWER_TIMEOUT_S = 24 * 3600
INSERT_SETTINGS = {
    "async_insert": "0",
    "insert_deduplicate": "0",
    # Since 26.x this setting overrides the previous one.
    "deduplicate_insert": "disable",
    "deduplicate_insert_select": "disable",
    # Merging a block before it is stored costs as much again as storing it; FINAL and the background merges do it anyway.
    "optimize_on_insert": "0",
    "input_format_null_as_default": "0",
    "input_format_defaults_for_omitted_fields": "0",
    "input_format_force_null_for_omitted_fields": "0",
    "input_format_skip_unknown_fields": "0",
    "input_format_arrow_allow_missing_columns": "0",
    "input_format_arrow_case_insensitive_column_matching": "0",
    "date_time_overflow_behavior": "throw",
}
TOKEN_SETTINGS = {
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_insert_select": "enable_when_possible",
    # A materialized view's table may lack a block that the table itself deduplicated; the same token tells.
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    # One batch is one block, of any length.
    "use_strict_insert_block_limits": "0",
}
"""Overrides for blocks with a deduplication token."""
FEW_BYTES = 1 << 20
FEW_ROWS_SETTINGS = {"max_threads": "1", "max_insert_threads": "1", "input_format_parallel_parsing": "0"}
"""Additions for an insert of less than `FEW_BYTES`: threads that the server wakes for it cost more than its rows."""
_LEAST_PARTITIONS = 2_000
WHOLE_RESULTS = {
    **dict.fromkeys(
        (
            "timeout_overflow_mode",
            "timeout_overflow_mode_leaf",
            "read_overflow_mode",
            "read_overflow_mode_leaf",
            "result_overflow_mode",
            "set_overflow_mode",
            "join_overflow_mode",
            "sort_overflow_mode",
            "group_by_overflow_mode",
            "distinct_overflow_mode",
            "transfer_overflow_mode",
        ),
        "throw",
    ),
    "limit": "0",
    "offset": "0",
}
"""A user's profile may let the server cut results without an error: rows that a statement copies or compares would be missing."""
CREATE_SETTINGS = {"enable_time_time64_type": "1", "data_type_default_nullable": "0"}
DROP_SETTINGS = {"max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}
"""Overrides for statements that drop or empty tables: the server's limits protect against typing errors."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A client (thread-safe, because it has no session) and the limits of its server."""

    client: Client
    limits: ServerLimits

    @property
    def max_partitions(self) -> int:
        """How many partitions one block may span (0: any number): the server's limit, but enough for a table that is partitioned by
        thousandths of its key."""
        allowed = int(self.client.server_settings["max_partitions_per_insert_block"].value)
        return allowed if allowed == 0 else max(allowed, _LEAST_PARTITIONS)

    def supported(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return those settings that the server knows; the others belong to other server versions."""
        return {name: value for name, value in settings.items() if name in self.client.server_settings}

    @property
    def few_rows_settings(self) -> dict[str, str]:
        """Return `FEW_ROWS_SETTINGS` as far as the server lets the user change them."""
        supported = self.supported(FEW_ROWS_SETTINGS)
        return {name: value for name, value in supported.items() if not self.client.server_settings[name].readonly}


_connections: dict[tuple[int, ClickHouseTarget], Connection] = {}
_opening: dict[tuple[int, ClickHouseTarget], threading.Lock] = {}
_lock = threading.Lock()


def connect(target: ClickHouseTarget) -> Connection:
    """Return the process's connection to the target's current host; opened once, because opening sends several queries."""
    while True:
        host = choose_host(target)
        # The process id is part of the key: a forked worker must not share its parent's sockets.
        key = (os.getpid(), host)
        with _lock:
            # A host that does not answer must not block connections to others.
            opening = _opening.setdefault(key, threading.Lock())
        with opening:
            found = _connections.get(key)
            try:
                if found is None:
                    found = _connections[key] = _open(target, host)
                return found
            except TransientError as error:
                if not error.elsewhere:
                    raise


@contextmanager
def long_running_connection(target: ClickHouseTarget) -> Iterator[Connection]:
    """A connection for a statement that may take hours."""
    connection = _open(target, choose_host(target), answer_s=LONG_ANSWER_TIMEOUT_S)
    try:
        yield connection
    finally:
        connection.client.close_connections()
        connection.client.close()


def fetch_rows(target: ClickHouseTarget, doing: str, sql: str) -> Sequence[Sequence[Any]]:
    """Return the rows of a query. `doing`: for error messages."""
    with translate_errors(target, doing):
        return connect(target).client.query(sql).result_rows


def run_statements(target: ClickHouseTarget, doing: str, *statements: str, settings: Mapping[str, str] | None = None) -> None:
    """Run statements without results, with those of the settings that the server knows."""
    connection = connect(target)
    with translate_errors(target, doing):
        for statement in statements:
            connection.client.command(statement, settings=connection.supported(settings or {}))


def run_long_statement(target: ClickHouseTarget, doing: str, statement: str, settings: Mapping[str, str]) -> None:
    with long_running_connection(target) as connection, translate_errors(target, doing):
        connection.client.command(statement, settings=connection.supported(settings))


def disconnect(target: ClickHouseTarget) -> None:
    for index in range(len(target.hosts)):
        with _lock:
            found = _connections.pop((os.getpid(), target.at(index)), None)
        if found is not None:
            found.client.close_connections()
            found.client.close()


def read_whole_results(client: Client, place: str) -> None:
    """Override the settings of the user's profile by which the server cuts results."""
    for name, wanted in WHOLE_RESULTS.items():
        found = client.server_settings.get(name)
        if found is None or found.value == wanted:
            continue
        if found.readonly:
            raise DefiniteError(
                f"the user's profile cuts results without an error ({name} = {found.value}), and the user may not change it",
                place=place,
                hint=f"remove {name} from the profile of the user, or allow the user to change it",
            )
        client.set_client_setting(name, wanted)


def _open(target: ClickHouseTarget, host: ClickHouseTarget, answer_s: int = ANSWER_TIMEOUT_S) -> Connection:
    with translate_errors(target, "connecting"), connection_limits():
        client = BoundedClient(
            "https" if target.secure else "http",
            host.host,
            host.port,
            target.user,
            target.password,
            None,
            compress=False if target.is_loopback else "lz4",
            connect_timeout=CONNECT_TIMEOUT_S,
            send_receive_timeout=answer_s,
            # An embedded server recognises it: it adds FINAL to reads by others only.
            client_name="headrace",
            autogenerate_session_id=False,
            query_retries=0,
            # A pool of its own keeps the driver from sending loopback traffic to a proxy that the environment names.
            pool_mgr=get_pool_manager() if target.is_loopback else None,
            dedicated_pool=not target.is_loopback,
        )
        try:
            read_whole_results(client, str(target))
            limits = parse_limits(client.query(limits_query()).result_rows[0])
        except BaseException:
            client.close_connections()
            client.close()
            raise
    return Connection(client, limits)
