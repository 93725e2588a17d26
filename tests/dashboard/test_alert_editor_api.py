"""Rules of alerts over the edit API: list, plan, save, delete, and test alerts to real receivers. No answer has a stored secret."""

from __future__ import annotations

import http.client
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.load import load
from headrace.dashboard.server import serve
from headrace.editor import Editor
from headrace.editor.secret_files import FOLDER
from headrace.service.status import ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.alert_receivers import MailServer, Webhook, mail_server, webhook

FILE = """\
# Pipes of the shop.
[sources.shop]
url = "mysql://repl@127.0.0.1:1/shop"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

# The team's chat.
[alerts.chat]
url = "http://127.0.0.1:{hook}/geheim-path"   # do not share
token = "geheim-token"
events = ["failed", "recovered"]   # no noise

[alerts.mail]
url = "smtp://geheim-user@127.0.0.1:{mail}"
password = "geheim-password"
sender = "headrace@example.com"
to = ["ops@example.com"]
timeout_seconds = 5
"""
ACTIONS = ("list", "plan", "test", "save", "delete")
Ask = Callable[..., tuple[int, Any]]


class Switch:
    on = True
    reloads = 0


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as receiver:
        yield receiver


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path, hook: Webhook, mail: MailServer) -> Path:
    made = tmp_path / "headrace.toml"
    made.write_text(FILE.format(hook=hook.port, mail=mail.port))
    return made


@pytest.fixture
def ask(file: Path, switch: Switch) -> Iterator[Ask]:
    def reload() -> ReloadResult:
        switch.reloads += 1
        return ReloadResult(applied=("[alerts.chat]",))

    editor = Editor(file, file.parent / "headrace-state", (), lambda: switch.on, reload)
    with serve(FakeControl(), "127.0.0.1:0", TOKEN, editor=editor) as server:

        def asked(action: str, body: Any = None, *, token: str = TOKEN, method: str = "POST") -> tuple[int, Any]:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
            connection.request(method, f"/api/edit/alerts/{action}", None if method == "GET" else json.dumps(body or {}), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            assert "geheim" not in text
            return answer.status, json.loads(text)

        yield asked


def draft_of(ask: Ask, name: str, **changed: Any) -> dict[str, Any]:
    [rule] = [rule for rule in ask("list")[1]["rules"] if rule["name"] == name]
    return {key: value for key, value in rule.items() if key != "has_secret"} | changed


def save(ask: Ask, draft: dict[str, Any]) -> tuple[int, Any]:
    return ask("save", {"draft": draft, "digest": ask("list")[1]["digest"]})


def test_access(ask: Ask, switch: Switch, file: Path) -> None:
    before = file.read_text()
    for action in ACTIONS:
        assert ask(action, token="")[0] == 401
        assert ask(action, token="wrong")[0] == 401
        assert ask(action, method="GET")[0] == 405
        assert ask(action, {"extra": 1})[0] == 400
    switch.on = False
    for action in ACTIONS:
        status, answer = ask(action)
        assert status == 403
        assert "edit = true" in answer["error"]["remedy"]
    assert ask("nothing")[0] == 404
    assert file.read_text() == before


def test_rules_are_listed_without_secrets(ask: Ask, hook: Webhook, mail: MailServer) -> None:
    status, known = ask("list")
    assert status == 200
    assert [(rule["name"], rule["kind"], rule["url"], rule["has_secret"]) for rule in known["rules"]] == [
        ("chat", "json", f"http://127.0.0.1:{hook.port}/***", True),
        ("mail", "e-mail", f"smtp://***@127.0.0.1:{mail.port}", True),
    ]
    assert known["pipes"] == ["shop"]
    assert known["events"] == ["failed", "recovered", "lag", "schema_change", "differences", "low_disk"]
    assert known["defaults"]["events"] == known["events"]


def test_a_change_keeps_comments_other_keys_and_secrets(ask: Ask, file: Path, switch: Switch) -> None:
    before = file.read_text()
    draft = draft_of(ask, "mail", to=["ops@example.com", "b@example.com"], lag_seconds=30)
    status, plan = ask("plan", {"draft": draft})
    assert (status, plan["changed"]) == (200, True)
    assert '+to = ["ops@example.com", "b@example.com"]' in plan["diff"]
    assert file.read_text() == before
    assert switch.reloads == 0
    status, saved = save(ask, draft)
    assert status == 200
    assert saved["diff"] == plan["diff"]
    assert saved["summary"] == list(ReloadResult(applied=("[alerts.chat]",)).lines())
    assert file.read_text() == before.replace(
        'to = ["ops@example.com"]\ntimeout_seconds = 5\n',
        'to = ["ops@example.com", "b@example.com"]\ntimeout_seconds = 5\nlag_seconds = 30\n',
    )
    assert switch.reloads == 1
    assert ask("save", {"draft": draft, "digest": "old"})[0] == 409


def test_a_new_rule_and_its_secrets(ask: Ask, file: Path, hook: Webhook) -> None:
    before = file.read_text()
    draft = {
        "name": "pager",
        "is_new": True,
        "kind": "slack",
        "url": f"http://127.0.0.1:{hook.port}/services/path-secret?key=1",
        "secret": "entered-token",
        "events": ["failed", "lag"],
        "pipes": ["shop*"],
        "away_seconds": 60,
    }
    status, plan = ask("plan", {"draft": draft})
    assert status == 200
    assert "+[alerts.pager]" in plan["diff"]
    assert "path-secret" not in str(plan)
    assert "entered-token" not in str(plan)
    assert not (file.parent / FOLDER).exists()
    assert save(ask, draft)[0] == 200
    text = file.read_text()
    assert text.startswith(before)
    assert "path-secret" not in text
    assert "entered-token" not in text
    assert tomllib.loads(text)["alerts"]["pager"].keys() == {"url", "format", "token", "events", "pipes", "away_seconds"}
    assert sorted(one.read_text() for one in (file.parent / FOLDER).iterdir()) == ["entered-token", "services/path-secret?key=1"]
    [rule] = [rule for rule in load(file).alerts if rule.name == "pager"]
    assert (rule.receiver.path, rule.receiver.token) == ("/services/path-secret?key=1", "entered-token")  # type: ignore[union-attr]
    assert ask("plan", {"draft": draft})[0] == 409, "the name is taken"
    status, _ = ask("delete", {"rule": "pager", "digest": ask("list")[1]["digest"]})
    assert status == 200
    assert file.read_text().rstrip() == before.rstrip()
    assert list((file.parent / FOLDER).iterdir()) == [], "its secrets go with it"


def test_deleting_all_rules(ask: Ask, file: Path) -> None:
    for name in ("chat", "mail"):
        status, deleted = ask("delete", {"rule": name, "digest": ask("list")[1]["digest"]})
        assert (status, deleted["changed"]) == (200, True)
    text = file.read_text()
    assert text.startswith("# Pipes of the shop.\n")
    assert "alerts" not in tomllib.loads(text)
    assert "team's chat" not in text
    assert ask("list")[1]["rules"] == []
    assert ask("delete", {"rule": "chat", "digest": ask("list")[1]["digest"]})[0] == 409


def test_a_test_alert_to_a_webhook(ask: Ask, hook: Webhook, file: Path) -> None:
    before = file.read_text()
    status, answer = ask("test", {"draft": draft_of(ask, "chat")})
    assert (status, answer) == (200, {"receiver": f"http://127.0.0.1:{hook.port}", "answer": "HTTP 200"})
    assert ask("test", {"draft": draft_of(ask, "chat", url=f"http://127.0.0.1:{hook.port}/new", secret="entered")})[0] == 200
    stored, entered = hook.posted
    assert (stored.path, stored.headers["authorization"], stored.body["kind"]) == ("/geheim-path", "Bearer geheim-token", "test")
    assert (entered.path, entered.headers["authorization"]) == ("/new", "Bearer entered")
    hook.answers, hook.text = [404], "no such hook"
    status, answer = ask("test", {"draft": draft_of(ask, "chat")})
    assert status == 503
    assert answer["error"]["message"] == "it answers 404 Not Found: no such hook"
    assert "check url" in answer["error"]["remedy"]
    assert file.read_text() == before
    assert not (file.parent / FOLDER).exists()


def test_a_test_alert_by_mail(ask: Ask, mail: MailServer) -> None:
    assert ask("test", {"draft": draft_of(ask, "mail", to=["b@example.com"])}) == (
        200,
        {"receiver": f"b@example.com by 127.0.0.1:{mail.port}", "answer": "accepted"},
    )
    assert mail.logins == ["geheim-user:geheim-password"]
    assert "test" in mail.messages[0]["Subject"]
    mail.rejects = {"DATA": "554 spam"}
    status, answer = ask("test", {"draft": draft_of(ask, "mail")})
    assert (status, answer["error"]["message"]) == (409, "it answers 554: spam")


def test_stored_secrets_reach_no_other_receiver(ask: Ask, hook: Webhook, file: Path) -> None:
    with webhook() as evil, mail_server() as evil_mail:
        chat, mail = draft_of(ask, "chat"), draft_of(ask, "mail")
        moved = {**chat, "url": chat["url"].replace(str(hook.port), str(evil.port))}
        for action in ("test", "plan"):
            status, answer = ask(action, {"draft": moved})
            assert status == 409
            assert "another receiver" in answer["error"]["message"]
        assert save(ask, moved)[0] == 409
        assert ask("test", {"draft": {**chat, "url": f"http://127.0.0.1:{evil.port}/x"}})[0] == 200
        assert ask("test", {"draft": {**mail, "url": f"smtp://geheim-user@127.0.0.1:{evil_mail.port}"}})[0] == 409
        assert ask("test", {"draft": {**mail, "url": f"smtp://127.0.0.1:{evil_mail.port}"}})[0] == 200
        [posted] = evil.posted
        assert "authorization" not in posted.headers
        assert evil_mail.logins == []
    assert save(ask, {**chat, "url": "http://127.0.0.1:1/x"})[0] == 200
    assert "token" not in tomllib.loads(file.read_text())["alerts"]["chat"]


@pytest.mark.parametrize(
    "changed",
    [
        {"events": ["failure"]},
        {"events": []},
        {"pipes": ["crm"]},
        {"low_disk": "many"},
        {"lag_seconds": -1},
        {"lag_seconds": None},
        {"kind": "e-mail"},
        {"url": "http://hooks.example.com/x"},
        {"url": "https://${HOME}/x"},
        {"secret": "line\nbreak"},
    ],
)
def test_wrong_drafts_have_a_remedy_and_change_nothing(ask: Ask, file: Path, hook: Webhook, changed: dict[str, Any]) -> None:
    before = file.read_text()
    draft = draft_of(ask, "chat", **changed)
    for action in ("plan", "test"):
        status, answer = ask(action, {"draft": draft})
        assert status == 409
        assert answer["error"]["remedy"]
    assert save(ask, draft)[0] == 409
    assert file.read_text() == before
    assert hook.posted == []
    assert not (file.parent / FOLDER).exists()
