"""Names and values with control sequences, line breaks or styles: every text output shows them escaped, on one line."""

from __future__ import annotations

import ast
import io
import json
import logging
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console

import headrace
from headrace.cli.status_view import render_error, render_status
from headrace.errors import DefiniteError
from headrace.pipes.commands import preflight_view
from headrace.pipes.lifecycle import progress_view
from headrace.pipes.lifecycle.progress_view import LogView, TerminalView
from headrace.service.log_formats import JsonFormatter, TextFormatter
from headrace.service.status import ErrorStatus, PipeStage, PipeStatus, ServiceStatus, TableStatus
from headrace.sources.preflight import Finding, Level
from headrace.spark.runtime.worker_logs import _MarkedLineHandler
from headrace.terminal_text import escape_text
from headrace.verify.view import BarView
from testkit.machine.syntax_tree import syntax_tree

HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\nERROR forged\r\x9b31m\u202edcba\u2066\u200b\u2028[bold red]x[/][/nothing]\x7f"
SHOWN = escape_text(HOSTILE)


def lines_of(text: str) -> list[str]:
    """Return the lines of an output; check that each is harmless."""
    lines = text.removesuffix("\n").split("\n")
    for line in lines:
        assert line.isprintable(), ascii(line)
    return lines


def record(message: object, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    raised = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("headrace.x", logging.WARNING, __file__, 1, message, arguments, raised)


def test_every_control_and_format_character_is_escaped() -> None:
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs"):
            shown = escape_text(f"a{character}b")
            assert shown.isprintable(), hex(code)
            assert shown.isascii()
            assert json.loads(f'"{shown}"') == f"a{character}b"
            assert escape_text(shown) == shown
    assert escape_text("漢字 é 🙂 [x] a b\\n") == "漢字 é 🙂 [x] a b\\n"


def test_an_error_has_the_lines_of_its_own_only() -> None:
    error = DefiniteError(HOSTILE, place=HOSTILE, hint=HOSTILE)
    assert lines_of(str(error)) == [f"{SHOWN} (at {SHOWN})", f"  remedy: {SHOWN}"]
    assert (error.message, error.place, error.hint) == (HOSTILE, HOSTILE, HOSTILE)


def test_log_lines_for_people_are_escaped_and_those_for_programs_are_not() -> None:
    text = TextFormatter("%(levelname)s %(message)s")
    assert lines_of(text.format(record(HOSTILE))) == [f"WARNING {SHOWN}"]
    assert lines_of(text.format(record("%s: %d of %.1f", HOSTILE, 1, 2.0))) == [f"WARNING {SHOWN}: 1 of 2.0"]
    assert lines_of(text.format(record("%(a)s", {"a": HOSTILE}))) == [f"WARNING {SHOWN}"]
    assert lines_of(text.format(record("it failed: %s", ValueError(HOSTILE)))) == [f"WARNING it failed: {SHOWN}"]
    error = DefiniteError("bad", place=HOSTILE, hint="mend it")
    assert lines_of(text.format(record("it failed: %s", error))) == [f"WARNING it failed: bad (at {SHOWN})", "  remedy: mend it"]
    with pytest.raises(ValueError, match="a") as caught:
        raise ValueError(HOSTILE)
    first, *rest = lines_of(text.format(record("it failed", error=caught.value)))
    assert first == "WARNING it failed"
    assert all(line.startswith("  ") for line in rest)
    # One handler does not change the record for the next.
    one = record("%s", HOSTILE)
    text.format(one)
    assert json.loads(JsonFormatter().format(one))["message"] == HOSTILE
    assert json.loads(JsonFormatter().format(record("%s", "\udcff")))["message"] == "\\udcff"
    assert lines_of(_MarkedLineHandler(io.StringIO()).format(record("%s", HOSTILE))) == [f"headrace-log WARNING / {SHOWN}"]


def test_the_progress_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    log, said = logging.getLogger("headrace"), io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(TextFormatter("%(levelname)s %(message)s"))
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "level", logging.INFO)
    screen = io.StringIO()
    monkeypatch.setattr(progress_view, "Console", lambda **_: Console(file=screen, width=10_000, force_terminal=False))
    for shown in (LogView(), TerminalView()):
        shown.note(f"capturing {HOSTILE}")
        shown.snapshot_begins({HOSTILE: 3}, {})
        shown.snapshot_rows(HOSTILE, 3, True)
        shown.snapshot_ends(3, 1.0)
        shown.batch(1, 0.5, HOSTILE)
        shown.waiting((HOSTILE, 2.0))
        shown.close()
    assert all(line.startswith("INFO ") for line in lines_of(said.getvalue()))
    assert f"capturing {SHOWN}" in lines_of(screen.getvalue())
    assert screen.getvalue().count(SHOWN) >= 3


def test_the_progress_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    bars, screen = BarView(), io.StringIO()
    monkeypatch.setattr(bars, "_console", Console(file=screen, width=10_000, force_terminal=False))
    bars.note(HOSTILE)
    bars.begins({HOSTILE: 3})
    bars.advanced(HOSTILE, 3)
    bars.ends()
    assert lines_of(screen.getvalue())[0] == SHOWN
    assert screen.getvalue().count(SHOWN) >= 2


def test_findings_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    preflight_view.print_findings([Finding(HOSTILE, Level.ERROR, HOSTILE, HOSTILE, HOSTILE)])
    assert capsys.readouterr().out.count(SHOWN) == 4
    error = ErrorStatus(HOSTILE, HOSTILE, HOSTILE, False, 1.0, "")
    table = TableStatus(HOSTILE, HOSTILE)
    pipes = [PipeStatus("p", "p", "s", "t", stage, 1.0, error=error, tables=(table,), waiting=HOSTILE) for stage in PipeStage]
    status = ServiceStatus("1", 1, 1.0, "f", pipes=tuple(pipes))
    console = Console(file=io.StringIO(), width=100_000)
    console.print(render_status(status, tables=True))
    for line in render_error("p", error, 2.0):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    assert sum(line.count(SHOWN) for line in lines_of(console.file.getvalue())) >= 5


_RAW_PRINTS = {
    # Escaped, or printed unchanged on purpose: for programs, for a file, or in the format of a query.
    "cli/__init__.py": {"f'headrace: {mask_secrets(str(error))}'"},
    "cli/config.py": {
        "render_configuration(document, resolve(document, arguments.pipe), defaults=arguments.defaults)",
        "schema_text()",
        "text",
        "summarize(configuration)",
    },
    "cli/control.py": {"json.dumps(found.to_json(), indent=2)", "f'headrace: {failure}'"},
    "cli/questions.py": {"f'headrace: {mask_secrets(str(error))}'"},
    "cli/run.py": {"f'headrace: pipe {escape_text(part.name)} failed: {text}'"},
    "cli/sinks.py": {
        "found[arguments.field]",
        "named.sink.reader().text(query, settings)",
        "'\\n'.join(map(markdown, (TABLES_PAGE, *sorted(set(PAGES.values())))))",
    },
    "cli/tables.py": {"findings_json(shown, findings)"},
    "cli/tools.py": {
        "completion_script(arguments.parser, arguments.shell)",
        "found.parser.format_help()",
        "log_schema_command.log_schema(arguments.source, arguments.tables, cassandra=arguments.cassandra)",
        "man_page(known)",
    },
    "cli/verify.py": {"results_json(results, seed=arguments.seed if arguments.sample else None)"},
    "embedded/__main__.py": {"error"},
    "materialize_mysql/bridge.py": {
        "f'the process that stops the pipes cannot start: {error}'",
        "f'the process of a request cannot start: {error}'",
    },
    "materialize_mysql/bridged_request.py": {"json.dumps(answer)"},
    "materialize_mysql/keeper.py": {"'another process keeps this pipe'"},
    "spark/connector.py": {'f"Spark\'s Kafka connector is in {fetch_connector()}"'},
    "spark/runtime/worker_daemon.py": {"f'headrace: kernels are not taken over: {error}'", "f'headrace: not loaded ahead: {error}'"},
    "terminal_text.py": {"escape_text(text)"},
}


def test_all_output_passes_the_escaping_function() -> None:
    """A new `print` must be `print_line`, or be named above with its reason."""
    package = Path(headrace.__file__).parent
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("demo/"):
            continue
        for node in ast.walk(syntax_tree(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                assert ast.unparse(node.args[0]) in _RAW_PRINTS.get(name, set()), f"{name}:{node.lineno}"
