"""Stored passwords: never shown, and never sent to another account."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.document import SINKS, SOURCES, parse_document
from headrace.editor.accounts import endpoint_changes, mask_address, shown_address
from headrace.editor.draft import EndpointDraft
from headrace.editor.masked_text import describe_change, mask_text
from headrace.editor.pipe_file import PipeFile
from headrace.editor.secret_files import NewSecrets
from headrace.errors import DefiniteError

FILE = """
[headrace.spark]
"spark.hadoop.fs.s3a.secret.key" = "geheim1"
[sources.inline]
url = "mysql://repl:geheim2@db:3306/shop"  # was mysql://repl:geheim3@old/shop
[sources.reference]
url = "mysql://repl:${SHOP_PASSWORD}@db:3306/shop"
[sources.key]
url = "mysql://repl@db:3306/shop"
password = "geheim4"
[sources.from_file]
url = "mysql://repl@db:3306/shop"
password_file = "secrets/shop"
[sources.environment]
url = "mysql://repl@db:3306/shop"
[sinks.topics]
url = "kafka://k:9092?sasl.password=geheim5&acks=all"
[sinks.own]
class = "shop:Sink"
api_key = "geheim6"
[alerts.hook]
url = "https://hooks.example/geheim7"
"""
# password = "geheim8" in a comment is masked, too.
SECRETS = [f"geheim{number}" for number in range(1, 9)]


def changes(kind: str, name: str, url: str = "", password: str = "") -> dict[str, object]:
    """Return the changed keys of a section; the content of a new file of a password instead of its path."""
    document = parse_document(FILE, "headrace.toml", Path(), {"SHOP_PASSWORD": "geheim9"})
    secrets = NewSecrets(PipeFile(Path("headrace.toml"), FILE))
    found = {path[-1]: value for path, value in endpoint_changes(document, kind, EndpointDraft(name, url, password), secrets)}
    return {key: secrets.contents.get(value, value) if isinstance(value, str) else value for key, value in found.items()}


def test_shown_addresses_and_texts_have_no_secrets() -> None:
    text = FILE + '# password = "geheim8"\n'
    masked = mask_text(text)
    assert not [secret for secret in SECRETS if secret in masked]
    assert "${SHOP_PASSWORD}" in masked
    assert 'password_file = "secrets/shop"' in masked
    assert "acks=all" in masked
    assert not [secret for secret in SECRETS if secret in describe_change(text, text.replace("db:3306", "other:3306"), "headrace.toml")]
    document = parse_document(FILE, "headrace.toml", Path(), {"SHOP_PASSWORD": "geheim9"})
    assert (
        shown_address(document, (SOURCES, "reference"), document.content["sources"]["reference"]["url"]) == "mysql://repl:***@db:3306/shop"
    )


def test_unusual_passwords_are_masked_whole() -> None:
    assert mask_address("mysql://u:ge@heim:7@h:3306/db?x=1") == "mysql://u:***@h:3306/db?x=1"
    assert mask_address("mysql://${USER:-u}:${file:/run/p}@h/db") == "mysql://${USER:-u}:${file:/run/p}@h/db"
    assert mask_address("mysql://u:${A}geheim@h/db") == "mysql://u:***@h/db"
    assert mask_address("chdb:./w") == "chdb:./w"


@pytest.mark.parametrize("name", ["inline", "reference", "key", "from_file", "environment"])
def test_an_unchanged_address_changes_nothing(name: str) -> None:
    shown = "mysql://repl:***@db:3306/shop" if name in ("inline", "reference") else "mysql://repl@db:3306/shop"
    assert changes(SOURCES, name) == changes(SOURCES, name, shown) == {}


def test_another_database_of_the_same_account_keeps_the_password() -> None:
    url = "mysql://repl:***@db:3306/crm?tls=required"
    assert changes(SOURCES, "inline", url) == {"url": "mysql://repl:geheim2@db:3306/crm?tls=required"}
    assert changes(SOURCES, "reference", url) == {"url": "mysql://repl:${SHOP_PASSWORD}@db:3306/crm?tls=required"}
    for name in ("key", "from_file", "environment"):
        assert changes(SOURCES, name, "mysql://repl@db:3306/crm") == {"url": "mysql://repl@db:3306/crm"}


@pytest.mark.parametrize(
    "account", ["repl@evil:3306", "repl@db:3307", "root@db:3306", "repl@db", "repl@db:3306/x?socket=/tmp/evil", "repl@db:3306@evil:3306"]
)
@pytest.mark.parametrize("name", ["inline", "reference", "key", "from_file", "environment"])
def test_another_account_gets_no_stored_password(name: str, account: str) -> None:
    with pytest.raises(DefiniteError, match=r"belongs to another account|cannot be read|password"):
        changes(SOURCES, name, f"mysql://{account.replace('@', ':***@', 1)}")
    try:
        found = changes(SOURCES, name, f"mysql://{account}")
    except DefiniteError:
        return
    # An empty password in the address: neither the file's nor HEADRACE_SOURCE_PASSWORD is used.
    assert str(found.pop("url")).startswith(f"mysql://{account.partition('@')[0]}:@")
    assert set(found.values()) <= {None}
    assert found.keys() == {"key": {"password"}, "from_file": {"password_file"}}.get(name, set())


def test_a_new_password_replaces_the_stored_one() -> None:
    assert changes(SOURCES, "inline", password="new${x}") == {"url": "mysql://repl@db:3306/shop", "password_file": "new${x}"}
    assert changes(SOURCES, "key", password="new") == {"url": "mysql://repl@db:3306/shop", "password": None, "password_file": "new"}
    assert changes(SOURCES, "from_file", "mysql://root@evil/", "new") == {"url": "mysql://root@evil/", "password_file": "new"}


def test_a_password_in_an_entered_address_is_taken_out_of_it() -> None:
    assert changes(SOURCES, "fresh", "mysql://u:p%40ss:w@h:3306/d?tls=required") == {
        "url": "mysql://u@h:3306/d?tls=required",
        "password_file": "p@ss:w",
    }
    assert changes(SOURCES, "key", "mysql://repl:new@db:3306/shop") == {
        "url": "mysql://repl@db:3306/shop",
        "password": None,
        "password_file": "new",
    }
    with pytest.raises(DefiniteError, match="entered twice"):
        changes(SOURCES, "fresh", "mysql://u:p@h/d", "p")


def test_a_line_break_in_a_password_is_refused() -> None:
    # A file ends with a line break that is no part of the password.
    with pytest.raises(DefiniteError, match="line break") as caught:
        changes(SOURCES, "key", password="geheim\n")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        (SOURCES, "mysql://u:${HEADRACE_TOKEN}@evil/"),
        (SOURCES, "mysql://u@${file:/etc/hostname}/"),
        (SOURCES, "mysql://u:${HEADRACE_TOKEN}plain@h/"),
        (SOURCES, "mysql://u:***plain@h/"),
        (SOURCES, "http://h/"),
        (SINKS, "class:os:system"),
        (SINKS, ""),
    ],
)
def test_refused_addresses(kind: str, url: str) -> None:
    with pytest.raises(DefiniteError):
        changes(kind, "fresh", url)


def test_secrets_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changes(SINKS, "fresh", "kafka://k:9092") == {"url": "kafka://k:9092"}
    assert changes(SINKS, "fresh", "chdb:./w") == {"url": "chdb:./w"}
    monkeypatch.setenv("HEADRACE_KAFKA_SECRETS", "sasl.password=geheim")
    with pytest.raises(DefiniteError, match="HEADRACE_KAFKA_SECRETS"):
        changes(SINKS, "fresh", "kafka://evil:9092")
