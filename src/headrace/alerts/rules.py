"""The sections `[alerts.NAME]` of `headrace.toml`: what is sent where.

Invariant: no secret and no address of a webhook, which is a secret itself, is in a `repr`, an error or the status. Text to another
machine is encrypted, unless `plaintext` says otherwise.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parseaddr
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.alerts.alert import CONDITIONS, EVENTS, AlertKind
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import Size, closest_match
from headrace.terminal_text import UNSAFE
from headrace.urls import is_loopback

FORMS: Final = "write https://host/path of a webhook, smtp://user@host:587 or smtps://user@host:465"
_LOW_DISK: Final = Size(5 << 30)
_PORTS: Final = {"http": 80, "https": 443, "smtp": 587, "smtps": 465}
_VISIBLE: Final = re.compile(r"[\x21-\x7e]*")
MAIL_SCHEMES: Final = ("smtp", "smtps")


class WebhookFormat(StrEnum):
    """What a webhook receives."""

    JSON = "json"
    SLACK = "slack"
    TEAMS = "teams"


@dataclass(frozen=True, slots=True)
class RuleKeys:
    """Keys of every `[alerts.NAME]`."""

    url: str = ""
    """The receiver: `https://…` of a webhook, or `smtp://user@host:587` (with STARTTLS) or `smtps://user@host:465` for e-mail."""
    events: tuple[str, ...] = tuple(str(kind) for kind in EVENTS)
    """What is sent: `failed`, `recovered`, `lag`, `schema_change`, `differences`, `low_disk`."""
    pipes: tuple[str, ...] = ("*",)
    """Globs of pipes, by their names in the file."""
    lag_seconds: float = 60.0
    """`lag`: a lag above this …"""
    lag_for_seconds: float = 300.0
    """… for this long."""
    away_seconds: float = 300.0
    """`failed`: also a pipe that has waited for a peer or for a retry for this long."""
    low_disk: Size = _LOW_DISK
    """`low_disk`: less free space than this where the state, a relay log or an embedded ClickHouse is."""
    timeout_seconds: float = 10.0
    """How long one attempt to send may take."""
    ca: str = ""
    """A PEM file with the certificates that the receiver's one is checked with, instead of the system's."""
    plaintext: bool = False
    """Whether alerts may go to another machine unencrypted (`http://`, SMTP without TLS)."""


@dataclass(frozen=True, slots=True)
class WebhookKeys:
    format: WebhookFormat = WebhookFormat.JSON
    """What the webhook receives: Headrace's own `json`, or a message for `slack` or `teams`."""
    token: str = ""
    """Sent as `Authorization: Bearer …`: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""


@dataclass(frozen=True, slots=True)
class MailKeys:
    to: tuple[str, ...] = ()
    """The recipients' addresses."""
    sender: str = ""
    """The sender's address."""
    password: str = ""
    """The password of the account in `url`: `"${NAME}"` from the environment, `"${file:PATH}"` from a file."""


@dataclass(frozen=True, slots=True)
class Webhook:
    format: WebhookFormat
    tls: bool
    host: str
    port: int
    path: str = field(repr=False)
    """With the query: it may hold the secret."""
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MailServer:
    implicit_tls: bool
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    sender: str
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A validated `[alerts.NAME]`."""

    name: str
    receiver: Webhook | MailServer
    events: frozenset[AlertKind]
    pipes: tuple[str, ...]
    lag_s: float
    lag_for_s: float
    away_s: float
    low_disk: int
    timeout_s: float
    ca: str
    plaintext: bool

    @property
    def kind(self) -> str:
        return "e-mail" if isinstance(self.receiver, MailServer) else str(self.receiver.format)

    @property
    def shown(self) -> str:
        """The receiver without its secrets."""
        receiver = self.receiver
        if isinstance(receiver, MailServer):
            return f"{', '.join(receiver.to)} by {receiver.host}:{receiver.port}"
        return f"http{'s' if receiver.tls else ''}://{receiver.host}:{receiver.port}"

    @property
    def needs_tls(self) -> bool:
        """Whether an unencrypted connection is refused."""
        return not (self.plaintext or is_loopback(self.receiver.host))

    @property
    def target(self) -> tuple[Webhook | MailServer, float, str, bool]:
        """All that an attempt to send depends on."""
        return self.receiver, self.timeout_s, self.ca, self.plaintext

    def covers(self, group: str) -> bool:
        return any(fnmatchcase(group, glob) for glob in self.pipes)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca or None)


def redact_receiver(url: str, mask: str = "***") -> str:
    """Return the address of a receiver without user, path and query, each of which may be a secret."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}/{mask}" if parts.hostname else mask
    except ValueError:
        return mask


Problem = Callable[[str, str, str], None]
"""Reports a mistake: the key, the message, the remedy."""


def parse_rule(name: str, values: Mapping[str, Any], report: Problem) -> AlertRule | None:
    """Build a rule from the values of its keys; report all mistakes, and return None if there is one."""
    mistakes: list[str] = []

    def wrong(key: str, message: str, hint: str) -> None:
        mistakes.append(key)
        report(key, message, hint)

    events = _parse_events(values["events"], wrong)
    receiver = _parse_receiver(values, wrong)
    if not 0 < values["timeout_seconds"] <= 600:
        wrong("timeout_seconds", "timeout_seconds must be more than 0 and at most 600", "write timeout_seconds = 10")
    if receiver is None or mistakes:
        return None
    rule = AlertRule(
        name,
        receiver,
        events,
        values["pipes"],
        values["lag_seconds"],
        values["lag_for_seconds"],
        values["away_seconds"],
        values["low_disk"],
        values["timeout_seconds"],
        values["ca"],
        values["plaintext"],
    )
    if isinstance(receiver, Webhook) and not receiver.tls and rule.needs_tls:
        wrong("url", "the alerts would leave this machine unencrypted", "write https://, or plaintext = true")
    if rule.ca:
        try:
            rule.context()
        except OSError as error:
            wrong("ca", f"the file of ca cannot be loaded: {error.strerror or error}", "give a PEM file that can be read")
    return None if mistakes else rule


def _parse_events(names: tuple[str, ...], wrong: Problem) -> frozenset[AlertKind]:
    known = [str(kind) for kind in EVENTS]
    for name in names:
        if name not in known:
            near = closest_match(name, known)
            wrong("events", f"there is no event {name!r}", f'did you mean "{near}"?' if near else f"known: {', '.join(known)}")
    events = frozenset(AlertKind(name) for name in names if name in known)
    if not names:
        wrong("events", "the rule has no events, so nothing would be sent", f"known: {', '.join(known)}")
    elif AlertKind.RECOVERED in events and not events & set(CONDITIONS):
        wrong("events", "recovered has nothing to follow", f"add {', '.join(CONDITIONS)}, or leave recovered out")
    return events


def _parse_receiver(values: Mapping[str, Any], wrong: Problem) -> Webhook | MailServer | None:
    try:
        parts = urlsplit(values["url"])
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if not port or not parts.hostname or UNSAFE.search(values["url"]) or " " in values["url"]:
        wrong("url", "the receiver's address cannot be read", FORMS)
        return None
    if parts.scheme in MAIL_SCHEMES:
        return _parse_mail(parts, port, values, wrong)
    if parts.username is not None:
        wrong("url", "the address of a webhook has no account", "give what it demands as token")
        return None
    if not _VISIBLE.fullmatch(values["token"]):
        wrong("token", "the token has characters that no header can hold", "write visible ASCII characters only")
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    if not _VISIBLE.fullmatch(path):
        wrong("url", "the address has characters that no address can hold", "quote them (%C3%A9)")
    return Webhook(values["format"], parts.scheme == "https", parts.hostname, port, path, values["token"])


def _parse_mail(parts: SplitResult, port: int, values: Mapping[str, Any], wrong: Problem) -> MailServer:
    user, password = unquote(parts.username or ""), unquote(parts.password or "") or values["password"]
    if parts.password and values["password"]:
        wrong("password", "the password is given twice", "give it in one place only")
    if bool(user) != bool(password):
        missing = "password" if user else "user"
        wrong("url", f"the account has no {missing}", "write smtp://user@host:587 and password, or neither user nor password")
    if not values["to"]:
        wrong("to", "the e-mail has no recipient", 'write to = ["oncall@example.com"]')
    for key, address in (*(("to", one) for one in values["to"]), ("sender", values["sender"])):
        if not _is_mail_address(address):
            wrong(key, f"{address!r} is no e-mail address" if address else "the e-mail has no sender", 'write it as "name@example.com"')
    return MailServer(parts.scheme == "smtps", parts.hostname or "", port, user, password, values["sender"], values["to"])


def _is_mail_address(text: str) -> bool:
    local, at, domain = parseaddr(text)[1].rpartition("@")
    return bool(local and at and domain) and text.isprintable() and "," not in text


def find_rules(rules: tuple[AlertRule, ...], name: str) -> tuple[AlertRule, ...]:
    """Return the rule of this name, or all rules if the name is empty."""
    found = tuple(rule for rule in rules if name in ("", rule.name))
    if not found:
        known = ", ".join(rule.name for rule in rules)
        hint = f"there are {known}" if known else "write [alerts.NAME] (docs/operations/alerts.md)"
        raise DefiniteError(f"there is no section [alerts.{name}]" if name else "the file has no alerts", hint=hint)
    return found
