"""Sends one alert to a webhook or a mail server.

Invariant: an attempt ends after `timeout_s`, whatever the receiver does: a watchdog shuts the socket down. An error names the receiver
without its secrets. Redirects are not followed: the receiver is who the file names. No account is sent in the clear to another machine.
"""

from __future__ import annotations

import base64
import http.client
import re
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Self

from headrace import __version__
from headrace.alerts.alert import Alert, AlertKind, new_id
from headrace.alerts.messages import mail_message, webhook_body
from headrace.alerts.rules import AlertRule, MailServer, Webhook
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.terminal_text import escape_text

_MAX_ANSWER: Final = 2000
_MAX_SHOWN: Final = 200
ACCEPTED: Final = "accepted"
_REJECTED: Final = frozenset({400, 405, 406, 411, 413, 414, 415, 422, 431})
"""Answers about the message itself: the same message would be rejected again."""
_HINTS: Final[Mapping[int, str]] = {
    401: "check token of the section",
    403: "check token and url of the section: the receiver may have revoked them",
    404: "check url of the section: the receiver may have removed the webhook",
    410: "make a new webhook, and write its address as url",
    429: "it is tried again later",
}


class DeliveryError(TransientError):
    """The receiver did not take the alert; another attempt may succeed."""

    def __init__(self, message: str, *, place: str = "", hint: str = "", event: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, place=place, hint=hint, event=event)
        self.retry_after_s = retry_after_s


def send(rule: AlertRule, alert: Alert) -> str:
    """Send an alert and return the receiver's answer in short; raise `DefiniteError` if it rejects this alert for good, `DeliveryError` for
    everything else.
    """
    deadline = _Deadline(rule.timeout_s)
    try:
        with deadline:
            return (
                _post(rule, rule.receiver, alert, deadline)
                if isinstance(rule.receiver, Webhook)
                else _mail(rule, rule.receiver, alert, deadline)
            )
    except HeadraceError as error:
        if not deadline.is_over:
            raise
        raise _timeout(rule) from error
    except ssl.SSLCertVerificationError as error:
        hint = 'give the issuer\'s certificate: ca = "FILE"'
        raise DeliveryError(f"its certificate is not valid: {error.verify_message}", place=rule.shown, hint=hint) from error
    except (OSError, http.client.HTTPException, smtplib.SMTPException, ValueError) as error:
        if deadline.is_over or isinstance(error, TimeoutError):
            raise _timeout(rule) from error
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise DeliveryError(f"it cannot be reached: {what}", place=rule.shown, hint="check url of the section, and the network") from error


def send_test(rule: AlertRule, link: str) -> str:
    """Send a test alert with a link to the dashboard, like `send`."""
    now, summary = time.time(), "this is a test: the receiver gets alerts of Headrace"
    return send(rule, Alert(new_id(), AlertKind.TEST, "", summary, now, now, remedy="nothing is to be done", link=link))


def _timeout(rule: AlertRule) -> DeliveryError:
    hint = "check the receiver, or raise timeout_seconds"
    return DeliveryError(f"it has not answered within {rule.timeout_s:g} s", place=rule.shown, hint=hint)


def _post(rule: AlertRule, webhook: Webhook, alert: Alert, deadline: _Deadline) -> str:
    headers = {"Content-Type": "application/json", "User-Agent": f"headrace/{__version__}", "X-Headrace-Alert": alert.id}
    if webhook.token:
        headers["Authorization"] = f"Bearer {webhook.token}"
    connection = (http.client.HTTPSConnection if webhook.tls else http.client.HTTPConnection)(webhook.host, webhook.port)
    try:
        connection.sock = deadline.connect(webhook.host, webhook.port, rule.context() if webhook.tls else None)
        connection.request("POST", webhook.path, webhook_body(alert, webhook.format, rule.name, socket.gethostname()), headers)
        answer = connection.getresponse()
        text = answer.read(_MAX_ANSWER).decode("utf-8", "replace")
    finally:
        connection.close()
    if 200 <= answer.status < 300:
        return f"HTTP {answer.status}"
    raise _http_error(rule, answer.status, answer.getheader("Retry-After", ""), text)


def _http_error(rule: AlertRule, status: int, retry_after: str, text: str) -> HeadraceError:
    known = {one.value: one.phrase for one in HTTPStatus}
    # The answer may repeat the request, and with it the secret of the address.
    said = "" if isinstance(rule.receiver, Webhook) and _repeats(rule.receiver, text) else escape_text(" ".join(text.split()))[:_MAX_SHOWN]
    message = f"it answers {status} {known.get(status, '')}".rstrip() + (f": {said}" if said else "")
    if 300 <= status < 400:
        return DeliveryError(message, place=rule.shown, hint="redirects are not followed: write the final address as url")
    hint = _HINTS.get(status, "see the receiver's own log")
    if status in _REJECTED:
        return DefiniteError(message, place=rule.shown, hint=f"{hint}; check that format fits the receiver")
    return DeliveryError(message, place=rule.shown, hint=hint, retry_after_s=_retry_after_s(retry_after))


def _repeats(webhook: Webhook, text: str) -> bool:
    secrets = [part for part in re.split("[/?&=]", webhook.path) if len(part) >= 8]
    return any(secret in text for secret in (*secrets, *([webhook.token] if webhook.token else [])))


def _retry_after_s(text: str) -> float:
    """Parse `Retry-After`: seconds, or a date."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    with suppress(ValueError):
        at = parsedate_to_datetime(text)
        return max((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp(), 0.0)
    return 0.0


class _MailClient(smtplib.SMTP):
    """Opens its connection by the deadline of the attempt."""

    def __init__(self, server: MailServer, deadline: _Deadline, context: ssl.SSLContext | None) -> None:
        self._server, self._deadline, self._context = server, deadline, context
        # Its own name is not looked up: that may take long.
        super().__init__(server.host, server.port, local_hostname=socket.gethostname() or "localhost")

    def _get_socket(self, *_: object) -> socket.socket:
        return self._deadline.connect(self._server.host, self._server.port, self._context)


def _mail(rule: AlertRule, server: MailServer, alert: Alert, deadline: _Deadline) -> str:
    try:
        client = _MailClient(server, deadline, rule.context() if server.implicit_tls else None)
        try:
            _secure(client, rule, server)
            if server.user:
                _log_in(client, server)
            refused = client.send_message(mail_message(alert, server, socket.gethostname()), server.sender, list(server.to))
            with suppress(smtplib.SMTPException, OSError):
                client.quit()
        finally:
            client.close()
    except smtplib.SMTPAuthenticationError as error:
        hint = "check user and password of the section"
        raise DeliveryError(f"it refuses the login: {error.smtp_code}", place=rule.shown, hint=hint) from error
    except smtplib.SMTPRecipientsRefused as error:
        raise _smtp_error(rule, min(code for code, _ in error.recipients.values()), b"all recipients are refused") from error
    except smtplib.SMTPResponseException as error:
        raise _smtp_error(rule, error.smtp_code, error.smtp_error) from error
    return f"accepted, but not for {', '.join(sorted(refused))}" if refused else ACCEPTED


def _secure(client: smtplib.SMTP, rule: AlertRule, server: MailServer) -> None:
    """Begin TLS, which a server on this machine may lack."""
    client.ehlo_or_helo_if_needed()
    if server.implicit_tls:
        return
    if client.has_extn("starttls"):
        client.starttls(context=rule.context())
        client.ehlo()
    elif rule.needs_tls:
        hint = "write smtps:// if it has TLS from the start, or plaintext = true"
        raise DeliveryError("it offers no STARTTLS, and nothing is sent unencrypted to another machine", place=rule.shown, hint=hint)


def _log_in(client: smtplib.SMTP, server: MailServer) -> None:
    if server.password.isascii() and server.user.isascii():
        client.login(server.user, server.password)
        return
    # smtplib sends ASCII only.
    account = base64.b64encode(f"\0{server.user}\0{server.password}".encode()).decode()
    code, text = client.docmd("AUTH", f"PLAIN {account}")
    if code != 235:
        raise smtplib.SMTPAuthenticationError(code, text)


def _smtp_error(rule: AlertRule, code: int, text: bytes | str) -> HeadraceError:
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    message = f"it answers {code}: {escape_text(' '.join(said.split()))[:_MAX_SHOWN]}"
    if 500 <= code < 600:
        return DefiniteError(message, place=rule.shown, hint="check to and sender of the section, and the mail server's log")
    return DeliveryError(message, place=rule.shown, hint="see the mail server's log")


class _Deadline:
    """Ends an attempt that takes too long. A socket's own timeout is not enough: each byte restarts it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._watched: socket.socket | None = None
        self.is_over = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._watched is not None:
                self._watched.close()

    def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> socket.socket:
        """Connect, with TLS if there is a context. The watchdog keeps a copy of the descriptor, which TLS does not replace."""
        opened = socket.create_connection((host, port), self._seconds)
        # The watchdog comes first.
        opened.settimeout(2 * self._seconds)
        with self._lock:
            self._watched = opened.dup()
            if self.is_over:
                opened.close()
                raise TimeoutError
        try:
            return opened if context is None else context.wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._watched is not None:
                with suppress(OSError):
                    self._watched.shutdown(socket.SHUT_RDWR)
