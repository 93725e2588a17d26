"""A password that a person enters is in a file of its own after the save, and in no file otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.load import load
from headrace.editor import Editor, parse_draft
from headrace.editor import file_changes as file_changes_module
from headrace.editor.pipe_file import PipeFile
from headrace.editor.secret_files import FOLDER, NewSecrets
from headrace.errors import DefiniteError, TransientError
from headrace.service.status import ReloadResult

FILE = """\
[sources.shop]
url = "mysql://repl:first@db:3306/shop"   # the primary

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "headrace.toml"
    made.write_text(FILE)
    return made


@pytest.fixture
def editor(file: Path) -> Iterator[Editor]:
    before = os.umask(0)
    try:
        yield Editor(file, file.parent / "headrace-state", (), lambda: True, ReloadResult)
    finally:
        os.umask(before)


def draft(password: str = "", url: str = "", **more: Any) -> Any:
    source = {"name": "shop", "url": url, "password": password}
    return parse_draft({"name": "shop", "source": source, "sink": {"name": "warehouse"}, **more})


def save(editor: Editor, password: str, **more: Any) -> dict[str, Any]:
    return editor.save(draft(password, **more), editor.read()["digest"])


def stored(file: Path) -> dict[str, str]:
    """Return the files of passwords with their contents."""
    folder = file.parent / FOLDER
    return {one.name: one.read_text() for one in folder.iterdir()} if folder.exists() else {}


def source_url(file: Path) -> str:
    """Return the source's address with its password, as a process uses it."""
    return load(file).pipes[0].specs[0].source


def test_a_saved_password_is_in_its_own_file_only(editor: Editor, file: Path) -> None:
    saved = save(editor, "p\u00e4ss${x} ")
    [(name, content)] = stored(file).items()
    assert content == "p\u00e4ss${x} "
    assert file.read_text() == FILE.replace(
        'repl:first@db:3306/shop"   # the primary\n',
        f'repl@db:3306/shop"   # the primary\npassword_file = "{FOLDER}/{name}"\n',
    )
    assert f'+password_file = "{FOLDER}/{name}"' in saved["diff"]
    assert "ss${x}" not in str(saved)
    assert source_url(file) == "mysql://repl:p%C3%A4ss%24%7Bx%7D%20@db:3306/shop"
    assert stat.S_IMODE((file.parent / FOLDER).stat().st_mode) == 0o700
    assert stat.S_IMODE((file.parent / FOLDER / name).stat().st_mode) == 0o600


def test_plans_and_checks_leave_no_file(editor: Editor, file: Path) -> None:
    plan = editor.plan(draft("second"))
    found = editor.check(draft("second", "mysql://repl@127.0.0.1:1/shop"))
    assert "second" not in f"{plan}{found}"
    assert found["source"][0]["name"] == "answer", "the draft is valid, with a password that no file has yet"
    assert [one.name for one in file.parent.iterdir()] == ["headrace.toml"]
    saved = editor.save(draft("second"), plan["digest"])
    assert saved["diff"] == plan["diff"], "the plan shows the name that the save uses"


def test_a_new_password_gets_a_new_file_and_the_old_one_is_removed(editor: Editor, file: Path) -> None:
    save(editor, "second")
    [old] = stored(file)
    by_hand = file.parent / FOLDER / "mine"
    by_hand.write_text("of the person")
    save(editor, "second")
    [new] = stored(file).keys() - {"mine"}
    assert new != old
    assert stored(file) == {new: "second", "mine": "of the person"}
    # Another account does not get the password: its file is removed, too.
    editor.save(draft(url="mysql://other@db:3306/shop"), editor.read()["digest"])
    assert stored(file) == {"mine": "of the person"}


def test_files_that_the_editor_did_not_write_stay(editor: Editor, file: Path) -> None:
    (file.parent / FOLDER).mkdir()
    (file.parent / FOLDER / "mine").write_text("first")
    file.write_text(FILE.replace("repl:first@", "repl@").replace("# the primary", f'\npassword_file = "{FOLDER}/mine"'))
    save(editor, "second")
    assert stored(file)["mine"] == "first"
    assert len(stored(file)) == 2


def test_a_file_that_another_section_names_stays(editor: Editor, file: Path) -> None:
    save(editor, "second")
    [old] = stored(file)
    file.write_text(f'{file.read_text()}\n[sources.replica]\nurl = "mysql://repl@replica/"\npassword_file = "{FOLDER}/{old}"\n')
    save(editor, "third")
    assert stored(file)[old] == "second"
    assert sorted(stored(file).values()) == ["second", "third"]


def test_a_refused_save_leaves_no_file(editor: Editor, file: Path) -> None:
    digest = editor.read()["digest"]
    with pytest.raises(DefiniteError):
        save(editor, "second", tables={"shop.orders": {"mask": {"email": "nonsense"}}})
    file.write_text(f"# by hand\n{FILE}")
    with pytest.raises(DefiniteError, match="has changed since it was read"):
        editor.save(draft("second"), digest)
    assert [one.name for one in file.parent.iterdir()] == ["headrace.toml"]


@pytest.mark.parametrize("failure", [DefiniteError("full"), KeyboardInterrupt()])
def test_a_failed_write_of_the_pipe_file_removes_the_password(
    editor: Editor, file: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    seen: list[dict[str, str]] = []

    def fail(*_: object) -> None:
        seen.append(stored(file))
        raise failure

    monkeypatch.setattr(file_changes_module, "replace_pipe_file", fail)
    with pytest.raises(type(failure)):
        save(editor, "second")
    assert [list(one.values()) for one in seen] == [["second"]], "the password is on disk before the file that names it"
    assert [one.name for one in file.parent.iterdir()] == ["headrace.toml"]
    assert file.read_text() == FILE


def test_an_error_after_the_rename_keeps_the_password(editor: Editor, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pipe_file = file_changes_module.replace_pipe_file

    def fail(before: PipeFile, text: str) -> None:
        replace_pipe_file(before, text)
        raise DefiniteError("the disk is full")

    monkeypatch.setattr(file_changes_module, "replace_pipe_file", fail)
    with pytest.raises(DefiniteError, match="the disk is full"):
        save(editor, "second")
    assert source_url(file) == "mysql://repl:second@db:3306/shop"


def test_a_directory_that_cannot_be_written_is_an_error(editor: Editor, file: Path) -> None:
    (file.parent / FOLDER).write_text("a file, not a directory")
    with pytest.raises(DefiniteError, match="the password cannot be stored") as caught:
        save(editor, "second")
    assert FOLDER in caught.value.place
    assert "second" not in str(caught.value)
    assert file.read_text() == FILE


def test_a_failed_reload_keeps_the_password_of_the_written_file(file: Path) -> None:
    def fail() -> ReloadResult:
        raise TransientError("the process is still starting")

    editor = Editor(file, file.parent / "headrace-state", (), lambda: True, fail)
    with pytest.raises(DefiniteError, match="written, and not applied"):
        save(editor, "second")
    assert list(stored(file).values()) == ["second"]
    assert source_url(file) == "mysql://repl:second@db:3306/shop"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "x" * 300, "\u00e9\x00"])
def test_names_of_files_have_a_safe_form(name: str) -> None:
    path = NewSecrets(PipeFile(Path("headrace.toml"), FILE)).add(("sources", name, "password"), "second")
    folder, file = path.split("/")
    assert folder == FOLDER
    assert file.isascii()
    assert len(file) < 120
    assert ".." not in file
