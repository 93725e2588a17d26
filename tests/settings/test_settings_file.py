"""Settings from files, flags and the stored state: their order, and errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.cli import flags
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.state.pipe_state import PipeState, StateDirectory, TableState
from headrace.pipes.state.stored_settings import chosen_for, store_settings, stored_settings, warn_of_unmatched
from headrace.settings.dataclass_fields import parse_value, setting_fields, to_plain
from headrace.settings.foreign_names import REPLACEMENTS
from headrace.settings.reference_page import BEGIN, END, PAGES, TABLES_PAGE, markdown
from headrace.settings.schema_policy import ChangeKind, Policy, SchemaPolicy
from headrace.settings.settings_file import UserSettings, parse_set_flag, parse_setting, parse_settings, read_settings, split_list
from headrace.settings.toml_text import to_toml
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions, Deletes, MissingColumns, TableOptions, TargetEngine
from headrace.sinks.kafka.options import CHANGEABLE as TOPICS_CHANGEABLE
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat
from headrace.sources.debezium.events.options import VersionSource

ORDERS, EVENTS = TableName("shop", "orders"), TableName("shop", "events")
DOCS = Path(__file__).parents[2] / "docs" / "clickhouse.md"

FILE = """\
# what we like
[sink]
view = true
types = { "kind:json" = "String", note = "String" }
cluster = "north"   # all of them

[sink.tables."shop.*"]
sort_key = "materialize"
settings.index_granularity = 1024

[sink.tables."shop.events"]
engine = "history"
types = { note = "LowCardinality(String)" }
cleanup_hours = 2
sort_key = "tenant, (a, b), f('x,y')"
"""


def test_a_file_gives_each_table_its_choices() -> None:
    choices = parse_settings(FILE, "pipe.toml").sink
    assert choices.cluster == "north"
    orders, events = choices.of(ORDERS), choices.of(EVENTS)
    assert orders == TableOptions(
        view=True, types=(("kind:json", "String"), ("note", "String")), sort_key="materialize", settings=(("index_granularity", "1024"),)
    )
    assert (events.engine, events.cleanup_hours, events.view) == (TargetEngine.HISTORY, 2.0, True)
    assert events.types == (("kind:json", "String"), ("note", "LowCardinality(String)"))
    assert events.sort_key == ("tenant", "(a, b)", "f('x,y')")
    assert choices.of(TableName("other", "t")) == TableOptions(view=True, types=orders.types)


def test_policies_of_schema_changes() -> None:
    chosen = parse_set_flag("schema_changes.truncate_table=keep").over(
        parse_settings("[schema_changes]\nall = 'halt'\ndrop_table = 'keep'", "f")
    )
    policies = chosen.schema_changes
    assert policies.of(ChangeKind.DROP_TABLE) is policies.of(ChangeKind.TRUNCATE_TABLE) is Policy.KEEP
    assert policies.of(ChangeKind.ADD_COLUMN) is Policy.HALT
    assert UserSettings().schema_changes == SchemaPolicy()


def test_no_settings_are_the_defaults() -> None:
    assert parse_settings("", "f").sink == UserSettings().sink == ClickHouseOptions()


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("[sink]\nview = 1", "f.toml, line 2, sink.view", "view must be true or false, not 1"),
        (
            "[sink]\n\nengine = 'hist'",
            "f.toml, line 3, sink.engine",
            """engine must be one of "replacing", "collapsing", "versioned", "history", not 'hist'""",
        ),
        ("[sink]\nengin = 'history'", "f.toml, line 2, sink.engin", "there is no setting 'engin'\n  remedy: did you mean engine?"),
        ("[sinks]\nview = true", "f.toml, line 1, sinks", "there is no section 'sinks'\n  remedy: did you mean sink?"),
        ("view = true", "f.toml, line 1, view", "there is no section 'view'\n  remedy: write it under [sink]"),
        ("sink = 3", "f.toml, line 1, sink", "'sink' is a section\n  remedy: write [sink]"),
        ("[sink.tables.'shop.t']\nCleanupHours = 1", "f.toml, line 2, sink.tables.shop.t.CleanupHours", "did you mean cleanup_hours?"),
        ("[sink]\ncleanup_hours = -1", "f.toml, line 2, sink.cleanup_hours", "must be a number that is not negative, not -1"),
        ("[sink]\ncleanup_hours = nan", "f.toml, line 2, sink.cleanup_hours", "must be a number that is not negative, not nan"),
        ("[sink]\ntypes = { a = ['x'] }", "f.toml, line 2, sink.types", "types must be a table of texts"),
        ("[sink]\nlow_cardinality = 'a'", "f.toml, line 2, sink.low_cardinality", "must be a list of texts"),
        (
            "[sink.tables.shop.orders]\nview = true",
            "f.toml, line 1, sink.tables.shop",
            'write [sink.tables."shop.orders"], with the quotes',
        ),
        ("[sink]\ntables = 3", "f.toml, line 2, sink.tables", "need a glob over database.table"),
        ("[sink.tables.'a.b']\ncluster = 'x'", "f.toml, line 2, sink.tables.a.b.cluster", "cluster is for all tables"),
        ("[sink]\nxyzzy = 1", "f.toml, line 2, sink.xyzzy", "known: bit, cleanup_hours, cluster, codecs,"),
        ("[sink\nview = 1", "f.toml", "the settings are not TOML: Expected ']' at the end of a table declaration (at line 1, column 6)"),
        ("[sink]\na = 1\na = 2\n", "f.toml", "the settings are not TOML: Cannot overwrite a value (at line 3"),
        ("[sink]\nreplacingmergetree.delete.column = 'd'", "f.toml, line 2, sink.replacingmergetree", 'write delete_column = "NAME"'),
        ("[sink]\n'auto.create.tables' = true", "f.toml, line 2, sink.auto.create.tables", "there is no setting 'auto.create.tables'"),
        ("[sink]\nignore_delete = true", "f.toml, line 2, sink.ignore_delete", 'write deletes = "ignore"'),
        ("[schema_changes]\ndrop_tabel = 'keep'", "f.toml, line 2, schema_changes.drop_tabel", "did you mean drop_table?"),
        ("[schema_changes]\ndrop_table = 'kep'", "f.toml, line 2, schema_changes.drop_table", "'kep' is no policy for drop_table"),
        ("[schema_changes]\nadd_column = 'keep'", "f.toml, line 2, schema_changes.add_column", "may be one of apply, ignore, halt, resync"),
        ("auto.create.tables = true", "f.toml, line 1, auto", "there is no section 'auto.create.tables'"),
    ],
)
def test_invalid_lines_are_reported_with_their_number(text: str, place: str, said: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_settings(text, "f.toml")
    assert caught.value.place == place
    # The place is between the message and the remedy.
    assert said in str(caught.value).replace(f" (at {place})", "")


def test_a_missing_or_binary_file(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("binary", "missing"):
        with pytest.raises(DefiniteError) as caught:
            read_settings(tmp_path / name)
        assert str(tmp_path / name) in caught.value.place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine=history", {"sink": {"engine": "history"}}),
        ("sink.engine='history'", {"sink": {"engine": "history"}}),
        ('tables."shop.orders".sort_key=["a", "b"]', {"sink": {"tables": {"shop.orders": {"sort_key": ["a", "b"]}}}}),
        ("sort_key=a, b", {"sink": {"sort_key": ["a", "b"]}}),
        ("view=true", {"sink": {"view": True}}),
        ("types.note=Decimal(10, 2)", {"sink": {"types": {"note": "Decimal(10, 2)"}}}),
        ('types."kind:json"=JSON', {"sink": {"types": {"kind:json": "JSON"}}}),
        ("target=123", {"sink": {"target": "123"}}),
        ("partition_by=a = 1", {"sink": {"partition_by": "a = 1"}}),
        ("partition_by=", {"sink": {"partition_by": ""}}),
    ],
)
def test_one_setting_from_a_flag(text: str, expected: dict[str, Any]) -> None:
    assert parse_set_flag(text).plain == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [("engine", "is no setting"), ("=x", "is no setting"), ("engine=x", "must be one of"), ("cleanup_hours=-2", "not negative, not -2")],
)
def test_a_flag_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        parse_set_flag(text)
    assert said in caught.value.message
    assert caught.value.place.startswith("--set")


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pipe.toml"
    file.write_text(FILE)
    flags = [
        parse_setting(("engine",), "collapsing", "--engine"),
        parse_set_flag("types.note=UUID"),
        parse_set_flag('tables."shop.events".view=false'),
    ]
    choices = chosen_for(tmp_path / "state", str(file), flags).sink
    assert choices.of(ORDERS).engine is TargetEngine.COLLAPSING
    assert choices.of(ORDERS).types == (("kind:json", "String"), ("note", "UUID"))
    events = choices.of(EVENTS)
    assert (events.engine, events.view, events.cleanup_hours) == (TargetEngine.HISTORY, False, 2.0)


def test_every_field_can_be_written_and_read_back() -> None:
    """A field whose type cannot be written in a file fails here."""
    for settings in (TableOptions, ClickHouseOptions):
        for one in setting_fields(settings).values():
            if one.name not in ("all_tables", "tables"):
                assert parse_value(one.kind, to_plain(one.kind, one.default)) == one.default, one.name
                assert one.text, f"{settings.__name__}.{one.name} has no description: write a line under it"


def test_changeable_options_are_settings() -> None:
    assert set(setting_fields(TableOptions)) | set(setting_fields(ClickHouseOptions)) >= CHANGEABLE
    assert not set(REPLACEMENTS) & (set(setting_fields(TableOptions)) | set(setting_fields(ClickHouseOptions)))
    assert set(setting_fields(KafkaOptions)) >= TOPICS_CHANGEABLE


@pytest.mark.parametrize("page", [TABLES_PAGE, *sorted(set(PAGES.values()))])
def test_the_pages_of_settings_are_true(page: str) -> None:
    text = DOCS.with_name(f"{page}.md").read_text()
    there = text[text.index(BEGIN) : text.index(END) + len(END) + 1]
    assert there == markdown(page), "settings have changed: run make settings-page"


def test_sections_about_kafka() -> None:
    text = '[kafka]\nformat = "specific"\npartitions = 6\nproperties = { linger.ms = 20 }\n[debezium]\nversions = "offset"\nepoch = 2\n'
    chosen = parse_settings(text.replace("linger.ms", '"linger.ms"'), "f")
    expected = KafkaOptions(format=MessageFormat.SPECIFIC, partitions=6, properties=(("linger.ms", "20"),))
    assert (chosen.kafka, chosen.debezium.epoch, chosen.debezium.versions) == (expected, 2, VersionSource.OFFSET)
    assert parse_settings(to_toml(chosen.plain), "f") == chosen
    assert parse_set_flag("kafka.format=debezium").over(chosen).kafka.format is MessageFormat.DEBEZIUM
    with pytest.raises(DefiniteError, match="format must be one of") as caught:
        parse_settings('[kafka]\nformat = "avro"', "f")
    assert "line 2, kafka.format" in caught.value.place
    with pytest.raises(DefiniteError, match=r"sasl\.password is a secret"):
        parse_settings('[kafka.properties]\n"sasl.password" = "x"', "f")


def test_a_section_about_something_else_is_refused() -> None:
    chosen = parse_set_flag("kafka.format=debezium").over(parse_set_flag("engine=history"))
    chosen.check_sections(("debezium",), "no Debezium here")
    with pytest.raises(DefiniteError, match="format: no Kafka here"):
        chosen.check_sections(("kafka",), "no Kafka here")


def test_a_pipe_keeps_the_format_of_its_topics() -> None:
    state = PipeState("", "", "", {}, {}, 0, {"settings": {"kafka": {"format": "specific"}}})
    store_settings(state, {"kafka": {"format": "specific", "compression": "zstd", "properties": {"linger.ms": "5"}}}, "state")
    assert state.options["settings"]["kafka"]["compression"] == "zstd"
    with pytest.raises(DefiniteError, match=r'began with format = "specific"') as caught:
        store_settings(state, {}, "state")
    assert "kafka.topic" in caught.value.hint


def test_the_example_of_the_page_is_right() -> None:
    text = DOCS.read_text()
    example = text[text.index("```toml\n") + 8 : text.index("```\n", text.index("```toml\n") + 8)]
    assert parse_settings(example, "docs").sink.of(TableName("shop", "web_log")).engine is TargetEngine.HISTORY


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", ("a",)), ("(a, b)", ("a", "b")), ("(a), (b)", ("(a)", "(b)")), ("f(a, b), `c,d`", ("f(a, b)", "`c,d`")), ("", ()), ("()", ())],
)
def test_lists_of_expressions(text: str, parts: tuple[str, ...]) -> None:
    assert split_list(text) == parts


def _state(*tables: TableName, **written: Any) -> PipeState:
    column = Column("id", Kind.INT32, nullable=False)
    states = {name: TableState(TableSchema(name, (column,), ("id",)), {}) for name in tables}
    return PipeState("mysql://u@h:1/shop", "id", "sink", {}, {}, 0, {"settings": {"sink": written} if written else {}}, states)


@pytest.mark.parametrize(
    "written",
    [
        {"view": True},
        {"cleanup_hours": 3.0, "deletes": "ignore", "missing_columns": "add", "row_policy": True},
        {"tables": {"shop.new": {"engine": "history"}}},
        {"engine": "replacing"},
    ],
)
def test_harmless_changes_are_taken(written: dict[str, Any]) -> None:
    state = _state(ORDERS)
    store_settings(state, {"sink": written}, "state")
    assert state.options["settings"] == {"sink": written}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {},
            {"engine": "history"},
            'the table shop.orders was begun with engine = "replacing"; engine = "history" would need another table',
        ),
        ({"tables": {"shop.o*": {"sort_key": ["a"]}}}, {}, 'shop.orders was begun with sort_key = ["a"]; sort_key = "primary" would'),
        ({}, {"types": {"a": "String"}}, "types = {}; types = {"),
        ({"cluster": "a"}, {"cluster": "b"}, 'the tables were begun with cluster = "a"'),
    ],
)
def test_changes_that_need_another_table_are_refused(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    state = _state(ORDERS, **before)
    with pytest.raises(DefiniteError) as caught:
        store_settings(state, {"sink": after}, "state")
    assert said in caught.value.message
    assert state.options["settings"] == ({"sink": before} if before else {})


def test_a_restart_resumes_with_the_stored_state(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    directory.save(_state(ORDERS, engine="history", deletes="ignore"))
    assert stored_settings(tmp_path / "state").sink.of(ORDERS).deletes is Deletes.IGNORE
    goes_on = chosen_for(tmp_path / "state", "", [parse_set_flag("missing_columns=add")])
    assert goes_on.sink.of(ORDERS) == TableOptions(engine=TargetEngine.HISTORY, deletes=Deletes.IGNORE, missing_columns=MissingColumns.ADD)
    file = tmp_path / "f.toml"
    file.write_text("[sink]\nview = true\n")
    assert chosen_for(tmp_path / "state", str(file), []).sink.of(ORDERS) == TableOptions(view=True)


def test_a_state_without_settings_has_the_defaults(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    state = _state(ORDERS)
    del state.options["settings"]
    directory.save(state)
    assert stored_settings(tmp_path / "state") == UserSettings()


def test_globs_that_match_no_table_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    choices = parse_settings("[sink.tables.'shop.ordres']\nview = true\n[sink.tables.'shop.*']\nview = true", "f").sink
    warn_of_unmatched(choices, [ORDERS])
    assert [record.getMessage() for record in caplog.records] == ["no chosen table matches the settings for shop.ordres"]


@dataclass(frozen=True)
class _Undocumented:
    strange: complex = 0j


def test_a_type_that_no_file_can_hold_is_a_programming_error() -> None:
    with pytest.raises(TypeError):
        parse_value(setting_fields(_Undocumented)["strange"].kind, 1)


def test_wrong_settings_end_a_run_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[sink]\nengine = 'hist'\n")
    state = tmp_path / "state"
    assert cli.main(["replicate", "mysql://h/db", f"chdb:{tmp_path / 'ch'}", "--state", str(state), "--settings", str(file)]) == 2
    assert f"{file}, line 2, sink.engine" in capsys.readouterr().err
    assert not state.exists()
    assert not (tmp_path / "ch").exists()


def test_the_list_of_settings_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "settings"], check=True, capture_output=True, text=True)
    assert "delete_column" in done.stdout


def test_flags_of_the_command_line_are_settings() -> None:
    given = "--engine history --sort-key a,b --partition-by toYYYYMM(d) --delete-column gone --missing-columns add --view --set ttl=1"
    parsed = cli.build_parser().parse_args(
        ["replicate", "mysql://h/db", "chdb:x", *given.split(" "), "--schema-changes", "drop_table=keep"]
    )
    chosen = UserSettings()
    for flag in flags.settings_from_flags(parsed):
        chosen = flag.over(chosen)
    assert chosen.plain == {
        "sink": {
            "engine": "history",
            "sort_key": ["a", "b"],
            "partition_by": "toYYYYMM(d)",
            "delete_column": "gone",
            "missing_columns": "add",
            "view": True,
            "ttl": "1",
        },
        "schema_changes": {"drop_table": "keep"},
    }
