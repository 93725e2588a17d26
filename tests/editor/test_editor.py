"""Drafts of pipes against a file on disk: read, plan, save, delete. Servers are in `tests/dashboard/test_editor_page.py`."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.editor import Editor, EditRefused, parse_draft
from headrace.editor import pipe_file as pipe_file_module
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.service.status import ReloadResult

FILE = """\
# Our pipes.
[sources.shop]
url = "mysql://repl:geheim@db:3306/shop"   # the primary

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
# Only these.
include = ["orders"]
[pipes.shop.tables."shop.orders"]
filter = "id > 3"
drop = ["note"]

[pipes.crm]
source = "shop"
sink = "warehouse"
include = ["crm.*"]
"""


class Process:
    """A process that runs the file: its editor, and how often it was reloaded."""

    def __init__(self, directory: Path) -> None:
        self.file, self.reloads, self.edits = directory / "headrace.toml", 0, True
        self.failure: HeadraceError | None = None
        self.file.write_text(FILE)
        self.editor = Editor(self.file, directory / "headrace-state", (), lambda: self.edits, self._reload)

    def _reload(self) -> ReloadResult:
        self.reloads += 1
        if self.failure is not None:
            raise self.failure
        return ReloadResult(restarted=("shop",))

    def draft(self, name: str = "shop", **changed: Any) -> Any:
        pipe = self.editor.read(name)["pipe"]
        return parse_draft({**pipe, "source": {"name": pipe["source"]}, "sink": {"name": pipe["sink"]}, **changed})


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.mark.parametrize("kind", [DefiniteError, TransientError])
def test_a_reload_that_fails_says_that_the_file_is_written(process: Process, kind: type[HeadraceError]) -> None:
    process.failure = kind("the process is still starting", place="headrace.toml", hint="try again in a moment")
    digest = process.editor.read("shop")["digest"]
    with pytest.raises(DefiniteError, match="the file is written, and not applied: the process is still starting"):
        process.editor.save(process.draft(include=["customers"]), digest)
    assert process.editor.read("shop")["pipe"]["include"] == ["customers"]


def test_a_pipe_as_a_draft(process: Process) -> None:
    found = process.editor.read("shop")
    assert found["pipe"] == {
        "name": "shop",
        "source": "shop",
        "sink": "warehouse",
        "include": ["orders"],
        "exclude": [],
        "enabled": True,
        "tables": {"shop.orders": {"drop": ["note"], "mask": {}}},
    }
    assert found["sources"] == [{"name": "shop", "url": "mysql://repl:***@db:3306/shop", "tables": [], "exclude": []}]
    assert found["toml"].startswith('[pipes.shop]\nsource = "shop"\n')
    assert "geheim" not in str(found)
    assert process.editor.plan(process.draft())["changed"] is False
    with pytest.raises(DefiniteError, match="no pipe 'absent'"):
        process.editor.read("absent")


def test_a_plan_shows_the_difference_and_writes_nothing(process: Process) -> None:
    draft = process.draft(include=["orders", "people"], tables={"shop.orders": {"drop": [], "mask": {"email": "email"}}})
    diff = process.editor.plan(draft)["diff"].splitlines()
    assert [line for line in diff if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        '-include = ["orders"]',
        '+include = ["orders", "people"]',
        '-drop = ["note"]',
        '+mask = {email = "email"}',
    ]
    assert process.file.read_text() == FILE
    with pytest.raises(DefiniteError, match="is no mask"):
        process.editor.plan(process.draft(tables={"shop.orders": {"mask": {"email": "no such mask"}}}))


def test_saving_keeps_comments_mode_and_link(process: Process, tmp_path: Path) -> None:
    there = tmp_path / "config" / "pipes.toml"
    there.parent.mkdir()
    process.file.rename(there)
    process.file.symlink_to(there)
    there.chmod(0o640)
    saved = process.editor.save(process.draft(include=["people"]), process.editor.read()["digest"])
    assert process.file.is_symlink()
    assert stat.S_IMODE(there.stat().st_mode) == 0o640
    assert there.read_text() == FILE.replace('["orders"]', '["people"]')
    assert list(saved["reload"]["restarted"]) == ["shop"]
    assert process.reloads == 1
    assert saved["digest"] == process.editor.read()["digest"]
    assert sorted(os.listdir(there.parent)) == ["pipes.toml"]  # noqa: PTH208


def test_a_file_that_changed_meanwhile_is_not_overwritten(process: Process) -> None:
    digest = process.editor.read()["digest"]
    draft = process.draft(include=["people"])
    by_hand = FILE.replace("# Our pipes.", "# Your pipes.")
    process.file.write_text(by_hand)
    for edit in (lambda: process.editor.save(draft, digest), lambda: process.editor.delete("shop", digest)):
        with pytest.raises(DefiniteError, match="has changed since it was read"):
            edit()
    assert process.file.read_text() == by_hand
    assert process.reloads == 0


def test_a_change_during_the_write_wins(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, fsync = process.editor.read()["digest"], os.fsync

    def write_by_hand(descriptor: int) -> None:
        process.file.write_text("# by hand\n" + FILE)
        fsync(descriptor)

    monkeypatch.setattr(pipe_file_module.os, "fsync", write_by_hand)
    with pytest.raises(DefiniteError, match="has changed since it was read"):
        process.editor.save(process.draft(include=["people"]), digest)
    assert process.file.read_text() == "# by hand\n" + FILE
    assert [path.name for path in process.file.parent.iterdir()] == ["headrace.toml"]


def test_an_invalid_result_is_not_written(process: Process) -> None:
    digest = process.editor.read()["digest"]
    with pytest.raises(DefiniteError):
        process.editor.save(process.draft(tables={"shop.orders": {"mask": {"email": "nonsense"}}}), digest)
    with pytest.raises(DefiniteError, match="cannot be read"):
        process.editor.save(process.draft(source={"name": "nowhere", "url": "mysql://:@"}), digest)
    assert process.file.read_text() == FILE
    assert process.reloads == 0


def test_a_new_pipe(process: Process) -> None:
    raw = {
        "name": "people",
        "is_new": True,
        "source": {"name": "hr", "url": "mysql://hr@db2/hr", "password": "p"},
        "sink": {"name": "warehouse"},
        "include": ["people"],
        "tables": {"hr.people": {"mask": {"salary": "null"}, "drop": ["photo"]}},
    }
    process.editor.save(parse_draft(raw), process.editor.read()["digest"])
    text = process.file.read_text()
    assert text.startswith(FILE)
    assert "[pipes.people]" in text
    assert process.editor.read("people")["pipe"]["tables"] == {"hr.people": {"drop": ["photo"], "mask": {"salary": "null"}}}
    with pytest.raises(DefiniteError, match="already"):
        process.editor.plan(parse_draft(raw))
    with pytest.raises(DefiniteError, match=r"section \[sources.shop\] already"):
        process.editor.plan(parse_draft({**raw, "name": "other", "source": {"name": "shop", "url": "mysql://x@evil/"}}))


def test_deleting_a_pipe(process: Process) -> None:
    process.editor.delete("shop", process.editor.read()["digest"])
    assert "[pipes.shop" not in process.file.read_text()
    assert "[sources.shop]" in process.file.read_text()
    with pytest.raises(DefiniteError, match="only pipe"):
        process.editor.delete("crm", process.editor.read()["digest"])
    assert process.reloads == 1


def test_references_cannot_be_entered(process: Process) -> None:
    for changed in (
        {"include": ["${file:/etc/passwd}"]},
        {"exclude": ["a.${HOME}"]},
        {"tables": {"shop.orders": {"mask": {"email": "text ${HOME}"}}}},
        {"tables": {"shop.${HOME}": {"drop": ["x"]}}},
        {"source": {"name": "fresh", "url": "mysql://u@${HOME}/"}},
    ):
        with pytest.raises(DefiniteError, match="a reference"):
            process.editor.plan(process.draft(**changed))


def test_editing_is_off_unless_the_file_says_so(process: Process) -> None:
    process.editor.require_enabled()
    process.edits = False
    with pytest.raises(EditRefused, match="cannot be edited") as caught:
        process.editor.require_enabled()
    assert "edit = true" in caught.value.hint
    assert "headrace reload" in caught.value.hint


def test_two_edits_at_once(process: Process) -> None:
    """Both have seen the same file: the second is refused."""
    digest, drafts = process.editor.read()["digest"], [process.draft(include=[name]) for name in ("a", "b")]
    outcomes: list[str] = []

    def save(draft: Any) -> None:
        try:
            process.editor.save(draft, digest)
            outcomes.append("saved")
        except DefiniteError:
            outcomes.append("refused")

    threads = [threading.Thread(target=save, args=(draft,)) for draft in drafts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "saved"]


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"name": "a b", "source": {"name": "s"}, "sink": {"name": "s"}},
        {"name": "a", "source": "s", "sink": {"name": "s"}},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "state": "/"},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "include": "x"},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "include": ["x" * 5000]},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "tables": {"x": {}}},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "tables": {"x.y": {"hash": {}}}},
        {"name": "a", "source": {"name": "s"}, "sink": {"name": "s"}, "enabled": "yes"},
    ],
)
def test_malformed_drafts(raw: Any) -> None:
    with pytest.raises(DefiniteError):
        parse_draft(raw)
