"""A profile of the user that cuts results without an error: every statement of a connection overrides it."""

from __future__ import annotations

import pytest
from clickhouse_connect.driver.models import SettingDef

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import (
    DROP_SETTINGS,
    WHOLE_RESULTS,
    Connection,
    connect,
    read_whole_results,
    run_statements,
)
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

ROWS = "SELECT number FROM numbers(1000)"


@pytest.fixture
def connection(target: ClickHouseTarget) -> Connection:
    return connect(target)


def test_the_server_knows_the_settings(connection: Connection) -> None:
    assert WHOLE_RESULTS.keys() <= connection.client.server_settings.keys()
    assert [name for name in WHOLE_RESULTS if connection.client.get_client_setting(name) is not None] == [], "the defaults need no override"


@pytest.mark.parametrize(
    ("name", "value", "more"),
    [
        ("limit", "7", {}),
        ("offset", "7", {}),
        ("result_overflow_mode", "break", {"max_result_rows": "10", "max_block_size": "5"}),
        ("read_overflow_mode", "break", {"max_rows_to_read": "10", "max_block_size": "5"}),
    ],
)
def test_a_profile_cannot_cut_results(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, name: str, value: str, more: dict[str, str]
) -> None:
    # Parameters of the connection stand for the profile: the embedded server has none.
    client = connection.client
    for key, given in {name: value, **more}.items():
        client.set_client_setting(key, given)
    assert len(client.query(ROWS).result_rows) < 1000, "the setting cuts results"
    monkeypatch.setitem(client.server_settings, name, SettingDef(name, value, 0))
    read_whole_results(client, "here")
    if more:
        with pytest.raises(Exception, match="Limit for"):
            client.query(ROWS)
    else:
        assert len(client.query(ROWS).result_rows) == 1000


def test_a_profile_that_may_not_be_changed_is_an_error(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.client.server_settings, "limit", SettingDef("limit", "7", 1))
    with pytest.raises(DefiniteError, match="limit = 7") as raised:
        read_whole_results(connection.client, "here")
    assert "allow the user to change it" in raised.value.hint


def test_a_table_above_the_server_s_limit_is_dropped(target: ClickHouseTarget, connection: Connection) -> None:
    client, table = connection.client, f"{target.database}.large"
    filled = f"CREATE TABLE {table} ENGINE = MergeTree ORDER BY n AS SELECT number AS n FROM numbers(1000)"
    run_statements(target, "preparing", f"CREATE DATABASE {target.database}", filled)
    client.set_client_setting("max_table_size_to_drop", "1")
    try:
        for verb in ("TRUNCATE", "DROP"):
            with pytest.raises(DefiniteError, match="error 359"):
                run_statements(target, "dropping", f"{verb} TABLE {table}")
            run_statements(target, "dropping", f"{verb} TABLE {table}", settings=DROP_SETTINGS)
            if verb == "TRUNCATE":
                run_statements(target, "filling", f"INSERT INTO {table} SELECT number FROM numbers(1000)")
    finally:
        client.set_client_setting("max_table_size_to_drop", client.server_settings["max_table_size_to_drop"].value)
