"""Addresses of sources and sinks in drafts: shown without secrets, and joined with the stored password of the same account.

Invariant: no stored password reaches the browser, and none is sent to another account than the one that the file stores it for. An address
of another host, port or user gets no password from the file, nor the one of an environment variable (`HEADRACE_SOURCE_PASSWORD`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from headrace.config.addresses import add_password, check_sink, check_source, redact, source_kind
from headrace.config.document import SOURCES, Document, dotted_key, is_secret_name, references_in
from headrace.config.key_catalog import CLASS
from headrace.config.show import MASK
from headrace.cql.address import PASSWORD_VARIABLES as CQL_VARIABLES
from headrace.editor.draft import EndpointDraft, check_no_references
from headrace.editor.secret_files import NewSecrets
from headrace.errors import DefiniteError
from headrace.kafka.address import PASSWORD_VARIABLE, SECRETS_VARIABLE, without_secrets
from headrace.settings.settings_file import PRODUCER
from headrace.settings.toml_text import Keys
from headrace.sinks.registry import sink_connector

_REFERENCE: Final = r"\$\{[^}]*\}"
_INLINE_PASSWORD: Final = re.compile(rf"(?P<before>[a-z]+://(?:{_REFERENCE}|[^:@/?#])*):(?P<password>(?:{_REFERENCE}|[^/?#])*)@")
_WITH_EMPTY_PASSWORD: Final = ("mysql://", "mariadb://", "clickhouse://", "clickhouses://")
"""Addresses in which an empty password keeps that of the environment away."""
_VARIABLES: Final = {
    "kafka": (PASSWORD_VARIABLE, SECRETS_VARIABLE),
    **{scheme: (variable,) for scheme, variable in CQL_VARIABLES.items()},
}
"""Variables whose secrets are sent to servers of other addresses."""
_PASSWORD_FILE: Final = "password_file"
_PASSWORD_KEYS: Final = ("password", _PASSWORD_FILE)


def shown_address(document: Document, path: Keys, raw: Any) -> str:
    """Return the address of a section for the browser."""
    if not isinstance(raw, str):
        return ""
    try:
        return redact(document.resolve((*path, "url"), raw), MASK)
    except DefiniteError:
        # A variable that is not set, for example.
        return mask_address(raw)


def mask_address(raw: str) -> str:
    """Return the text of an address in a file, with its references and without passwords."""
    found = _INLINE_PASSWORD.match(raw)
    if found is not None and not re.fullmatch(_REFERENCE, found["password"]):
        raw = f"{found['before']}:{MASK}@{raw[found.end() :]}"
    place, _, query = raw.partition("?")
    parts = [part for part in query.split("&") if part]
    shown = [f"{name}={MASK}" if is_secret_name(name := part.partition("=")[0]) else part for part in parts]
    return f"{place}?{'&'.join(shown)}" if shown else place


def endpoint_changes(document: Document, kind: str, draft: EndpointDraft, secrets: NewSecrets) -> list[tuple[Keys, Any]]:
    """Return the changes of the file that a draft of a source or sink means; its password becomes one of the new secrets."""
    path, draft = (kind, draft.name), _with_password_apart(kind, draft)
    stored = document.content.get(kind, {}).get(draft.name)
    if stored is None:
        return _changed(path, _new_address(kind, draft), draft.password, {}, secrets)
    raw = stored.get("url", "")
    if draft.url in ("", shown_address(document, path, raw)):
        if not draft.password:
            return []
        return _changed(path, without_password(raw), draft.password, stored, secrets)
    if CLASS in stored:
        raise DefiniteError("a class cannot be replaced here", place=dotted_key(path), hint="change the file by hand")
    if not draft.password and _is_same_account(document, path, raw, draft.url):
        # The password stays where it is.
        inline, plain = _INLINE_PASSWORD.match(raw), _without_mask(draft.url)
        check_no_references(plain, f"{dotted_key(path)}.url")
        _check_address(kind, plain)
        if inline is None:
            return [((*path, "url"), plain)]
        scheme, _, rest = plain.partition("://")
        user, _, host = rest.partition("@")
        return [((*path, "url"), f"{scheme}://{user}:{inline['password']}@{host}")]
    return _changed(path, _new_address(kind, draft), draft.password, stored, secrets)


def _with_password_apart(kind: str, draft: EndpointDraft) -> EndpointDraft:
    """Return a draft without a password in its address: one that was entered there is taken like one of the password's own field."""
    entered = _INLINE_PASSWORD.match(draft.url)
    if entered is None or not entered["password"] or MASK in entered["password"] or "${" in draft.url:
        return draft
    if draft.password:
        raise DefiniteError("the password is entered twice", place=f"[{kind}.{draft.name}] url", hint="enter it in its own field only")
    return replace(draft, url=without_password(draft.url), password=unquote(entered["password"]))


def _changed(path: Keys, url: str, password: str, stored: dict[str, Any], secrets: NewSecrets) -> list[tuple[Keys, Any]]:
    removed = [((*path, key), None) for key in _PASSWORD_KEYS if key in stored and not (password and key == _PASSWORD_FILE)]
    added = [((*path, _PASSWORD_FILE), secrets.add((*path, "password"), password))] if password else []
    return [((*path, "url"), url), *removed, *added]


def _new_address(kind: str, draft: EndpointDraft) -> str:
    """Return the address of an account that the file does not have."""
    place = f"[{kind}.{draft.name}] url"
    check_no_references(draft.url, place)
    url = draft.url
    inline = _INLINE_PASSWORD.match(url)
    if inline is not None and inline["password"] == MASK:
        raise DefiniteError(
            "the stored password belongs to another account: it is not sent to this one", place=place, hint="enter the password again"
        )
    if (inline is not None and inline["password"]) or without_secrets(url)[1]:
        raise DefiniteError("the address contains a secret", place=place, hint="enter a password in its own field; write others by hand")
    _check_address(kind, url)
    if draft.password:
        # Report here that an address has no account, before the file is written.
        add_password(url, draft.password, place)
    elif url.startswith(_WITH_EMPTY_PASSWORD):
        return url if inline is not None else add_password(url, "", place)
    variable = next((name for name in _VARIABLES.get(url.partition("://")[0], ()) if os.environ.get(name)), "")
    if variable:
        raise DefiniteError(
            f"this process has a secret in {variable}, which would be sent to this address",
            place=place,
            hint="write the section into the file by hand, then choose it by its name",
        )
    return url


def _check_address(kind: str, url: str) -> None:
    if kind == SOURCES:
        check_source(url, source_kind(url, f"[{kind}]"))
        return
    if sink_connector(url).section == PRODUCER:
        raise DefiniteError("a class cannot be chosen here", place=f"[{kind}]", hint="write the sink into the file by hand")
    check_sink(url)


def _is_same_account(document: Document, path: Keys, raw: str, url: str) -> bool:
    """Whether both addresses mean the same user of the same server; only of servers whose address says so completely."""
    try:
        stored = _account(redact(document.resolve((*path, "url"), raw), MASK))
        return stored is not None and stored == _account(_without_mask(url))
    except DefiniteError:
        return False


def _account(url: str) -> tuple[str, ...] | None:
    if not url.startswith(_WITH_EMPTY_PASSWORD):
        return None
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2].lower()
        return (parts.scheme, host, parts.username or "", *parse_qs(parts.query).get("socket", ()))
    except ValueError:
        return None


def _without_mask(url: str) -> str:
    return url.replace(f":{MASK}@", "@", 1)


def without_password(raw: str) -> str:
    """Return the text of an address in a file without its password; references stay."""
    found = _INLINE_PASSWORD.match(raw)
    return raw if found is None else f"{found['before']}@{raw[found.end() :]}"


def is_only_references(text: str) -> bool:
    """Whether a text consists of references only: it shows where a secret is, not the secret."""
    return bool(references_in(text)) and not re.sub(_REFERENCE, "", text)
