"""A sink is defined by its folder and one entry of the registry: everything else is derived from its connector."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import dataclasses, json, pathlib, sys
from headrace.sinks import registry

@dataclasses.dataclass(frozen=True)
class ParquetOptions:
    row_group: int = 1000
    \"\"\"Rows of a group.\"\"\"
    layout: str = "flat"
    \"\"\"The layout of the folder.\"\"\"

parquet = dataclasses.replace(
    registry.STDOUT, name="parquet", label="Parquet files", form="parquet:DIR", schemes=("parquet:",), matches=None, section="parquet",
    section_subject="Parquet files", options=ParquetOptions, changeable=frozenset({"row_group"}), options_page="parquet", prints=False,
    address_options=None, check_address=print, redact=str, content="files",
)
registry.SINK_CONNECTORS = (*registry.SINK_CONNECTORS, parquet)
registry._BY_PRECEDENCE = (*registry._BY_PRECEDENCE, parquet)

from headrace.config import load as load_file
from headrace.config.generated_files import build_schema
from headrace.errors import HeadraceError
from headrace.pipes.state.pipe_state import PipeState
from headrace.pipes.state.stored_settings import store_settings
from headrace.settings.reference_page import markdown
from headrace.settings.settings_file import parse_settings

def load(lines):
    file = pathlib.Path(sys.argv[1])
    head = '[sources.shop]\\nurl = "mysql://root@h/shop"\\n[pipes.p]\\nsource = "shop"\\nsink = "lake"\\n[sinks.lake]\\n'
    file.write_text(head + lines)
    return load_file(file)

def error_of(function, *arguments):
    try:
        function(*arguments)
    except HeadraceError as error:
        return str(error)

[pipe] = load('url = "parquet:here"\\nrow_group = 5\\n').pipes
state = PipeState("s", "log", "sink", {}, {}, 0, {})
store_settings(state, {"parquet": {"layout": "flat"}}, "pipe.json")
store_settings(state, {"parquet": {"row_group": 7}}, "pipe.json")
print(json.dumps({
    "sink": pipe.specs[0].sink,
    "schema": json.dumps(build_schema()),
    "page": markdown("parquet"),
    "options": dataclasses.asdict(parse_settings("[parquet]\\nrow_group = 9", "f").section_options("parquet")),
    "value": error_of(load, 'url = "parquet:here"\\nrow_group = "x"\\n'),
    "key": error_of(load, 'url = "parquet:here"\\nrow_groups = 1\\n'),
    "address": error_of(load, 'url = "delta:here"\\n'),
    "changed": error_of(store_settings, state, {"parquet": {"layout": "deep"}}, "pipe.json"),
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sink")
    (folder / "program.py").write_text(_PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder / "headrace.toml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_pipe_file_accepts_a_registered_sink_with_its_options(seen: dict[str, str]) -> None:
    assert seen["sink"].startswith("parquet:")
    assert seen["options"] == {"row_group": 9, "layout": "flat"}
    assert "row_group must be a whole number" in seen["value"]
    assert "did you mean row_group?" in seen["key"]
    assert "or parquet:DIR" in seen["address"]


def test_reference_pages_and_the_json_schema_list_the_options(seen: dict[str, str]) -> None:
    assert '"^(parquet:)"' in seen["schema"]
    assert "Rows of a group." in seen["schema"]
    assert "| `row_group` ↻ | a whole number | `1000` | Rows of a group. |" in seen["page"]
    assert "| `layout` | text |" in seen["page"]


def test_only_changeable_options_may_change_at_a_restart(seen: dict[str, str]) -> None:
    assert 'the pipe began with layout = "flat", and "deep" would make other files' in seen["changed"]
    assert "pipe.json, parquet.layout" in seen["changed"]


def test_no_other_package_imports_a_sink_to_know_its_kind() -> None:
    """`stdout` and `cql` are named outside of their folders only by the registry, by `--format`, and where lines are printed for people."""
    source = Path(__file__).parents[2] / "src" / "headrace"
    users = {
        str(path.relative_to(source))
        for name in ("stdout", "cql")
        for path in source.rglob("*.py")
        if f"headrace.sinks.{name}" in path.read_text() and source / "sinks" / name not in path.parents
    }
    assert users == {"sinks/registry.py", "cli/replicate.py", "cli/tail.py", "pipes/commands/mysql_tail.py"}
