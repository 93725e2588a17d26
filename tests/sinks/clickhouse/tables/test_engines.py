"""Parses the engine definitions of servers: of the real engine, of replicated servers and of ClickHouse Cloud."""

from __future__ import annotations

import pytest

from headrace.clickhouse_lexer import content_of, tokenize
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.engine_parser import (
    DistributedEngine,
    EngineParseError,
    nondeterministic_function,
    parse_distribution,
    parse_engine,
    referenced_names,
    single_column,
    split_key,
)

HOSTILE = [
    "plain",
    "wi`th",
    "back\\slash",
    "\\",
    "`",
    "``",
    "quote'",
    "''",
    'dou"ble',
    "spa ce",
    "漢字",
    "a,b",
    "tab\tnew\nline",
    "a\\nb",
    "(",
    "a)",
]


def unquote(quoted: str) -> str:
    [token] = tokenize(quoted)
    return content_of(token)


@pytest.mark.parametrize("name", HOSTILE)
def test_quoting_is_undone_by_reading(name: str) -> None:
    assert unquote(quote_name(name)) == name == unquote(quote_text(name))
    assert unquote("`" + name.replace("\\", "\\\\").replace("`", "``") + "`") == name
    assert split_key(f"{quote_name(name)}, lower({quote_name(name)})") == (quote_name(name), f"lower({quote_name(name)})")
    assert parse_engine(f"ReplacingMergeTree({quote_name(name)}, other) ORDER BY tuple()").names == (name, "other")


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("ReplacingMergeTree(v) ORDER BY (id, `a b`) SETTINGS index_granularity = 8192", "ReplacingMergeTree", ("v",)),
        ("ReplacingMergeTree ORDER BY id SETTINGS index_granularity = 8192", "ReplacingMergeTree", ()),
        (
            r"ReplacingMergeTree(`w\`\\x`, del) PARTITION BY (toYYYYMM(dt), w) PRIMARY KEY id ORDER BY (id, lower(`a b`)) SAMPLE BY id",
            "ReplacingMergeTree",
            ("w`\\x", "del"),
        ),
        ("CollapsingMergeTree(s) ORDER BY id", "CollapsingMergeTree", ("s",)),
        ("VersionedCollapsingMergeTree(s, v) ORDER BY id", "VersionedCollapsingMergeTree", ("s", "v")),
        ("MergeTree ORDER BY tuple()", "MergeTree", ()),
        ("`Null`", "Null", ()),
        ("Log", "Log", ()),
        ("Memory SETTINGS min_rows_to_keep = 100", "Memory", ()),
    ],
)
def test_engines_of_one_server(text: str, name: str, arguments: tuple[str, ...]) -> None:
    engine = parse_engine(text)
    assert (engine.name, engine.names, engine.replication, engine.full_name) == (name, arguments, "", name)


@pytest.mark.parametrize(
    ("text", "replication", "base", "path", "arguments"),
    [
        (
            "ReplicatedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', _version, is_deleted) ORDER BY id",
            "Replicated",
            "ReplacingMergeTree",
            "/clickhouse/tables/{uuid}/{shard}",
            ("_version", "is_deleted"),
        ),
        ("ReplicatedReplacingMergeTree(ver) ORDER BY id", "Replicated", "ReplacingMergeTree", "", ("ver",)),
        ("ReplicatedMergeTree('/x/it\\'s, (here)', 'r1') ORDER BY id", "Replicated", "MergeTree", "/x/it's, (here)", ()),
        ("ReplicatedMergeTree ORDER BY id", "Replicated", "MergeTree", "", ()),
        (
            "SharedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY id",
            "Shared",
            "MergeTree",
            "/clickhouse/tables/{uuid}/{shard}",
            (),
        ),
        (
            "SharedVersionedCollapsingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', sign, ver) ORDER BY id",
            "Shared",
            "VersionedCollapsingMergeTree",
            "/clickhouse/tables/{uuid}/{shard}",
            ("sign", "ver"),
        ),
        ("SharedReplacingMergeTree('/x', '{replica}', v) ORDER BY (a, b)", "Shared", "ReplacingMergeTree", "/x", ("v",)),
    ],
)
def test_engines_of_many_servers(text: str, replication: str, base: str, path: str, arguments: tuple[str, ...]) -> None:
    engine = parse_engine(text)
    assert (engine.replication, engine.name, engine.path, engine.names) == (replication, base, path, arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Distributed('c', 'd', 't_local', cityHash64(id, 'a)'))", DistributedEngine("c", "d", "t_local", "cityHash64(id, 'a)')")),
        ("Distributed('c', 'd', 't_local')", DistributedEngine("c", "d", "t_local")),
        ("Distributed(`my cluster`, d, t, rand(), 'policy')", DistributedEngine("my cluster", "d", "t", "rand()")),
        ("Distributed('c', '', 't', intDiv(id, 10)) SETTINGS fsync_after_insert = 1", DistributedEngine("c", "", "t", "intDiv(id, 10)")),
    ],
)
def test_tables_behind_a_distributed_table(text: str, expected: DistributedEngine) -> None:
    assert parse_distribution(parse_engine(text)) == expected


def test_settings() -> None:
    text = "ReplacingMergeTree(settings) ORDER BY (settings, x) SETTINGS index_granularity = 100, storage_policy = 'a, b', x = -1.5"
    engine = parse_engine(text)
    assert dict(engine.settings) == {"index_granularity": "100", "storage_policy": "a, b", "x": "-1.5"}
    assert (engine.setting("index_granularity"), engine.setting("nothing")) == ("100", None)
    assert parse_engine("MergeTree ORDER BY id").settings == ()


def test_the_old_way_of_arguments_is_seen() -> None:
    assert parse_engine("MergeTree(EventDate, (CounterID, EventDate), 8192)").names is None


@pytest.mark.parametrize("text", ["", "(", "ReplacingMergeTree(v", "ReplacingMergeTree(`v)", "'x'", "Distributed('c"])
def test_unknown_input_is_an_error(text: str) -> None:
    with pytest.raises(EngineParseError):
        parse_engine(text)


def test_an_unknown_distribution_is_reported() -> None:
    for text in ("Distributed('c', currentDatabase(), 't')", "Distributed('c')", "MergeTree"):
        with pytest.raises(EngineParseError):
            parse_distribution(parse_engine(text))


def test_keys_are_cut_at_their_own_commas() -> None:
    assert split_key("") == ()
    assert split_key("id") == ("id",)
    assert split_key("(`id`)") == ("`id`",)
    assert split_key("tuple(id, f(a, b))") == ("id", "f(a, b)")
    assert split_key("(id), _content") == ("id", "_content")
    assert split_key("(a).1, (b, c)") == ("(a).1", "b", "c")
    assert [single_column(one) for one in ("id", "`a b`", "f(id)", "id + 1", "1", "'id'", "NULL")] == [
        "id",
        "a b",
        None,
        None,
        None,
        None,
        None,
    ]


def test_columns_of_an_expression() -> None:
    assert referenced_names("intDiv(a, 10) + length(`b c`) + if(d = 'e f', NULL, \"g\")") == ("a", "b c", "d", "g")
    assert referenced_names("toYYYYMM(now())") == ()


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("rand()", "rand"),
        ("cityHash64(id, rand64())", "rand64"),
        ("toDate(now64(3))", "now64"),
        ("generateUUIDv4()", "generateUUIDv4"),
        ("cityHash64(id)", None),
        ("toYYYYMM(snowflakeIDToDateTime(id)) + UUIDStringToNum(u) + queryString(url)", None),
        ("intDiv(rand, 10) + `now`", None),
        ("toYYYYMM(created) + upper(random_word)", None),
        ("", None),
    ],
)
def test_functions_that_the_row_does_not_decide(expression: str, function: str | None) -> None:
    assert nondeterministic_function(expression) == function
