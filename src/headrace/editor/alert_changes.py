"""Rules of alerts in drafts: shown without secrets, and joined with the stored secret of the same receiver.

Invariant: no stored secret reaches the browser: neither the path of a webhook, nor a token, nor the user and the password of a mail server.
None is sent to a receiver of another scheme, host, port or user than the one that the file stores it for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.alerts.rules import FORMS, MAIL_SCHEMES, MailKeys, RuleKeys, WebhookFormat, WebhookKeys
from headrace.config.document import ALERTS, Document, dotted_key
from headrace.config.show import MASK
from headrace.editor.accounts import without_password
from headrace.editor.draft import AlertDraft, check_no_references
from headrace.editor.masked_text import mask_receiver
from headrace.editor.secret_files import NewSecrets
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import merge_fields, setting_fields, to_plain
from headrace.settings.toml_text import Keys

MAIL: Final = "e-mail"
KINDS: Final = (*map(str, WebhookFormat), MAIL)
_PORTS: Final = {"http": 80, "https": 443, "smtp": 587, "smtps": 465}
_DEFAULTS: Final[Mapping[str, Any]] = {name: to_plain(one.kind, one.default) for name, one in merge_fields(RuleKeys, MailKeys).items()}
_SHOWN: Final = ("events", "pipes", "lag_seconds", "lag_for_seconds", "away_seconds", "low_disk", "to", "sender")
"""The keys that a draft has as the file has them."""


def shown_rule(document: Document, name: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule as a draft for the browser; with the kind of its receiver, and whether it has a token or password."""
    url, is_mail = _stored_url(document, name, stored), _is_mail(document, name, stored)
    return {
        "name": name,
        "kind": MAIL if is_mail else stored.get("format", str(WebhookFormat.JSON)),
        "url": mask_receiver(url),
        "has_secret": bool(stored.get(_secret_key(is_mail=is_mail))) or (is_mail and without_password(url) != url),
        **shown_values(stored),
    }


def shown_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a rule that a draft has, with defaults; sizes as text."""
    values = {name: stored.get(name, _DEFAULTS[name]) for name in _SHOWN}
    return {**values, "low_disk": _size_text(values["low_disk"])}


def alert_changes(document: Document, draft: AlertDraft, secrets: NewSecrets) -> list[tuple[Keys, Any]]:
    """Return the changes of the file that a draft means; its secrets become new secrets."""
    path = (ALERTS, draft.name)
    stored = document.content.get(ALERTS, {}).get(draft.name)
    if draft.is_new and stored is not None:
        raise DefiniteError(f"there is a rule {draft.name} already", place=dotted_key(path), hint="choose another name, or edit that one")
    if not draft.is_new and stored is None:
        raise absent(path)
    if draft.kind not in KINDS:
        raise DefiniteError(f"there is no receiver of the kind {draft.kind!r}", place=dotted_key(path), hint=f"known: {', '.join(KINDS)}")
    wanted = {**_receiver(document, draft, stored or {}, secrets), **_values(path, draft, stored or {})}
    return [((*path, key), value) for key, value in wanted.items() if value != (stored or {}).get(key)]


def absent(path: Keys) -> DefiniteError:
    return DefiniteError(f"the file has no rule {path[-1]}", place=dotted_key(path), hint="it may have been renamed or removed")


def _receiver(document: Document, draft: AlertDraft, stored: Mapping[str, Any], secrets: NewSecrets) -> dict[str, Any]:
    """Return the wanted keys of the receiver; None for those that are to be removed."""
    path, is_mail = (ALERTS, draft.name), draft.kind == MAIL
    wanted: dict[str, Any] = dict.fromkeys(setting_fields(WebhookKeys if is_mail else MailKeys))
    if not is_mail:
        wanted["format"] = draft.kind if draft.kind != WebhookFormat.JSON or "format" in stored else None
    secret_key = _secret_key(is_mail=is_mail)
    url, secret, keeps = _address(document, draft, stored, secrets)
    if secret:
        wanted[secret_key] = _reference(secrets, (*path, secret_key), secret)
    elif not keeps:
        wanted[secret_key] = None
    return {"url": url, **wanted}


def _address(document: Document, draft: AlertDraft, stored: Mapping[str, Any], secrets: NewSecrets) -> tuple[str, str, bool]:
    """Return the address for the file, the secret that the draft enters, and whether the stored secret belongs to this receiver."""
    path, is_mail = (ALERTS, draft.name, "url"), draft.kind == MAIL
    raw = stored.get("url", "")
    known = _stored_url(document, draft.name, stored)
    if stored and draft.url in ("", mask_receiver(known)):
        _check_scheme(path, known, is_mail=is_mail)
        return without_password(raw) if is_mail and draft.secret else raw, draft.secret, True
    check_no_references(draft.url, dotted_key(path))
    if MASK in draft.url:
        raise DefiniteError(
            "the stored address belongs to another receiver: it is not sent to this one",
            place=dotted_key(path),
            hint="enter the whole address again",
        )
    _check_scheme(path, draft.url, is_mail=is_mail)
    try:
        parts = urlsplit(draft.url)
        account = _account(draft.url)
        keeps = bool(stored) and account == _account(known)
    except ValueError:
        raise DefiniteError("the receiver's address cannot be read", place=dotted_key(path), hint=FORMS) from None
    if not is_mail:
        place = f"{parts.path.lstrip('/')}{'?' if parts.query else ''}{parts.query}"
        url = f"{parts.scheme}://{parts.netloc}/"
        return url + (_reference(secrets, path, place) if place else ""), draft.secret, keeps
    if parts.password and draft.secret:
        raise DefiniteError("the password is entered twice", place=dotted_key(path), hint="enter it in its own field only")
    secret = draft.secret or unquote(parts.password or "")
    if keeps and not secret:
        # The password may be in the stored address.
        return raw, "", True
    return without_password(f"{parts.scheme}://{parts.netloc}"), secret, keeps


def _secret_key(*, is_mail: bool) -> str:
    return "password" if is_mail else "token"


def _account(url: str) -> tuple[str, str | None, int, str | None]:
    parts = urlsplit(url)
    return (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme, 0), parts.username)


def _check_scheme(path: Keys, url: str, *, is_mail: bool) -> None:
    scheme = url.partition("://")[0].lower()
    if scheme not in _PORTS or (scheme in MAIL_SCHEMES) is not is_mail:
        what = "an e-mail" if is_mail else "a webhook"
        raise DefiniteError(f"this is not the address of {what}", place=dotted_key(path), hint=FORMS)


def _values(path: Keys, draft: AlertDraft, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wanted values of the other keys of the draft; None for a default that the file does not write."""
    wanted: dict[str, Any] = {}
    before = shown_values(stored)
    for key, value in draft.values.items():
        if key in setting_fields(MailKeys) and draft.kind != MAIL:
            continue
        if value == before[key]:
            continue
        known = before[key] if isinstance(value, list) else [before[key]]
        for text in value if isinstance(value, list) else [value]:
            if text not in known:
                check_no_references(str(text), dotted_key((*path, key)))
        # A whole number is written as one.
        wanted[key] = int(value) if isinstance(value, float) and value.is_integer() else value
    return wanted


def _reference(secrets: NewSecrets, key: Keys, secret: str) -> str:
    return f"${{file:{secrets.add(key, secret)}}}"


def _stored_url(document: Document, name: str, stored: Mapping[str, Any]) -> str:
    """Return the stored address; with its references where one cannot be expanded."""
    raw = stored.get("url", "")
    if not isinstance(raw, str):
        return ""
    try:
        return str(document.resolve((ALERTS, name, "url"), raw))
    except DefiniteError:
        # A variable that is not set, for example.
        return raw


def _is_mail(document: Document, name: str, stored: Mapping[str, Any]) -> bool:
    scheme = _stored_url(document, name, stored).partition("://")[0].lower()
    return scheme in MAIL_SCHEMES or (scheme not in _PORTS and "to" in stored)


def _size_text(size: Any) -> str:
    """Return a size as a person writes it."""
    if not isinstance(size, int):
        return str(size)
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)
