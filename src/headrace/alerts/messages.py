"""The texts that receivers get: JSON, Slack, Teams, e-mail.

Invariant: names and messages from a source are shown as text. They cannot add a header, a mention, a link or markup to a message: Slack
gets them as `plain_text`, Teams in text runs, which have no Markdown, and e-mail as one escaped line each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import Any, Final

from headrace.alerts.alert import Alert, AlertKind, iso_time
from headrace.alerts.rules import MailServer, WebhookFormat
from headrace.terminal_text import escape_text

_SLACK_HEADER, _SLACK_TEXT = 150, 2900
_MAX_SUBJECT: Final = 200
_MAX_LINE: Final = 2000
_CARD_LINE: Final = 1200
"""Teams takes messages of up to 28 KB."""
_SIGNS: Final = {AlertKind.RECOVERED: "good", AlertKind.SCHEMA_CHANGE: "accent", AlertKind.TEST: "accent"}
"""Colours of Adaptive Cards; `attention` for all others."""


def webhook_body(alert: Alert, kind: WebhookFormat, receiver: str, host: str) -> bytes:
    match kind:
        case WebhookFormat.JSON:
            document = alert.document(receiver, host)
        case WebhookFormat.SLACK:
            document = slack_message(alert, host)
        case WebhookFormat.TEAMS:
            document = teams_message(alert, host)
    return json.dumps(document, ensure_ascii=True).encode()


def title(alert: Alert) -> str:
    return f"Headrace {str(alert.kind).replace('_', ' ')}"


def lines(alert: Alert, host: str) -> Iterator[tuple[str, str]]:
    """Yield what every message has below its summary: a name and a text of one line."""
    for one in alert.details:
        yield "details", one
    yield "since", iso_time(alert.since)
    if alert.place:
        yield "at", alert.place
    if alert.remedy:
        yield "remedy", alert.remedy
    yield "process", host


def slack_message(alert: Alert, host: str) -> dict[str, Any]:
    """Return a message of an incoming webhook, with blocks and a text for notifications."""
    text = "\n".join(f"{name}: {_one_line(value)}" for name, value in lines(alert, host))
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title(alert), _SLACK_HEADER), "emoji": False}},
        {"type": "section", "text": {"type": "plain_text", "text": _cut(_one_line(alert.summary), _SLACK_TEXT), "emoji": False}},
        {"type": "section", "text": {"type": "plain_text", "text": _cut(text, _SLACK_TEXT), "emoji": False}},
    ]
    if alert.link:
        link = {"type": "mrkdwn", "text": f"<{_slack_escaped(alert.link)}|Open the dashboard>"}
        blocks.append({"type": "section", "text": link})
    summary = _cut(_one_line(f"{title(alert)}: {alert.summary}"), _SLACK_TEXT)
    return {"text": _slack_escaped(summary), "blocks": blocks, "unfurl_links": False}


def _slack_escaped(text: str) -> str:
    """Escape the characters that begin a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "%7C")


def teams_message(alert: Alert, host: str) -> dict[str, Any]:
    """Return a message with an Adaptive Card, as a workflow's webhook takes it."""
    body = [
        _card_text(title(alert), weight="Bolder", size="Large", color=_SIGNS.get(alert.kind, "attention")),
        _card_text(_one_line(alert.summary)),
        *(_card_text(_cut(_one_line(value), _CARD_LINE), before=f"{name}: ") for name, value in lines(alert, host)),
    ]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _one_line(alert.summary),
        "body": body,
    }
    if alert.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open the dashboard", "url": alert.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _card_text(text: str, before: str = "", **look: str) -> dict[str, Any]:
    runs = [*([{"type": "TextRun", "text": before, "isSubtle": True}] if before else []), {"type": "TextRun", "text": text, **look}]
    return {"type": "RichTextBlock", "inlines": runs}


def mail_message(alert: Alert, server: MailServer, host: str) -> EmailMessage:
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = server.sender
    message["To"] = ", ".join(server.to)
    message["Subject"] = _cut(_one_line(f"[headrace] {alert.kind}: {alert.summary}"), _MAX_SUBJECT)
    message["Date"] = format_datetime(datetime.fromtimestamp(alert.at, UTC))
    domain = parseaddr(server.sender)[1].rpartition("@")[2]
    # The same for each attempt, so that a mail program shows a repetition once.
    message["Message-ID"] = f"<{alert.id}.headrace@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Headrace-Alert"] = f"{alert.kind}; id={alert.id}"
    text = [_one_line(alert.summary), "", *(f"{name}: {_one_line(value)}" for name, value in lines(alert, host))]
    if alert.link:
        text += ["", alert.link]
    message.set_content("\n".join([*text, ""]))
    return message


def _one_line(text: str) -> str:
    return _cut(escape_text(text), _MAX_LINE)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"
