"""Rules of alerts in drafts: secrets are not shown, and a stored one goes to no other receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.config.document import parse_document
from headrace.editor.alert_changes import alert_changes, shown_rule
from headrace.editor.draft import AlertDraft, parse_alert_draft
from headrace.editor.masked_text import mask_text
from headrace.editor.pipe_file import PipeFile
from headrace.editor.secret_files import FOLDER, NewSecrets
from headrace.errors import DefiniteError

FILE = f"""
[alerts.chat]
url = "https://hooks.example.com/services/geheim1?key=geheim2"
format = "slack"
[alerts.pager]
url = "https://pager.example.com:8443"
token = "geheim3"
lag_seconds = 120
[alerts.whole]
url = "${{HOOK}}"
[alerts.path]
url = "https://hooks.example.com/${{file:{FOLDER}/x}}"
[alerts.mail]
url = "smtp://geheim4@mail.example.com:587"
password = "${{SMTP_PASSWORD}}"
sender = "h@example.com"
to = ["a@example.com", "${{ONCALL}}"]
[alerts.inline]
url = "smtps://geheim5:geheim6@mail.example.com"
sender = "h@example.com"
to = ["a@example.com"]
"""
ENVIRONMENT = {"HOOK": "https://hooks.example.com/geheim7", "SMTP_PASSWORD": "geheim8"}
NAMES = ("chat", "pager", "whole", "path", "mail", "inline")
DOCUMENT = parse_document(FILE, "headrace.toml", Path(), ENVIRONMENT, {f"{FOLDER}/x": "geheim9"})


def shown(name: str) -> dict[str, Any]:
    return shown_rule(DOCUMENT, name, DOCUMENT.content["alerts"][name])


def changes(name: str, **changed: Any) -> dict[str, Any]:
    """Return the changed keys of a rule; of new secrets the content of their files."""
    draft = {key: value for key, value in shown(name).items() if key != "has_secret"}
    return changes_of(parse_alert_draft({**draft, **changed}))


def changes_of(draft: AlertDraft) -> dict[str, Any]:
    secrets = NewSecrets(PipeFile(Path("headrace.toml"), FILE))
    found = {path[-1]: value for path, value in alert_changes(DOCUMENT, draft, secrets)}
    for path, content in secrets.contents.items():
        found = {
            key: value.replace(f"${{file:{path}}}", f"<{content}>") if isinstance(value, str) else value for key, value in found.items()
        }
    return found


def test_shown_rules_and_texts_have_no_secrets() -> None:
    rules = {name: shown(name) for name in NAMES}
    assert "geheim" not in str(rules)
    assert "geheim" not in mask_text(FILE)
    assert {name: rule["url"] for name, rule in rules.items()} == {
        "chat": "https://hooks.example.com/***",
        "pager": "https://pager.example.com:8443/***",
        "whole": "https://hooks.example.com/***",
        "path": "https://hooks.example.com/***",
        "mail": "smtp://***@mail.example.com:587",
        "inline": "smtps://***@mail.example.com",
    }
    assert [name for name, rule in rules.items() if rule["has_secret"]] == ["pager", "mail", "inline"]
    assert [rule["kind"] for rule in rules.values()] == ["slack", "json", "json", "json", "e-mail", "e-mail"]
    assert rules["pager"]["lag_seconds"] == 120
    assert rules["pager"]["low_disk"] == "5G"
    # References say where a secret is.
    assert f'url = "https://hooks.example.com/${{file:{FOLDER}/x}}"' in mask_text(FILE)
    assert 'password = "${SMTP_PASSWORD}"' in mask_text(FILE)


@pytest.mark.parametrize("name", NAMES)
def test_an_unchanged_draft_changes_nothing(name: str) -> None:
    assert changes(name) == changes(name, url="") == {}


def test_changed_keys() -> None:
    assert changes("chat", events=["failed"], pipes=["shop*"], lag_seconds=90.0, low_disk="10G", kind="teams") == {
        "events": ["failed"],
        "pipes": ["shop*"],
        "lag_seconds": 90,
        "low_disk": "10G",
        "format": "teams",
    }
    assert changes("pager", lag_seconds=60.0) == {"lag_seconds": 60}
    assert changes("mail", to=["${ONCALL}", "b@example.com"]) == {"to": ["${ONCALL}", "b@example.com"]}


def test_a_new_secret_goes_to_a_file() -> None:
    assert changes("pager", secret="new${x}") == {"token": "<new${x}>"}
    assert changes("mail", secret="new") == {"password": "<new>"}
    assert changes("inline", secret="new") == {"url": "smtps://geheim5@mail.example.com", "password": "<new>"}
    assert changes("chat", url="https://hooks.example.com/services/new?key=x") == {"url": "https://hooks.example.com/<services/new?key=x>"}
    assert changes("mail", url="smtp://ops:p%40ss@other.example.com") == {"url": "smtp://ops@other.example.com", "password": "<p@ss>"}
    fresh = AlertDraft("fresh", "json", "https://[::1]:9/hook", "t", {}, is_new=True)
    assert changes_of(fresh) == {"url": "https://[::1]:9/<hook>", "token": "<t>"}
    with pytest.raises(DefiniteError, match="entered twice"):
        changes("mail", url="smtp://ops:p@other.example.com", secret="p")


def test_the_same_receiver_keeps_its_secret() -> None:
    assert changes("pager", url="https://pager.example.com:8443/v2") == {"url": "https://pager.example.com:8443/<v2>"}
    assert changes("mail", url="smtp://geheim4@mail.example.com") == {}
    assert changes("inline", url="smtps://geheim5@mail.example.com:465") == {}


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("pager", "http://pager.example.com:8443"),
        ("pager", "https://pager.example.com"),
        ("pager", "https://evil.example.com:8443"),
        ("pager", "https://pager.example.com:8443@evil.example.com"),
        ("mail", "smtps://geheim4@mail.example.com:587"),
        ("mail", "smtp://geheim4@evil.example.com:587"),
        ("mail", "smtp://geheim4@mail.example.com:25"),
        ("mail", "smtp://other@mail.example.com:587"),
        ("mail", "smtp://mail.example.com:587"),
        ("inline", "smtps://geheim5@evil.example.com"),
    ],
)
def test_another_receiver_gets_no_stored_secret(name: str, url: str) -> None:
    found = changes(name, url=url)
    key = "token" if name == "pager" else "password"
    assert found.get(key) is None
    assert key in found or name == "inline"
    assert "geheim6" not in str(found)
    with pytest.raises(DefiniteError, match="another receiver"):
        changes(name, url=f"{url}/***")


@pytest.mark.parametrize("url", ["https://evil.example.com/***", "https://***@evil.example.com/x", "https://hooks.example.com:444/***"])
def test_another_host_gets_no_stored_path(url: str) -> None:
    with pytest.raises(DefiniteError, match="another receiver"):
        changes("chat", url=url)


def test_another_kind_of_receiver_leaves_no_keys_behind() -> None:
    found = changes("mail", kind="json", url="https://hooks.example.com/x")
    assert found == {"url": "https://hooks.example.com/<x>", "to": None, "sender": None, "password": None}
    found = changes("pager", kind="e-mail", url="smtp://mail.example.com", to=["a@example.com"], sender="h@example.com")
    assert found == {"url": "smtp://mail.example.com", "token": None, "to": ["a@example.com"], "sender": "h@example.com"}
    for name, kind in (("chat", "e-mail"), ("mail", "slack")):
        with pytest.raises(DefiniteError, match="not the address of"):
            changes(name, kind=kind)


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "https://${HOOK}/"},
        {"url": "https://h/${file:/etc/passwd}"},
        {"pipes": ["${HOME}"]},
        {"events": ["${HOME}"]},
        {"low_disk": "${HOME}"},
    ],
)
def test_references_cannot_be_entered(changed: dict[str, Any]) -> None:
    with pytest.raises(DefiniteError, match="a reference"):
        changes("chat", **changed)
    for mail in ({"to": ["${HOME}"]}, {"sender": "${ONCALL}"}):
        with pytest.raises(DefiniteError, match="a reference"):
            changes("mail", **mail)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"name": "a b", "kind": "json"},
        {"name": "a", "kind": "json", "token": "x"},
        {"name": "a", "kind": 1},
        {"name": "a", "to": "x"},
        {"name": "a", "lag_seconds": None},
        {"name": "a", "lag_seconds": True},
        {"name": "a", "low_disk": 5},
        {"name": "a", "events": [1]},
    ],
)
def test_malformed_drafts(raw: Any) -> None:
    with pytest.raises(DefiniteError):
        parse_alert_draft(raw)


def test_names_of_rules() -> None:
    with pytest.raises(DefiniteError, match="already"):
        changes("chat", is_new=True)
    with pytest.raises(DefiniteError, match="no rule absent"):
        changes_of(AlertDraft("absent", "slack"))
    with pytest.raises(DefiniteError, match="no receiver of the kind"):
        changes("chat", kind="fax")
