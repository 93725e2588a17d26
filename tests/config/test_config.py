"""`headrace.toml`: the pipes of a file, and the errors of a wrong one."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from headrace.cli import run
from headrace.config import load
from headrace.config.configuration import Configuration, LogFormat
from headrace.config.target_names import globs_overlap
from headrace.errors import DefiniteError
from headrace.model.schema import TableName, ZeroDates
from headrace.service.log_formats import mask_secrets
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.schema_policy import ChangeKind, Policy
from headrace.sinks.clickhouse.server.options import TargetEngine
from headrace.sinks.kafka.options import MessageFormat
from headrace.sinks.producer import parse_producer
from headrace.sinks.registry import redact_sink
from testkit.pipelines.config_files import WHOLE, base, several


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHOP_PASSWORD": "p@ss/w:rd%", "BROKERS": "k1:9092,k2:9092"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ENVIRONMENT", raising=False)


def loaded(directory: Path, text: str, *only: str) -> Configuration:
    (directory / "headrace.toml").write_text(text)
    return load(directory / "headrace.toml", only)


def refused(directory: Path, text: str, *only: str) -> str:
    with pytest.raises(DefiniteError) as error:
        loaded(directory, text, *only)
    return str(error.value).replace(f"{directory}/", "")


@pytest.mark.usefixtures("variables")
def test_a_whole_file_becomes_pipes(tmp_path: Path) -> None:
    (tmp_path / "scylla-password").write_text("sésame\n")
    (tmp_path / "ch-password").write_text("a b&c")
    configuration = loaded(tmp_path, WHOLE)
    process = configuration.process
    assert (process.state, process.listen, process.log, process.master) == (tmp_path / "progress", "", LogFormat.JSON, "local[2]")
    assert process.spark == {"spark.executor.memory": "4g", "spark.cores.max": "8"}
    orders, to_kafka, events, notes = configuration.pipes
    assert [(pipe.name, pipe.enabled, len(pipe.specs)) for pipe in configuration.pipes] == [
        ("orders", True, 1),
        ("orders-to-kafka", False, 1),
        ("events", True, 1),
        ("notes", True, 1),
    ]
    (part,) = orders.specs
    assert part.source == "mysql://repl:p%40ss%2Fw%3Ard%25@db:3307/shop?tls=required"
    assert part.sink == "clickhouse://default:a%20b%26c@ch:8123/"
    settings = part.settings
    assert (settings.name, settings.state, settings.retry_timeout_s) == ("orders", tmp_path / "progress" / "orders", math.inf)
    assert (settings.selection.include, settings.selection.exclude) == (("shop.orders", "billing.*"), ("shop.*_tmp",))
    assert (settings.projection.exclude, settings.zero_dates, settings.snapshot) == (
        ("shop.users.secret",),
        ZeroDates.NULL,
        SnapshotMode.LOCK_FREE,
    )
    assert (settings.limits.flush_bytes, settings.limits.flush_rows, settings.relay_bytes) == (64 << 20, 1000, 1_000_000)
    assert settings.schema_changes.of(ChangeKind.DROP_TABLE) is Policy.KEEP
    chosen = part.chosen.sink.of(TableName("shop", "orders"))
    assert (chosen.engine, chosen.sort_key, chosen.view, chosen.row_policy) == (TargetEngine.HISTORY, ("tenant", "id"), True, True)
    assert settings.choices == part.chosen.plain

    (part,) = to_kafka.specs
    assert part.settings.selection.include == ("shop.orders",)
    assert (part.chosen.kafka.format, part.chosen.kafka.topic) == (MessageFormat.DEBEZIUM, "${db}.${table}.test")
    (part,) = events.specs
    assert (part.source, part.topics.topics, part.topics.start) == ("kafka://k1:9092,k2:9092", ("shop.inventory.*",), "latest")
    assert part.chosen.debezium.topics == (("shop.inventory.o", "inventory.orders"),)
    (part,) = notes.specs
    assert part.source == "scylla://reader:s%C3%A9same@s1,s2:9043/app"
    assert part.chosen.scylla.confidence == 5


def test_one_pipe_alone_needs_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    monkeypatch.delenv("BROKERS", raising=False)
    assert [pipe.name for pipe in loaded(tmp_path, WHOLE, "orders-to-kafka").pipes] == ["orders-to-kafka"]
    message = refused(tmp_path, WHOLE)
    assert "the environment variable BROKERS is not set (at headrace.toml, line 18, sources.events.url)" in message
    assert "the file scylla-password cannot be read" in message
    assert "line 26" in message
    assert "there is no pipe 'order'" in refused(tmp_path, WHOLE, "order")
    assert "did you mean orders?" in refused(tmp_path, WHOLE, "order")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pipes", ["not TOML", "headrace.toml"]),
        ("", ["no pipes"]),
        (base(source='tabels = ["x"]'), ["no setting 'tabels' in [sources.a]", "line 3, sources.a.tabels", "did you mean tables?"]),
        (base(source='topics = ["x"]'), ["no setting 'topics'", "it is a setting of [sources.NAME] of Debezium's topics"]),
        (base(source='engine = "history"'), ["'engine'", "it is a setting of [sinks.NAME] of ClickHouse"]),
        (base(source='snapshot = "locked"'), ["snapshot must be one of", '"lock-free"', "line 3"]),
        (base(source='flush_bytes = "64X"'), ["flush_bytes must be a number of bytes"]),
        (base(source="flush_rows = -1"), ["flush_rows must be a number that is not negative"]),
        (base(source='"database.hostname" = "x"'), ["database.hostname", "give it in the source's address"]),
        (base(source="buffer.max.records = 5"), ["'buffer'", "write flush_rows of the source"]),
        (base(source='password = "x"').replace("u@h", "u:y@h"), ["has a password already", "line 3"]),
        (base(source='password = "x"\npassword_file = "y"'), ["given twice"]),
        (base(source='password = "${NO_SUCH_VARIABLE}"'), ["NO_SUCH_VARIABLE is not set", "line 3, sources.a.password"]),
        (base(source='password = "${no such}"'), ["${…} is no reference", "$${"]),
        (base(source='start_at = "${no such}"'), ["${no such} is no reference", "$${"]),
        (base().replace("mysql://u@h/db", "redis://h"), ["source's address cannot be read", "line 2", "mysql://"]),
        (base().replace("mysql://u@h/db", "postgres://h"), ["PostgreSQL is not read", "line 2", "Debezium", "kafka://"]),
        (base().replace("mysql://u@h/db", "mysql://u@h/db?tsl=x"), ["unknown setting 'tsl'", "line 2"]),
        (base().replace("mysql://u@h/db", "mysql://u@h"), ["no tables are named", "pipes.p", "[sources.a]"]),
        (base().replace("chdb:data", "redis://h"), ["line 5, sinks.b.url", "clickhouse://"]),
        (base(sink='engine = "replacingmergetree"'), ["engine must be one of", "line 6, sinks.b.engine"]),
        (base(sink='enginee = "history"'), ["no setting 'enginee'", "did you mean engine?"]),
        (base(sink='format = "debezium"'), ["it is a setting of", "[sinks.NAME] of Kafka"]),
        (base(pipe='tables."db.t" = { sort_keys = "x" }'), ["'sort_keys'", "line 10", "did you mean sort_key?"]),
        (base(pipe='tables."t" = { view = true }'), ["database.table", "line 10"]),
        (base(pipe='tables = ["db.t"]'), ["include = "]),
        (base(pipe='schema_changes = { drop_tabel = "keep" }'), ["drop_tabel", "line 10", "drop_table"]),
        (base(pipe='schema_changes = { rename_table = "ignore" }'), ["rename_table cannot be set to ignore", "line 10"]),
        (base(pipe='drop_table = "keep"'), ["it is a setting of [pipes.NAME.schema_changes]"]),
        (base(pipe="merge = true"), ["nothing to merge"]),
        (base().replace('sink = "b"', 'sink = "c"'), ["no section [sinks.c]", "there are b", "line 9"]),
        (base().replace('source = "a"', 'sources = ["a", "a"]'), ["named twice"]),
        (base().replace('source = "a"\n', ""), ["the pipe p has no source", "line 7"]),
        (base(more="[sink]\nview = true"), ["no section [sink]", "[sinks.NAME]"]),
        (base(more="[piped.x]"), ["did you mean [pipes.x]?"]),
        (base(more='[headrace]\nlog = "xml"'), ["log must be one of", "line 12, headrace.log"]),
        (base(more='[pipes."a b"]'), ["'a b' cannot be a name"]),
        (base(more='[pipes.q]\nsource = "a"\nsink = "b"'), ["p and q may both write to the table db.*", "exclude", "line 13"]),
    ],
)
def test_invalid_lines_are_reported_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: list[str]) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    message = refused(tmp_path, text)
    for word in words:
        assert word in message


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    message = refused(
        tmp_path, base(source="a = 1\nzero_dates = 2", sink="viev = true", pipe='enabled = "yes"', more="[headrace]\nstat = 1")
    )
    assert message.startswith("5 errors in headrace.toml")
    for word in ("sources.a.a", "zero_dates must be one of", "'viev'", "enabled must be true or false", "did you mean state?"):
        assert word in message


def test_no_password_is_in_any_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hunter2secret")
    text = base(source='password = "${PW}"', more='[pipes.q]\nsource = "a"\nsink = "b"')
    assert "hunter2secret" not in refused(tmp_path, text)
    assert "hunter2secret" not in refused(tmp_path, base().replace("u@h/db", "u:${PW}@h:port/db"))


def test_sources_of_one_pipe_are_parts_with_names_and_targets_of_their_own(tmp_path: Path) -> None:
    assert "shop/east and shop/west may both write to the table shop.*" in refused(tmp_path, several())
    (pipe,) = loaded(tmp_path, several(more='prefix = "{source}_"')).pipes
    assert [part.name for part in pipe.specs] == ["shop/east", "shop/west"]
    assert [part.settings.state.relative_to(tmp_path) for part in pipe.specs] == [
        Path("headrace-state/shop/east"),
        Path("headrace-state/shop/west"),
    ]
    assert [part.chosen.sink.of(TableName("shop", "orders")).target for part in pipe.specs] == ["east_{table}", "west_{table}"]
    by_database = several(more='tables."*.*" = { database = "{source}" }')
    (pipe,) = loaded(tmp_path, by_database).pipes
    assert [part.chosen.sink.of(TableName("shop", "orders")).database for part in pipe.specs] == ["east", "west"]
    (pipe,) = loaded(tmp_path, several(more="merge = true")).pipes
    assert (pipe.merged, pipe.prefix) == (True, "{source}_")
    other = '[pipes.all]\nsource = "east"\nsink = "ch"\ninclude = ["orders"]'
    assert "shop and all may both write to the table shop.orders" in refused(tmp_path, several(more=f"merge = true\n{other}"))
    assert "put {source} into it" in refused(tmp_path, several(more='merge = true\nprefix = "x_"'))


def test_several_sources_share_topics_only_on_purpose(tmp_path: Path) -> None:
    assert "may both write to the topic shop_*_generic" in refused(tmp_path, several("bus"))
    (pipe,) = loaded(tmp_path, several("bus", 'prefix = "{source}."')).pipes
    assert [part.chosen.kafka.topic for part in pipe.specs] == ["east.${db}_${table}_generic", "west.${db}_${table}_generic"]
    (pipe,) = loaded(tmp_path, several("bus", "merge = true")).pipes
    assert [part.chosen.kafka.topic for part in pipe.specs] == ["", ""]
    # Sources that are merged into one sink do not conflict with each other.
    assert all(part.settings.shared_target for part in pipe.specs)


def test_pipes_share_a_target_only_on_purpose(tmp_path: Path) -> None:
    other = '[pipes.all]\nsource = "east"\nsink = "ch"\ninclude = ["orders"]'
    merged = several(more=f"merge = true\n{other}")
    assert "or allow it: shared_target = true" in refused(tmp_path, merged)
    shop, shared = loaded(tmp_path, f"{merged}\nshared_target = true").pipes
    assert [part.settings.shared_target for part in (*shop.specs, *shared.specs)] == [False, False, True]


def test_a_pipe_that_becomes_several_does_not_leave_its_progress_behind(tmp_path: Path) -> None:
    (tmp_path / "headrace-state" / "shop").mkdir(parents=True)
    (tmp_path / "headrace-state" / "shop" / "pipe.json").write_text("{}")
    message = refused(tmp_path, several(more='prefix = "{source}_"'))
    assert "its progress is in" in message
    assert "move that directory" in message


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("shop.*", "shop.orders", True),
        ("shop.*", "*.orders", True),
        ("shop.a*", "shop.b*", False),
        ("shop.*a", "shop.b*", True),
        ("sho?.x", "shop.?", True),
        ("shop.[ab]", "shop.a", True),
        ("shop.x", "shop.xy", False),
        ("*", "", True),
    ],
)
def test_globs_that_may_match_the_same_name(one: str, other: str, shared: bool) -> None:
    assert globs_overlap(one, other) is globs_overlap(other, one) is shared


def test_pipes_that_share_a_sink_are_apart_by_their_tables(tmp_path: Path) -> None:
    more = '[pipes.q]\nsource = "a"\nsink = "b"\ninclude = ["db.orders"]'
    loaded(tmp_path, base(pipe='exclude = ["db.orders"]', more=more))
    assert "may both write to the table db.q_orders" in refused(tmp_path, base(more=more + '\nprefix = "q_"'))
    loaded(tmp_path, base(pipe='exclude = ["q_*"]', more=more + '\nprefix = "q_"'))
    loaded(tmp_path, base(more=more + '\ntables."db.orders" = { target = "other.orders" }'))
    assert "may both write" in refused(tmp_path, base(pipe='exclude = ["db.users"]', more=more))
    loaded(tmp_path, base(pipe="enabled = false", more=more))


def test_transforms_of_a_pipes_tables(tmp_path: Path) -> None:
    tables = """
[pipes.p.tables."shop.orders"]
filter = "state <> 'gone'"
computed = { day = "CAST(created AS DATE)" }
hash = { email = "sha256" }
hash_salt = "env:SALT"
sort_key = ["day", "id"]
"""
    text = f"{_ENDS}{tables}"
    (part,) = loaded(tmp_path, text).pipes[0].specs
    name = TableName("shop", "orders")
    choices = part.settings.transforms.of(name)
    assert (choices.filter, dict(choices.computed), choices.hash_salt) == (
        "state <> 'gone'",
        {"day": "CAST(created AS DATE)"},
        "env:SALT",
    )
    assert part.chosen.sink.of(name).sort_key == ("day", "id")
    assert part.chosen.transforms == part.settings.transforms
    said = refused(tmp_path, text.replace("<> 'gone'", "<> now()"))
    assert "now() gives another value each time" in said
    assert "line 11, pipes.p.tables.shop.orders.filter" in said.replace('"', "")
    assert "did you mean computed?" in refused(tmp_path, text.replace("computed =", "computd ="))


_ENDS = """
[sources.s]
url = "mysql://root@db:3306/shop"
[sinks.c]
url = "clickhouse://default@ch:8123"
[pipes.p]
source = "s"
sink = "c"
"""


def test_the_standard_output_and_classes_of_ones_own_are_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k&y")
    text = base().replace('url = "chdb:data"', 'url = "stdout:"\nformat = "json"\ncolour = "never"')
    assert loaded(tmp_path, text).pipes[0].specs[0].sink == "stdout:?format=json&colour=never"
    own = 'class = "my.sinks:Mine"\nurl = "https://host"\nlevels = [1, 2]\napi_token = "${KEY}"'
    (part,) = loaded(tmp_path, base().replace('url = "chdb:data"', own)).pipes[0].specs
    assert part.sink == "class:my.sinks:Mine?api_token=k%26y"
    assert part.chosen.producer == {"url": "https://host", "levels": [1, 2]}
    assert "k&y" not in repr(part.settings)
    assert "names no class" in refused(tmp_path, base().replace('url = "chdb:data"', 'class = "nonsense"'))
    message = refused(tmp_path, base().replace('url = "chdb:data"', 'url = "stdout:"\nformat = "xml"'))
    assert "format must be one of" in message


def test_what_was_to_be_a_password_is_not_repeated(tmp_path: Path) -> None:
    assert "hunter2" not in refused(tmp_path, base(source='password = ["hunter2"]'))


def test_folders_are_seen_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    sink = 'url = "kafka://k:9092"\nformat = "specific"\nregistry = "{}"'
    for registry, seen in (("schemas", str(tmp_path / "schemas")), ("memory", "memory"), ("http://r:8081", "http://r:8081")):
        (part,) = loaded(tmp_path, base().replace('url = "chdb:data"', sink.format(registry))).pipes[0].specs
        assert part.chosen.kafka.registry == seen
    for relay, seen in (("mirrors", str(tmp_path / "mirrors")), ("/shared", "/shared")):
        (part,) = loaded(tmp_path, base(source=f'relay = "{relay}"')).pipes[0].specs
        assert part.settings.relay == seen
    assert loaded(tmp_path, base()).pipes[0].specs[0].sink == f"chdb:{tmp_path}/data"


def test_settings_of_a_producer_are_shown_nowhere_and_masked_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = 'class = "my.module:Sink"\npassword = "hunter2&co"\ncolour = "red"'
    configuration = loaded(tmp_path, base().replace('url = "chdb:data"', sink))
    [spec] = configuration.pipes[0].specs
    assert "hunter2" in spec.sink
    assert redact_sink(spec.sink) == "class:my.module:Sink"
    assert "hunter2" not in mask_secrets(f"it cannot be reached: {spec.sink}")
    monkeypatch.setenv("SOME_KEY", "hunter3")
    more = 'class = "my.module:Sink"\npassphrase = "hunter2"\napi_key = "hunter4"\nother = "x${SOME_KEY}"\ncolour = "red"'
    [spec] = loaded(tmp_path, base().replace('url = "chdb:data"', more)).pipes[0].specs
    assert spec.settings.stored_options["settings"] == {"producer": {"colour": "red"}}
    settings = json.loads(parse_producer(spec.sink, spec.chosen.producer).settings)
    assert settings == {"passphrase": "hunter2", "api_key": "hunter4", "other": "xhunter3", "colour": "red"}
    kafka = 'url = "kafka://k:9092?sasl.password=s3cr%2Ft"'
    [spec] = loaded(tmp_path, base().replace('url = "chdb:data"', kafka)).pipes[0].specs
    assert "s3cr" not in mask_secrets(f"it cannot be reached: {spec.sink}")


def test_progress_is_not_printed_between_the_lines_of_a_printing_pipe(tmp_path: Path) -> None:
    assert run._message_stream(loaded(tmp_path, base())) is sys.stdout
    assert run._message_stream(loaded(tmp_path, base().replace('url = "chdb:data"', 'url = "stdout:"'))) is sys.stderr
