"""Help, the man page and completion are correct, and shells accept the scripts."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace import cli
from headrace.cli import build_parser, manual
from headrace.cli.man_page import Command, list_commands, man_page
from headrace.cli.manual import GROUPS, PAGES, VARIABLES
from headrace.cli.tools import SHELLS, completion_script

FILE = '[headrace]\n[pipes.shop]\n[pipes.crm.tables."x.y"]\n[pipes.orders-eu]  # one more\n#[pipes.old]\n'
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def known() -> list[Command]:
    return list_commands(build_parser())


def test_every_command_has_a_page_and_a_place(known: Sequence[Command]) -> None:
    names = {command.name for command in known if command.path}
    assert names - PAGES.keys() == set()
    assert {name.split()[0] for name in names} - {name for group in GROUPS.values() for name in group} == set()
    for command in known:
        assert command.line
        assert all(flag.help for flag in command.flags)
        assert all(value.help for value in command.values)


def test_examples_parse(known: Sequence[Command]) -> None:
    parser, names = build_parser(), {command.name for command in known}
    for name, page in PAGES.items():
        if name not in names:
            continue
        assert page.examples
        for example, text in page.examples:
            assert text
            inner = re.search(r"\$\((.*)\)", example)
            line = shlex.split((inner[1] if inner else example).partition(" > ")[0])
            assert line[0] == "headrace"
            # An invalid example raises its error here.
            assert callable(parser.parse_args(line[1:]).run)
            assert name in example


def test_variables_of_man_pages_exist() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "manual.py")
    for name in VARIABLES:
        assert f'"{name}"' in code
    for page in PAGES.values():
        assert set(page.variables) <= VARIABLES.keys()


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["help", "verify"]) == 0
    text = capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == text
    assert text.startswith("usage: headrace verify [OPTION]... [SOURCE] [SINK]\n")
    for part in ("examples:\n", "--sample 1%\n", "exit codes:\n", "  1   rows differ\n", "environment:\n", "  HEADRACE_SINK_PASSWORD\n"):
        assert part in text
    assert cli.main(["help"]) == 0
    overview = capsys.readouterr().out
    assert "pipes of a file:\n  run " in overview
    assert "\nother:" not in overview
    assert max(map(len, overview.splitlines())) <= 80
    assert cli.main(["help", "config", "check"]) == 0
    assert "is ./headrace.toml right" not in capsys.readouterr().out
    assert cli.main(["help", "nonsense"]) == 2
    for command in list_commands(build_parser()):
        assert command.parser.format_help()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stauts", "'stauts' is not known here; did you mean status?"),
        ("config chek", "'chek' is not known here; did you mean check?"),
        ("completion tcsh", "'tcsh' is not known here (choose from bash, zsh, fish)"),
        ("status --wacth", "unrecognized arguments: --wacth; did you mean --watch?"),
        ("xyzzy", "'xyzzy' is not known here ("),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(line.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_the_man_page(known: Sequence[Command], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "--man"]) == 0
    page = capsys.readouterr().out
    assert page == man_page(known)
    for command in known[1:]:
        assert f"\\fBheadrace {command.name.replace('-', chr(92) + '-')}\\fR" in page
    read = subprocess.run(["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-Wbreak"], input=page, capture_output=True, text=True, check=True)
    assert read.stderr == ""
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", read.stdout)
    assert "headrace skip shop --place binlog.000042:1337 --yes" in plain
    assert "mysql://user:password@host:port/db?SETTING=VALUE" in plain.replace("\n", "")


CASES = [
    ("headrace ver", {"verify"}),
    ("headrace res", {"resume", "resync"}),
    ("headrace --log-format ", {"text", "json"}),
    ("headrace pause ", {"shop", "crm", "orders-eu"}),
    ("headrace -v pause --file other.toml ", {"elsewhere"}),
    ("headrace run --pipe o", {"orders-eu"}),
    ("headrace config s", {"show", "schema"}),
    ("headrace replicate --snapshot ", {"lock-free", "consistent", "none"}),
    ("headrace completion ", {"bash", "zsh", "fish"}),
    ("headrace status --wa", {"--watch"}),
    ("headrace run o", {"other.toml"}),
    ("headrace replicate --settings o", {"other.toml"}),
    ("headrace status --state d", {"deep"}),
    ("headrace status --url ", set()),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shell in SHELLS:
        (tmp_path / f"headrace.{shell}").write_text(completion_script(build_parser(), shell))
    (tmp_path / "headrace.toml").write_text(FILE)
    (tmp_path / "other.toml").write_text("[pipes.elsewhere]\n")
    (tmp_path / "deep").mkdir()
    return tmp_path


def test_bash_completes(folder: Path) -> None:
    asked = "".join(
        f"COMP_WORDS=({' '.join(line.split())}{' ' + chr(39) * 2 if line.endswith(' ') else ''}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1));"
        " _shtab_headrace; echo ${COMPREPLY[*]}\n"
        for line, _ in CASES
    )
    program = f"set -u; source headrace.bash; complete -p headrace >&2\n{asked}"
    done = subprocess.run(["bash", "--norc", "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == "complete -o bashdefault -F _shtab_headrace headrace\n"
    assert [set(line.split()) for line in done.stdout.splitlines()] == [expected for _, expected in CASES]


def test_fish_completes(folder: Path) -> None:
    asked = "".join(f"complete -C {shlex.quote(line)}; echo ---\n" for line, _ in CASES)
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source headrace.fish\n{asked}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stderr == ""
    found = [{line.partition("\t")[0].rstrip("/") for line in part.split("\n") if line} for part in done.stdout.split("---\n")[:-1]]
    assert found == [expected for _, expected in CASES]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_on_a_terminal(folder: Path, shell: str) -> None:
    """Type, press Tab and read the terminal, as a user does."""
    begin = {
        "bash": (["bash", "--norc", "--noprofile", "-i"], "source ./headrace.bash"),
        "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source ./headrace.zsh"),
    }
    command, setting_up = begin[shell]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PS1": "> ", "COLUMNS": "200", "HOME": str(folder)}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            os.write(ours, f"{setting_up}; echo set''-up\n".encode())
            _read_until(ours, "set-up")
            os.write(ours, b"echo headrace pau\t")
            os.write(ours, b"\x15headrace pau\t")
            _read_until(ours, "headrace pause ")
            os.write(ours, b"orders\t")
            _read_until(ours, "orders-eu ")
            os.write(ours, b"cr\t")
            _read_until(ours, "crm ")
            os.write(ours, b"\x15headrace config \t\t")
            _read_until(ours, "schema")
        finally:
            process.kill()
    os.close(ours)


def _read_until(descriptor: int, word: str) -> None:
    seen, deadline = "", time.monotonic() + 60
    while word not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 1)[0]:
            seen += os.read(descriptor, 1 << 16).decode(errors="replace")


def test_long_words_are_not_broken() -> None:
    formatter = manual.HelpFormatter("headrace")
    address = "scylla://user:password@host,host:port/keyspace?SETTING=VALUE"
    assert address in formatter._split_lines(f"or {address} of it", 40)
