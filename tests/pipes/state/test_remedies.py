"""The inventory of remedies: every action that an error names exists, and a test executes it.

Remedies are read from the source code. Each *action* in one (a flag, a command, a statement, starting over) must be in `ACTIONS` with the
test that executes it; a remedy with a new action fails here until it has a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from headrace.cli import build_parser
from headrace.cli.manual import iter_commands
from headrace.settings.settings_file import parse_set_flag
from testkit.machine.syntax_tree import syntax_tree

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"hint|start_over|repair|remedy|_ALLOW|_SIGN_IN|_TRUST|_DEFINITE", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_COMMAND = re.compile(r"headrace ([a-z]+)\b")
_STATEMENT = re.compile(r"\b(SET GLOBAL|GRANT|ALTER TABLE|TRUNCATE|DROP DATABASE|CREATE DATABASE|XA \w+|REVOKE)\b")
_STATE = re.compile(
    r"start over|start over|(?:new|another) (?:--)?state|remove the state directory|start again|drop or rename|drop the tables"
)
FOREIGN: Final = {"--verify-binlog-checksum", "--force-reinstall"}
"""Flags of other programs."""
PROSE: Final = {"in"}
"""Words after the name of the program that are not commands."""

_REMEDIES, _SETTINGS = "tests/pipes/state/test_remedies_servers.py::", "tests/pipes/state/test_changed_settings.py::"
ACTIONS: Final = {
    # Flags, given to a pipe that has run before where that is possible.
    "--all": "tests/service/test_control_verbs.py::test_pause_resume_and_stop_commands",
    "--conf": "tests/spark/test_spark_cluster.py::test_settings_by_flag",
    "--engine": _REMEDIES + "test_a_setting_that_needs_another_table",
    "--exclude": _REMEDIES + "test_leave_a_table_out",
    "--exclude-columns": "tests/pipes/debezium/test_debezium_counting_limits.py::test_a_hash_of_values_that_differ_in_snapshots_is_refused",
    "--file": "tests/cli/test_init.py::test_a_file_in_another_folder",
    "--flush-bytes": "tests/pipes/test_replicate_once.py::test_nothing_new_and_a_large_backlog",
    "--flush-rows": "tests/pipes/test_replicate_once.py::test_nothing_new_and_a_large_backlog",
    "--flush-seconds": "tests/sources/mysql/binlog/test_flush.py::test_a_batch_gathers_for_as_long_as_it_may",
    "--json": "tests/cli/test_check.py::test_a_sound_server",
    "--kafka-jars": "tests/kafka/test_kafka_parts.py",
    "--master": "tests/spark/test_cluster.py::test_killed_executors_lose_no_row",
    "--max-offsets": "tests/pipes/kafka/test_kafka_whole.py",
    "--new-log": "tests/sources/mysql/server/test_log_identity.py::test_a_reset_log_is_refused_and_the_remedy_repairs_the_target",
    "--offset": "tests/kafka/test_kafka_consumer.py",
    "--pipe": "tests/service/test_control_verbs.py::test_comparing_in_the_process",
    "--sample": "tests/verify/test_verify.py::test_the_command",
    "--schema": "tests/cli/test_cli.py::test_ddl_shows_a_translation_without_any_server",
    "--schema-changes": _REMEDIES + "test_a_schema_change_that_is_set_to_halt",
    "--set": "tests/settings/test_settings_file.py::test_one_setting_from_a_flag",
    "--settings": "tests/pipes/test_engine_pipe.py",
    "--shared-target": "tests/pipes/test_target_ownership_servers.py::test_several_pipes_write_to_one_table_where_that_is_allowed",
    "--snapshot": "tests/pipes/test_pipe_tables.py",
    "--source": "tests/cli/test_cli.py::test_ddl_shows_a_translation_without_any_server",
    "--spark-log": "tests/cli/test_manual.py",
    "--start": "tests/kafka/test_kafka_reach.py::test_a_moment_to_start_at",
    "--start-at": "tests/pipes/test_errors_stream.py::test_a_truncation_before_the_tables_are_first_read_is_applied",
    "--state": _REMEDIES + "test_a_new_state_with_empty_targets",
    "--table": "tests/sources/scylla/test_scylla_capture.py",
    "--tables": "tests/pipes/schema_changes/test_waiting_for_tables.py::test_a_table_that_is_named_must_exist_when_a_pipe_is_new",
    "--topics": "tests/sources/debezium/test_offset_range_reader.py::test_no_topic_to_read_once",
    "--url": "tests/service/test_control_verbs.py::test_finding_the_process",
    "--yes": "tests/service/test_control_verbs.py::test_skipping_asks_first",
    "--zero-dates": _SETTINGS + "test_a_pipe_halted_at_a_zero_date_resumes",
    # Commands.
    "headrace check": "tests/cli/test_check.py::test_a_sound_server",
    "headrace config": "tests/config/test_config_runs.py::test_files_of_three_tools_run",
    "headrace convert": "tests/config/test_importers.py::test_convert_writes_a_file_that_was_not_there",
    "headrace help": "tests/cli/test_cli.py::test_help_names_every_command",
    "headrace init": "tests/cli/test_init.py::test_the_written_file_runs",
    "headrace release": "tests/pipes/test_target_ownership_servers.py"
    "::test_a_second_pipe_is_refused_until_the_claim_of_the_first_is_given_up",
    "headrace reload": "tests/service/test_reload.py::test_reloads_of_a_process",
    "headrace replicate": "tests/test_newcomer.py",
    "headrace resync": _SETTINGS + "test_rows_that_hold_former_choices_are_read_again_by_the_printed_command",
    "headrace run": "tests/service/test_run.py::test_control_commands_reach_a_running_process",
    "headrace serve": "tests/cli/test_first_contact.py::test_the_printed_remedy_makes_a_directory",
    "headrace skip": "tests/pipes/state/test_event_skips.py::test_events_rows_and_statements",
    "headrace sql": "tests/cli/test_first_contact.py::test_the_printed_remedy_makes_a_directory",
    "headrace status": "tests/service/test_control_verbs.py::test_status",
    "headrace tail": "tests/api/test_tail_changes.py",
    "headrace verify": "tests/verify/test_verify.py::test_the_command",
    # Statements, on the source or on the sink.
    "ALTER TABLE": "tests/pipes/scylla/test_scylla_pipe.py::test_errors_at_the_start_of_a_pipe",
    "CREATE DATABASE": "tests/materialize_mysql/test_materialized_database.py::test_a_database_is_created_followed_shown_and_dropped",
    "DROP DATABASE": "tests/materialize_mysql/test_materialized_database.py::test_a_database_is_created_followed_shown_and_dropped",
    "GRANT": "tests/cli/test_check.py::test_missing_privileges_are_named_and_granted",
    "SET GLOBAL": "tests/cli/test_check.py::test_printed_repairs_fix_every_wrong_setting",
    "TRUNCATE": _REMEDIES + "test_a_new_state_with_empty_targets",
    "XA COMMIT": "tests/cli/test_check.py::test_prepared_transactions",
    "XA RECOVER": "tests/cli/test_check.py::test_prepared_transactions",
    "XA ROLLBACK": "tests/cli/test_check.py::test_prepared_transactions",
    # States and targets.
    "another --state": _REMEDIES + "test_a_new_state_with_empty_targets",
    "another state": _REMEDIES + "test_a_new_state_with_empty_targets",
    "drop or rename": _REMEDIES + "test_a_place_that_is_taken",
    "drop the tables": _REMEDIES + "test_a_setting_that_needs_another_table",
    "new --state": _REMEDIES + "test_a_new_state_with_empty_targets",
    "new state": _REMEDIES + "test_a_new_state_with_empty_targets",
    "remove the state directory": _REMEDIES + "test_start_over",
    "start again": _SETTINGS + "test_a_pipe_resumes_after_a_zero_date_is_corrected",
    "start over": _REMEDIES + "test_start_over",
}


def _text(node: ast.expr) -> str:
    """A text with … for inserted values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=one, orelse=other):
            return f"{_text(one)} / {_text(other)}"
        case ast.Dict(values=values):
            return " / ".join(map(_text, values))
    return "…"


def _remedies_in(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(syntax_tree(file.read_text())):
        place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Call(func=func, args=arguments, keywords=keywords):
                yield from ((place, _text(keyword.value)) for keyword in keywords if keyword.arg in ("hint", "repair"))
                # Findings of `check`: name, value, meaning, repair.
                if isinstance(func, ast.Name) and func.id in ("warning", "failure") and len(arguments) > 3:
                    yield place, _text(arguments[3])
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _NAMED.search(name):
                yield place, _text(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _NAMED.search(name):
                yield place, _text(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value) if _NAMED.search(name):
                yield place, _text(value)


@cache
def remedies() -> tuple[tuple[str, str], ...]:
    """Every remedy in the source code, with its place."""
    return tuple(found for file in sorted((ROOT / "src").rglob("*.py")) for found in _remedies_in(file))


def actions_of(remedy: str) -> set[str]:
    found = {flag for flag in _FLAG.findall(remedy) if flag not in FOREIGN}
    found |= {f"headrace {word}" for word in _COMMAND.findall(remedy) if word not in PROSE}
    return found | set(_STATEMENT.findall(remedy)) | set(_STATE.findall(remedy))


def test_the_inventory_is_not_empty() -> None:
    assert len(remedies()) > 700
    assert sum(bool(actions_of(text)) for _, text in remedies()) > 150


def test_every_action_has_a_test() -> None:
    missing = [f"{place}: {action}: {text}" for place, text in remedies() for action in actions_of(text) - ACTIONS.keys()]
    assert not missing, "\n".join(missing)


def test_no_action_is_listed_that_no_remedy_names() -> None:
    assert ACTIONS.keys() == {action for _, text in remedies() for action in actions_of(text)}


@pytest.mark.parametrize("test", sorted(set(ACTIONS.values())))
def test_the_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name or 'test_'}" in (ROOT / file).read_text()


def test_flags_and_commands_exist() -> None:
    found = list(iter_commands(build_parser()))
    known = {word for _, command, _ in found for action in command._actions for word in action.option_strings}
    verbs = {path[0] for path, _, _ in found}
    named = {action for action in ACTIONS if action.startswith("--")}
    assert named <= known
    assert {action.removeprefix("headrace ") for action in ACTIONS if action.startswith("headrace ")} <= verbs


def test_settings_exist() -> None:
    """Every `--set KEY=VALUE` in a remedy is valid."""
    found = {text for _, remedy in remedies() for text in re.findall(r"--set ([a-z_]+(?:\.[a-z_]+)*=[a-z]+)\b", remedy)}
    assert found
    for text in found:
        parse_set_flag(text)
