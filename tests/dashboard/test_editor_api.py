"""The edit API over HTTP: access, errors, and no stored password in any answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.dashboard.server import serve
from headrace.editor import Editor
from headrace.editor.secret_files import FOLDER
from headrace.service.status import ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl

FILE = """\
[sources.shop]
url = "mysql://repl:geheim@127.0.0.1:1/shop"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

[pipes.crm]
source = "shop"
sink = "warehouse"
prefix = "crm_"
"""
DRAFT = {"name": "shop", "source": {"name": "shop"}, "sink": {"name": "warehouse"}, "include": ["orders"]}
Ask = Callable[..., tuple[int, Any]]


class Switch:
    on = True


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def ask(tmp_path: Path, switch: Switch) -> Iterator[Ask]:
    file = tmp_path / "headrace.toml"
    file.write_text(FILE)
    editor = Editor(file, tmp_path / "headrace-state", (), lambda: switch.on, lambda: ReloadResult(restarted=("shop",)))
    with serve(FakeControl(), "127.0.0.1:0", TOKEN, editor=editor) as server:

        def asked(action: str, body: Any = None, *, token: str = TOKEN, method: str = "POST") -> tuple[int, Any]:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
            connection.request(method, f"/api/edit{action}", None if method == "GET" else json.dumps(body or {}), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            assert "geheim" not in text
            return answer.status, json.loads(text)

        yield asked


def test_access(ask: Ask, switch: Switch) -> None:
    assert ask("", method="GET", token="") == (200, {"edit": True})
    for action in ("read", "check", "tables", "columns", "preview", "plan", "save", "delete"):
        assert ask(f"/{action}", token="")[0] == 401
        assert ask(f"/{action}", method="GET")[0] == 405
    switch.on = False
    assert ask("", method="GET", token="") == (200, {"edit": False})
    for action in ("read", "plan", "save", "delete"):
        status, answer = ask(f"/{action}", {"draft": DRAFT} if action in ("plan", "save") else {})
        assert status == 403
        assert "edit = true" in answer["error"]["remedy"]


def test_a_process_without_a_file() -> None:
    with serve(FakeControl(), "127.0.0.1:0", TOKEN) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/api/edit")
        assert json.loads(connection.getresponse().read()) == {"edit": False}
        connection.request("POST", "/api/edit/read", "{}", {"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 403
        connection.close()


def test_read_plan_save_delete(ask: Ask, tmp_path: Path) -> None:
    status, known = ask("/read", {"pipe": "shop"})
    assert status == 200
    assert known["sources"][0]["url"] == "mysql://repl:***@127.0.0.1:1/shop"
    status, plan = ask("/plan", {"draft": DRAFT})
    assert (status, plan["changed"]) == (200, True)
    assert '+include = ["orders"]' in plan["diff"]
    assert ask("/save", {"draft": DRAFT, "digest": "old"})[0] == 409
    status, saved = ask("/save", {"draft": DRAFT, "digest": known["digest"]})
    assert (status, saved["reload"]["restarted"]) == (200, ["shop"])
    assert (tmp_path / "headrace.toml").read_text() == FILE.replace(
        '"warehouse"\n\n[pipes.crm', '"warehouse"\ninclude = ["orders"]\n\n[pipes.crm'
    )
    assert ask("/delete", {"pipe": "shop", "digest": saved["digest"]})[0] == 200
    assert ask("/read", {"pipe": "shop"})[0] == 409


def test_an_entered_password_is_in_no_answer_and_not_in_the_pipe_file(ask: Ask, tmp_path: Path) -> None:
    draft = {**DRAFT, "source": {"name": "shop", "password": "geheim-new"}}
    assert ask("/plan", {"draft": draft})[0] == 200
    assert not (tmp_path / FOLDER).exists()
    digest = ask("/read", {"pipe": "shop"})[1]["digest"]
    status, saved = ask("/save", {"draft": draft, "digest": digest})
    assert status == 200
    [file] = (tmp_path / FOLDER).iterdir()
    assert file.read_text() == "geheim-new"
    assert f'+password_file = "{FOLDER}/{file.name}"' in saved["diff"]
    assert "geheim" not in (tmp_path / "headrace.toml").read_text()


def test_checks_show_errors_with_remedies(ask: Ask) -> None:
    status, found = ask("/check", {"draft": DRAFT})
    assert status == 200
    [source] = found["source"]
    assert (source["level"], source["name"]) == ("error", "answer")
    assert source["meaning"]
    assert source["repair"]
    assert [one["level"] for one in found["sink"]] == ["ok"]
    status, found = ask("/tables", {"draft": DRAFT})
    assert status in (409, 503)
    assert found["error"]["remedy"]
    other = {**DRAFT, "source": {"name": "shop", "url": "mysql://repl:***@127.0.0.1:2/shop"}}
    status, found = ask("/check", {"draft": other})
    assert status == 409
    assert "another account" in found["error"]["message"]


@pytest.mark.parametrize(("action", "body"), [("check", {}), ("plan", {"draft": []}), ("save", {"draft": {"name": 1}})])
def test_malformed_requests(ask: Ask, action: str, body: Any) -> None:
    status, answer = ask(f"/{action}", body)
    assert status == 409
    assert answer["error"]["message"]
    assert ask(f"/{action}", {**body, "extra": 1})[0] == 400
    assert ask("/nothing", body)[0] == 404
