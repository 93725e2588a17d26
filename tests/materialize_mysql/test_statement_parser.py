"""CREATE DATABASE … ENGINE = MaterializeMySQL(…): parsed statements, the pipes they create, and errors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import argument_secrets, cli
from headrace.clickhouse_lexer import TokenKind, content_of
from headrace.errors import DefiniteError
from headrace.materialize_mysql.bridged_request import reject_local_files
from headrace.materialize_mysql.pipe_plan import SettingRejected, plan_pipe
from headrace.materialize_mysql.statement_parser import (
    AttachMaterializedDatabase,
    ColumnOverride,
    CreateMaterializedDatabase,
    DetachMaterializedDatabase,
    DropMaterializedDatabase,
    OtherDatabaseStatement,
    ShowCreate,
    ShowPipes,
    UnsupportedEnding,
    hide_password,
    parse_statement,
)
from headrace.materialize_mysql.token_cursor import read_tokens
from headrace.model.schema import TableName
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.settings.settings_file import parse_settings
from headrace.settings.toml_text import to_toml
from headrace.sinks.clickhouse.server.options import TargetEngine
from headrace.sources.mysql.server.connection import parse_mysql_url

PLAIN = "CREATE DATABASE shop ENGINE = MaterializeMySQL('db.example:3307', 'shop', 'reader', 's3cret')"


def created(text: str) -> CreateMaterializedDatabase:
    statement = parse_statement(text)
    assert isinstance(statement, CreateMaterializedDatabase)
    return statement


def test_the_seed_s_statement() -> None:
    statement = created(PLAIN)
    assert (statement.name, statement.host, statement.port) == ("shop", "db.example", 3307)
    assert (statement.database, statement.user, statement.password) == ("shop", "reader", "s3cret")
    assert statement.redacted == PLAIN.replace("s3cret", "[HIDDEN]")
    assert "s3cret" not in repr(statement)
    plan = plan_pipe(statement)
    assert plan.source == "mysql://reader@db.example:3307/shop"
    assert plan.arguments == ("--name", "shop", "--tables", "shop.*")
    conventions = {"sort_key": "materialize", "partition_by": "primary", "hidden_columns": True, "keyless_views": True}
    assert plan.settings == {"sink": {"database": "shop", **conventions}}
    assert "s3cret" not in repr(plan)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        *[("h:1", "h", 1), ("h", "h", 3306), ("127.0.0.1:3306", "127.0.0.1", 3306), ("[::1]:5", "::1", 5), ("[::1]", "::1", 3306)],
        *[("::1", "::1", 3306), ("[fe80::1%eth0]:5", "fe80::1%eth0", 5), ("my_db-1.example.:5", "my_db-1.example.", 5)],
    ],
)
def test_hosts_and_ports(text: str, host: str, port: int) -> None:
    statement = created(f"CREATE DATABASE a ENGINE = MaterializeMySQL('{text}', 'b', 'c', 'd')")
    assert (statement.host, statement.port) == (host, port)
    address = parse_mysql_url(plan_pipe(statement).source)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "evil/x?socket=/run/my.sock#:3306",
            "evil?ca=/etc/shadow#:1",
            "evil#:1",
            "evil/x",
            "a@evil:1",
            "evil:1:2",
            "[::1%a/b]:1",
            "[::1]x:1",
        ],
        *["[evil]/x:1", "a b:1", "a%2fb:1", "h\\\\x:1", "h\\n:1", "-h:1", "bücher.example:1", "[v1.a?x]:1", ":1", ""],
    ],
)
def test_a_host_cannot_add_to_the_source_s_address(text: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_statement(f"CREATE DATABASE a ENGINE = MaterializeMySQL('{text}', 'b', 'c', 'd')")
    assert "is no 'host:port'" in str(caught.value)


@pytest.mark.parametrize("text", ["b/c?socket=/x#", "b@evil:1/", "%2f?ca=/x", "b c", "ü", "?", "/", "..", "[HIDDEN]"])
def test_names_of_user_and_database_cannot_add_to_the_source_s_address(text: str) -> None:
    statement = created(f"CREATE DATABASE a ENGINE = MaterializeMySQL('h:1', '{text}', '{text}', 'd')")
    address = parse_mysql_url(plan_pipe(statement).source)
    assert (address.host, address.port, address.user, address.database) == ("h", 1, text, text)
    assert (address.socket, address.tls) == ("", None)


@pytest.mark.parametrize("setting", ["socket", "ca", "key=/y&cert"])
def test_the_bridge_rejects_an_address_with_local_files(setting: str) -> None:
    statement = replace(created(PLAIN), host=f"evil/x?{setting}=/etc/shadow#")
    with pytest.raises(SettingRejected, match="names a file or host of the server's machine"):
        reject_local_files(statement)
    reject_local_files(created(PLAIN))


def test_quoting_comments_and_case_are_clickhouse_s() -> None:
    text = r"""/* a */ create Database if not exists `my ``shop` on cluster 'n' engine MaterializedMySQL(
        'h:1' /* : */, "the\"db", 'o\'neil', 'a\x41\n''\\' -- the password
    ) ; """
    statement = created(text)
    assert (statement.name, statement.database, statement.user, statement.password) == ("my `shop", 'the"db', "o'neil", "aA\n'\\")
    assert (statement.if_not_exists, statement.cluster) == (True, "n")
    assert "IF NOT EXISTS" not in statement.redacted.upper()
    assert created(statement.redacted).user == "o'neil"
    assert plan_pipe(statement).source == "mysql://o%27neil@h:1/the%22db"


def test_settings_of_the_original() -> None:
    plan = plan_pipe(
        created(
            PLAIN
            + """ SETTINGS max_rows_in_buffer = 5000, max_rows_in_buffers = 4000, max_bytes_in_buffer = 1048576, max_flush_data_time = 250,
            max_wait_time_when_mysql_unavailable = -1, allows_query_when_mysql_lost = true, materialized_mysql_tables_list = 'orders, c*,x',
            allow_startup_database_without_connection_to_mysql = 1"""
        )
    )
    expected = (
        "--name shop --flush-rows 4000 --flush-bytes 1048576 --flush-seconds 0.25 --tables shop.orders --tables shop.c[*] --tables shop.x"
    )
    assert list(plan.arguments) == expected.split(" ")
    assert (plan.retry_ms, plan.starts_without_source) == (-1, True)


def test_a_binlog_client_that_is_switched_off_changes_nothing() -> None:
    """`use_binlog_client = 0`, the remedy for 1, gives the same pipe as a statement without it."""
    plain = plan_pipe(created(PLAIN))
    for value in ("0", "false"):
        assert plan_pipe(created(f"{PLAIN} SETTINGS use_binlog_client = {value}")) == plain


def test_headrace_settings() -> None:
    settings = (
        "engine = 'history', view = 1, cleanup_hours = 6, low_cardinality = 'a, b*', sort_key = 'a, id', partition_by = '', "
        "drop_table = 'keep', "
        "include_tables = 'o*, c', exclude_tables = 'old_*', snapshot = 'consistent', tls = 'required', read_timeout = 30"
    )
    plan = plan_pipe(created(f"{PLAIN} SETTINGS {settings}"))
    choices = plan.chosen.sink.of(TableName("shop", "t"))
    assert (choices.engine, choices.view, choices.cleanup_hours) == (TargetEngine.HISTORY, True, 6.0)
    assert (choices.low_cardinality, choices.sort_key, choices.partition_by) == (("a", "b*"), ("a", "id"), "")
    assert plan.chosen.schema_changes.of(ChangeKind.DROP_TABLE) is Policy.KEEP
    expected = "--name shop --snapshot consistent --tables shop.o* --tables shop.c --exclude shop.old_*"
    assert list(plan.arguments) == expected.split(" ")
    assert plan.source.endswith("?tls=required&read-timeout=30")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("use_binlog_client = 1", "the setting use_binlog_client cannot be 1"),
        ("use_binlog_client = true", "each database has its own pipe, position and connection for the log"),
        ("max_bytes_in_binlog_queue = 1", "it belongs to use_binlog_client; use relay_bytes"),
        ("allows_query_when_mysql_lost = 0", "the setting allows_query_when_mysql_lost cannot be 0"),
        ("max_rows_in_bufer = 1", "did you mean max_rows_in_buffer?"),
        ("max_rows_in_buffer = 'many'", "the setting max_rows_in_buffer is a whole number"),
        ("max_rows_in_buffer = -1", "cannot be negative"),
        ("engine = 'hist'", "engine must be one of"),
        ("rename = 'a'", "use TABLE OVERRIDE"),
        ("database = 'x'", "is given by the statement itself"),
        ("tables = 'x'", "the setting tables is unknown"),
        ("view = 'maybe'", "view must be true or false"),
    ],
)
def test_settings_that_are_refused(settings: str, said: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        plan_pipe(created(f"{PLAIN} SETTINGS {settings}"))
    assert said in str(caught.value)


OVERRIDES = """ TABLE OVERRIDE orders (
    COLUMNS (
        total Decimal(20, 2) CODEC(Delta, ZSTD(3)),
        kind LowCardinality(String),
        note CODEC(ZSTD(9)),
        ip String TTL created + INTERVAL 72 HOUR,
        year UInt16 ALIAS toYear(created),
        `the hash` MATERIALIZED cityHash64(id, total) CODEC(NONE),
        INDEX by_total total TYPE minmax GRANULARITY 4
    )
    ORDER BY (kind, id)
    PARTITION BY toYYYYMM(created, 'UTC')
    SAMPLE BY id
    TTL created + INTERVAL 1 YEAR DELETE, created + INTERVAL 1 MONTH TO VOLUME 'slow'
), TABLE OVERRIDE `odd*` (PARTITION BY tuple())"""


def test_overrides_of_tables() -> None:
    statement = created(PLAIN + OVERRIDES)
    orders, odd = statement.overrides
    assert orders.columns == (
        ColumnOverride("total", "Decimal(20, 2)", codec="Delta, ZSTD(3)"),
        ColumnOverride("kind", "LowCardinality(String)"),
        ColumnOverride("note", codec="ZSTD(9)"),
        ColumnOverride("ip", "String", ttl="created + INTERVAL 72 HOUR"),
        ColumnOverride("year", "UInt16", "ALIAS toYear(created)"),
        ColumnOverride("the hash", "", "MATERIALIZED cityHash64(id, total)", "NONE"),
    )
    assert orders.indexes == (("by_total", "total TYPE minmax GRANULARITY 4"),)
    assert dict(orders.clauses) == {
        "ORDER BY": "(kind, id)",
        "PARTITION BY": "toYYYYMM(created, 'UTC')",
        "SAMPLE BY": "id",
        "TTL": "created + INTERVAL 1 YEAR DELETE, created + INTERVAL 1 MONTH TO VOLUME 'slow'",
    }
    assert dict(odd.clauses) == {"PARTITION BY": "tuple()"}


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("CREATE DATABASE shop ENGINE = MaterializeMySQL('h:1', 'd', 'u')", "line 1, column 63", ", is expected, but there is )"),
        (
            "CREATE DATABASE shop ENGINE = MaterializeMySQL('h:x', 'd', 'u', 'p')",
            "line 1, column 48",
            "the first argument is no 'host:port'",
        ),
        (
            "CREATE DATABASE shop ENGINE = MaterializeMySQL(collection, port = 1)",
            "line 1, column 48",
            "named collections are not supported, but there is a name",
        ),
        (
            "CREATE DATABASE shop ENGINE = MaterializeMySQL(`my collection`)",
            "line 1, column 48",
            "write the four arguments: 'host:port', 'database', 'user', 'password'",
        ),
        *(
            (f"CREATE DATABASE shop ENGINE = MaterializeMySQL({arguments})", "", said)
            for arguments, said in (
                ("'h', 'd', 'u', \"secret2\"", "the password is expected, in single quotes, but there is a name"),
                ("'h', 'd', 'u', secret2", "the password is expected, in single quotes, but there is a name"),
                ("'h', 'd', 'u', 2secret", "the password is expected, in single quotes, but there is a number"),
                ("'h', 'd', 'u', 'se'cret", ") is expected, but there is a name"),
                ("`secret2`", "named collections are not supported, but there is a name"),
                ("'u:secret2@h:1', 'd', 'u', 'p'", "the first argument is no 'host:port'"),
            )
        ),
        ("CREATE DATABASE shop ENGINE = MaterializeMySQL(1)", "line 1, column 48", "'host:port' is expected, in single quotes"),
        ("CREATE DATABASE shop\nENGINE = MaterializeMySQL('h', 'd', 'u', 'secret", "line 2, column 42", "has no end"),
        (PLAIN + "\nSETTINGS a", "line 2, column 11", "= is expected, but there is the end"),
        (PLAIN + " SETTINGS a = b", "", "a number or a text is expected for a, but there is b"),
        *((PLAIN + f" SETTINGS a = {text}", "", "a number or a text is expected for a") for text in ("10k", "0x10", "1_000", "1.2.3")),
        (PLAIN + " SETTINGS a = 1, a = 2", "", "a is set twice"),
        (PLAIN + " nonsense", "", "SETTINGS, TABLE OVERRIDE or the end is expected, but there is nonsense"),
        (PLAIN + " COMMENT 'x'", "", "a comment on the database is not kept"),
        (PLAIN + " TABLE OVERRIDE t (COLUMNS (PROJECTION p (SELECT 1)))", "", "projections are not supported"),
        (PLAIN + " TABLE OVERRIDE t (COLUMNS (CONSTRAINT c CHECK 1))", "", "constraints are not supported"),
        (PLAIN + " TABLE OVERRIDE t (COLUMNS (a Int8 DEFAULT 1))", "", "DEFAULT is not supported in COLUMNS"),
        (PLAIN + " TABLE OVERRIDE t (COLUMNS (a Int8 NOT NULL))", "", "say it in the type"),
        (PLAIN + " TABLE OVERRIDE t (COLUMNS (a Int8, a Int16))", "", "the column a is repeated"),
        (PLAIN + " TABLE OVERRIDE t (GROUP BY x)", "", "COLUMNS, ORDER BY, PRIMARY KEY, PARTITION BY, SAMPLE BY or TTL is expected"),
        (PLAIN + " TABLE OVERRIDE t (ORDER BY a ORDER BY b)", "", "ORDER BY is repeated"),
        (PLAIN + " TABLE OVERRIDE t (ORDER BY)", "", "an expression is expected"),
        (PLAIN + " TABLE OVERRIDE t () TABLE OVERRIDE t ()", "", "the table t is overridden twice"),
    ],
)
def test_what_is_not_understood_is_named_and_the_password_is_not(text: str, place: str, said: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_statement(text)
    assert said in str(caught.value)
    assert "cret" not in str(caught.value)
    assert not place or caught.value.place == place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DROP DATABASE shop", DropMaterializedDatabase("shop", False)),
        ("drop database if exists `my shop` SYNC;", DropMaterializedDatabase("my shop", True)),
        ("DROP DATABASE shop ON CLUSTER 'c' NO DELAY", DropMaterializedDatabase("shop", False, "c")),
        ("DROP DATABASE shop SETTINGS max_threads = 1, a = -1, b = 'x' FORMAT Null;", DropMaterializedDatabase("shop", False)),
        ("DETACH DATABASE shop ON CLUSTER c SYNC", DetachMaterializedDatabase("shop", "c")),
        ("ATTACH DATABASE shop ON CLUSTER c", AttachMaterializedDatabase("shop", "c")),
        ("SHOW CREATE DATABASE shop", ShowCreate("shop")),
        ("RENAME DATABASE shop TO b", OtherDatabaseStatement("RENAME", "shop")),
        ("DETACH DATABASE IF EXISTS shop", DetachMaterializedDatabase("shop")),
        ("attach database `my shop`", AttachMaterializedDatabase("my shop")),
        ("TRUNCATE DATABASE shop", OtherDatabaseStatement("TRUNCATE", "shop")),
        ("DROP DATABASE IF EMPTY shop", OtherDatabaseStatement("DROP IF EMPTY", "shop")),
        ("show pipes;", ShowPipes()),
        ("SHOW DATABASES", None),
        ("SELECT 1", None),
        ("SELECT 'unclosed", None),
        ("", None),
        ("CREATE DATABASE plain", None),
        ("CREATE DATABASE plain ENGINE = Atomic COMMENT 'ENGINE = MaterializeMySQL'", None),
        ("SELECT 'CREATE DATABASE shop ENGINE = MaterializeMySQL'", None),
    ],
)
def test_which_statements_are_ours(text: str, expected: object) -> None:
    assert parse_statement(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *["DROP DATABASE shop-old", "DROP DATABASE shop.orders", "DROP DATABASE shop, b", "DROP DATABASE shop SYNC SYNC"],
        *[
            "DETACH DATABASE shop PERMANENTLY",
            "ATTACH DATABASE shop UUID 'x'",
            "ATTACH DATABASE shop SYNC",
            "DROP DATABASE shop ON CLUSTER",
        ],
        *["SHOW CREATE DATABASE shop.orders", "DROP DATABASE shop SETTINGS", "DROP DATABASE shop SETTINGS a = 1,", "DROP DATABASE shop; x"],
        "DROP DATABASE shop PARALLEL WITH DROP DATABASE b",
    ],
)
def test_text_after_the_name_is_reported(text: str) -> None:
    found = parse_statement(text)
    assert isinstance(found, UnsupportedEnding), found
    assert found.name == "shop"


@pytest.mark.parametrize(
    ("text", "hidden", "password"),
    [
        (PLAIN, PLAIN.replace("s3cret", "[HIDDEN]"), "s3cret"),
        (PLAIN + " and errors (", PLAIN.replace("s3cret", "[HIDDEN]") + " and errors (", "s3cret"),
        (PLAIN.replace("s3cret", "[HIDDEN]"), PLAIN.replace("s3cret", "[HIDDEN]"), None),
        (PLAIN.replace("s3cret", "a\\'b"), PLAIN.replace("s3cret", "[HIDDEN]"), "a'b"),
        ("SELECT 'MaterializeMySQL DATABASE'", "SELECT 'MaterializeMySQL DATABASE'", None),
    ],
)
def test_the_password_is_cut_out_of_a_statement(text: str, hidden: str, password: str | None) -> None:
    assert hide_password(text) == (hidden, password)
    assert argument_secrets.strip_secrets(text) == (hidden, {} if password is None else {argument_secrets.SOURCE: password})


def test_a_url_with_the_word_database_in_it_is_a_url() -> None:
    assert argument_secrets.strip_secrets("mysql://u:p@h/database") == ("mysql://u@h/database", {argument_secrets.SOURCE: "p"})


def test_tokens_have_their_places() -> None:
    text = "a `b``c` 'd' -- e\n1.5e3 /* f */ ,"
    found = [(token.kind, content_of(token), text[token.start : token.end]) for token in read_tokens(text)]
    assert found == [
        (TokenKind.WORD, "a", "a"),
        (TokenKind.NAME, "b`c", "`b``c`"),
        (TokenKind.STRING, "d", "'d'"),
        (TokenKind.NUMBER, "1.5e3", "1.5e3"),
        (TokenKind.SIGN, ",", ","),
        (TokenKind.END, "", ""),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sink": {"view": True, "cleanup_hours": 1.5, "sort_key": ["a", 'b"\\\x7f\n'], "types": {"a b": "String", "c": "Int8"}}},
        {"sink": {"tables": {"shop.*": {"rename": {}}, "a.b": {"target": "ü"}}}, "schema_changes": {"all": "halt"}},
    ],
)
def test_settings_survive_being_written_to_a_file(settings: dict[str, Any]) -> None:
    assert parse_settings(to_toml(settings), "f").plain == settings


def test_a_statement_from_standard_input_is_an_error_of_the_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid statement creates nothing and starts no process."""
    read, write = os.pipe()
    os.write(write, f"{PLAIN} SETTINGS nonsense = 1".encode())
    os.close(write)
    with os.fdopen(read) as text:
        monkeypatch.setattr("sys.stdin", text)
        assert cli.main(["sql", f"chdb:{tmp_path / 'ch'}", "-"]) == 2
    assert "the setting nonsense is unknown" in capsys.readouterr().err
    assert not (tmp_path / "ch").exists()


def test_overrides_become_choices_for_their_tables_alone() -> None:
    choices = plan_pipe(created(PLAIN.replace("'shop', 'r", "'sh*p', 'r") + OVERRIDES)).chosen.sink
    orders = choices.of(TableName("sh*p", "orders"))
    assert orders.sort_key == ("kind", "id")
    assert orders.partition_by == "toYYYYMM(created, 'UTC')"
    assert (orders.sample_by, orders.primary_key, orders.ttl[:16]) == ("id", "", "created + INTERV")
    assert orders.types == (("total", "Decimal(20, 2)"), ("kind", "LowCardinality(String)"), ("ip", "String"))
    assert orders.codecs == (("total", "Delta, ZSTD(3)"), ("note", "ZSTD(9)"))
    assert orders.column_ttls == (("ip", "created + INTERVAL 72 HOUR"),)
    assert orders.extra_columns == (
        ("year", "UInt16 ALIAS toYear(created)"),
        ("the hash", "MATERIALIZED cityHash64(id, total) CODEC(NONE)"),
    )
    assert orders.indexes == (("by_total", "total TYPE minmax GRANULARITY 4"),)
    assert choices.of(TableName("sh*p", "odd*")).partition_by == "tuple()"
    # Names are names, not patterns.
    assert choices.of(TableName("sh*p", "odd1")).partition_by == "primary"
    assert choices.of(TableName("shop", "orders")).sort_key == "materialize"


@pytest.mark.parametrize("verb", ["CREATE OR REPLACE", "ATTACH"])
def test_no_other_statement_takes_a_password_to_the_server(verb: str) -> None:
    with pytest.raises(DefiniteError, match="CREATE DATABASE is expected") as caught:
        parse_statement(f"{verb} DATABASE shop ENGINE = MaterializeMySQL('h:1', 'd', 'u', 'very secret')")
    assert "very secret" not in str(caught.value)
