"""One alert reaches a webhook and a mail server, as each wants it; what it does wrong is an error without secrets, in time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.alerts.alert import Alert, AlertKind
from headrace.alerts.messages import mail_message, slack_message, teams_message
from headrace.alerts.receivers import DeliveryError, send
from headrace.alerts.rules import AlertRule, MailServer
from headrace.config.document import parse_document
from headrace.config.load import resolve
from headrace.errors import DefiniteError
from testkit.servers.alert_receivers import mail_server, webhook
from testkit.servers.certificates import Authority

Act = Callable[[socket.socket], None]
PIPES = '[sources.a]\nurl = "mysql://u@h/d"\n[sinks.b]\nurl = "chdb:x"\n[pipes.shop]\nsource = "a"\nsink = "b"\n'
HOSTILE = "shop: failed: <!channel> [click](http://evil) <http://evil|x>\r\nBcc: all@example.com\x1b[2J"
ALERT = Alert(
    "00ff",
    AlertKind.FAILED,
    "shop",
    HOSTILE,
    1_700_000_000.0,
    1_700_000_060.0,
    ("one detail",),
    "binlog.000042:1337",
    "widen the column",
    "http://127.0.0.1:8088/#/pipes/shop",
)


def rule(text: str, environment: dict[str, str] | None = None) -> AlertRule:
    [found] = resolve(parse_document(f"{PIPES}[alerts.chat]\n{text}", "headrace.toml", Path(), environment or {})).alerts
    return found


def test_json_of_a_generic_webhook() -> None:
    with webhook() as receiver:
        chosen = rule(f'url = "http://127.0.0.1:{receiver.port}/hook?key=abc"\ntoken = "${{TOKEN}}"', {"TOKEN": "bearer-secret"})
        assert send(chosen, ALERT) == "HTTP 200"
    [posted] = receiver.posted
    assert posted.path == "/hook?key=abc"
    assert posted.headers["authorization"] == "Bearer bearer-secret"
    assert posted.headers["content-type"] == "application/json"
    assert posted.headers["x-headrace-alert"] == "00ff"
    assert posted.body == {
        "version": 1,
        "id": "00ff",
        "kind": "failed",
        "pipe": "shop",
        "summary": HOSTILE,
        "details": ["one detail"],
        "place": "binlog.000042:1337",
        "remedy": "widen the column",
        "link": "http://127.0.0.1:8088/#/pipes/shop",
        "since": "2023-11-14T22:13:20Z",
        "at": "2023-11-14T22:14:20Z",
        "recovers": "",
        "receiver": "chat",
        "host": socket.gethostname(),
    }


def test_the_keys_of_the_json_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/operations/alerts.md").read_text()
    for key in ALERT.document("chat", "host"):
        assert f"| `{key}` |" in page


@pytest.mark.parametrize("kind", ["slack", "teams"])
def test_chat_messages_show_names_as_text(kind: str) -> None:
    with webhook() as receiver:
        send(rule(f'url = "http://127.0.0.1:{receiver.port}/services/x"\nformat = "{kind}"'), ALERT)
    body = receiver.posted[0].body
    text = json.dumps(body)
    for shown in ("widen the column", "binlog.000042:1337", "2023-11-14T22:13:20Z", "http://127.0.0.1:8088/#/pipes/shop", "one detail"):
        assert shown in text
    if kind == "slack":
        # Only the link of Headrace itself is markup.
        marked = [block["text"]["text"] for block in body["blocks"] if block["text"]["type"] == "mrkdwn"]
        assert marked == ["<http://127.0.0.1:8088/#/pipes/shop|Open the dashboard>"]
        assert not set("<>") & set(body["text"])
        assert len(body["blocks"][0]["text"]["text"]) <= 150
    else:
        [attachment] = body["attachments"]
        assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
        # Text runs have no Markdown.
        assert {block["type"] for block in attachment["content"]["body"]} == {"RichTextBlock"}
        assert attachment["content"]["actions"][0]["url"] == "http://127.0.0.1:8088/#/pipes/shop"
    assert "\\u001b" not in text.replace("\\\\u001b", "")


def test_long_texts_are_cut_to_what_chats_take() -> None:
    long = Alert("1", AlertKind.SCHEMA_CHANGE, "shop", "x" * 9000, 0.0, 0.0, ("y" * 9000,) * 11)
    slack = slack_message(long, "host")
    assert max(len(block["text"]["text"]) for block in slack["blocks"]) <= 3000
    assert len(slack["text"]) <= 3000
    assert len(json.dumps(teams_message(long, "host"))) < 28_000
    server = MailServer(False, "h", 25, "", "", "a@b.c", ("d@e.f",))
    assert len(str(mail_message(long, server, "host")["Subject"])) <= 200


MAIL = 'to = ["ops@example.com", "Second <b@example.com>"]\nsender = "Headrace <h@example.com>"\n'


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.mark.parametrize("way", ["plain", "starttls", "implicit"])
def test_mail(way: str, authority: Authority) -> None:
    tls = None if way == "plain" else authority.issue("mail", hosts=("127.0.0.1",))
    with mail_server(tls, implicit=way == "implicit") as server:
        account = "" if way == "plain" else "alerts@"
        password = "" if way == "plain" else 'password = "${PASSWORD}"\n'
        scheme = "smtps" if way == "implicit" else "smtp"
        ca = "" if way == "plain" else f'ca = "{authority.cert}"\n'
        chosen = rule(f'url = "{scheme}://{account}127.0.0.1:{server.port}"\n{MAIL}{password}{ca}', {"PASSWORD": "pä:ss"})
        assert send(chosen, ALERT) == "accepted"
        assert send(chosen, ALERT) == "accepted"
    message = server.messages[0]
    assert server.encrypted[0] is (way != "plain")
    assert server.logins[:1] == ([] if way == "plain" else ["alerts:pä:ss"])
    sender, to = server.envelopes[0]
    assert sender.startswith("FROM:<h@example.com>")
    assert [one.partition(">")[0] for one in to] == ["TO:<ops@example.com", "TO:<b@example.com"]
    assert message["Bcc"] is None, "a name cannot add a header"
    assert "\n" not in message["Subject"]
    assert message["Subject"].startswith("[headrace] failed: shop: failed: ")
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Message-ID"] == server.messages[1]["Message-ID"], "a repetition is recognised"
    text = message.get_content()
    for shown in (
        "remedy: widen the column",
        "http://127.0.0.1:8088/#/pipes/shop",
        "since: 2023-11-14T22:13:20Z",
        "at: binlog.000042:1337",
    ):
        assert shown in text
    assert "\x1b" not in text


def test_certificates_are_checked(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("good", hosts=("127.0.0.1",)), authority.issue("other", hosts=("other.example",))
    stranger = Authority(tmp_path, "stranger")
    with webhook(good) as receiver, mail_server(good) as server:
        url = f'url = "https://127.0.0.1:{receiver.port}/"'
        assert send(rule(f'{url}\nca = "{authority.cert}"'), ALERT) == "HTTP 200"
        for section in (url, f'{url}\nca = "{stranger.cert}"', f'url = "smtp://127.0.0.1:{server.port}"\n{MAIL}'):
            with pytest.raises(DeliveryError, match="certificate is not valid"):
                send(rule(section), ALERT)
    with webhook(other) as receiver, pytest.raises(DeliveryError, match="certificate is not valid"):
        send(rule(f'url = "https://127.0.0.1:{receiver.port}/"\nca = "{authority.cert}"'), ALERT)
    assert not server.messages
    assert not receiver.posted


def test_nothing_goes_to_another_machine_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DefiniteError, match="unencrypted"):
        rule('url = "http://chat.example.com/hook"')
    assert not rule('url = "http://chat.example.com/hook"\nplaintext = true').needs_tls
    with mail_server() as server:
        chosen = rule(f'url = "smtp://u:p@mail.example.com:{server.port}"\n{MAIL}')
        # A name of another machine that leads here.
        connect = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda address, *rest: connect(("127.0.0.1", address[1]), *rest))
        with pytest.raises(DeliveryError, match="no STARTTLS"):
            send(chosen, ALERT)
    assert not server.logins
    assert not server.messages


@pytest.mark.parametrize(
    ("status", "headers", "kind", "said", "wait_s"),
    [
        (500, {}, DeliveryError, "it answers 500 Internal Server Error: oops", 0),
        (429, {"Retry-After": "7"}, DeliveryError, "it answers 429", 7),
        (503, {"Retry-After": "no date"}, DeliveryError, "it answers 503", 0),
        (302, {"Location": "http://127.0.0.1:1/"}, DeliveryError, "it answers 302", 0),
        (404, {}, DeliveryError, "it answers 404", 0),
        (400, {}, DefiniteError, "it answers 400", 0),
    ],
)
def test_answers_of_a_webhook(status: int, headers: dict[str, str], kind: type[Exception], said: str, wait_s: float) -> None:
    with webhook() as receiver:
        receiver.answers, receiver.headers, receiver.text = [status], headers, "oops\r\nX"
        with pytest.raises(kind, match=said) as caught:
            send(rule(f'url = "http://127.0.0.1:{receiver.port}/services/path-secret"'), ALERT)
    assert getattr(caught.value, "retry_after_s", 0) == wait_s
    assert "path-secret" not in str(caught.value)
    assert str(caught.value).count("\n") == 1, "message and remedy are one line each"


def test_an_answer_that_repeats_the_secret_is_not_shown() -> None:
    with webhook() as receiver:
        receiver.answers, receiver.text = [500], "cannot POST /services/path-secret"
        with pytest.raises(DeliveryError) as caught:
            send(rule(f'url = "http://127.0.0.1:{receiver.port}/services/path-secret"'), ALERT)
    assert "path-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("rejects", "kind", "said"),
    [
        ({"DATA": "451 later"}, DeliveryError, "it answers 451: later"),
        ({"DATA": "554 spam"}, DefiniteError, "it answers 554: spam"),
        ({"RCPT": "550 unknown"}, None, "accepted, but not for ops@example.com"),
        ({"AUTH": "535 no"}, DeliveryError, "it refuses the login: 535"),
        ({"MAIL": "421 closing"}, DeliveryError, "it answers 421"),
    ],
)
def test_answers_of_a_mail_server(rejects: dict[str, str], kind: type[Exception] | None, said: str) -> None:
    with mail_server() as server:
        server.rejects = rejects
        chosen = rule(f'url = "smtp://u:pass-secret@127.0.0.1:{server.port}"\n{MAIL}')
        if kind is None:
            assert send(chosen, ALERT) == said
            return
        with pytest.raises(kind, match=said) as caught:
            send(chosen, ALERT)
    assert "pass-secret" not in str(caught.value)


def test_a_receiver_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for section in (f'url = "http://127.0.0.1:{port}/"', f'url = "smtp://127.0.0.1:{port}"\n{MAIL}'):
        with pytest.raises(DeliveryError, match="it cannot be reached: Connection refused"):
            send(rule(section), ALERT)


def silent(_: socket.socket) -> None:
    """Answer nothing."""


def dripping(connection: socket.socket) -> None:
    """Send a byte at intervals: each byte would restart the timeout of a socket."""
    for _ in range(600):
        connection.sendall(b"x")
        time.sleep(0.1)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + os.urandom(3))
    while True:
        connection.sendall(b"x" * 65536)


def garbage(connection: socket.socket) -> None:
    connection.sendall(os.urandom(3000))
    connection.close()


@pytest.fixture
def hostile() -> Iterator[Callable[[Act, int], int]]:
    """Starts a server that acts on its first connection, after it has received some bytes."""
    servers = []

    def started(act: Act, after: int) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.recv(after)
                act(connection)
                # Open until the client gives up.
                while connection.recv(65536):
                    pass

        threading.Thread(target=run, daemon=True).start()
        return int(server.getsockname()[1])

    yield started
    for server in servers:
        server.close()


@pytest.mark.parametrize("act", [silent, dripping, garbage])
@pytest.mark.parametrize("scheme", ["http", "https", "smtp", "smtps"])
def test_a_receiver_that_does_not_answer_ends_in_time(act: Act, scheme: str, hostile: Callable[[Act, int], int]) -> None:
    # A mail client waits for the greeting before it sends anything.
    port = hostile(act, 0 if scheme == "smtp" else 1)
    more = MAIL if scheme.startswith("smtp") else ""
    began = time.monotonic()
    with pytest.raises(DeliveryError) as caught:
        send(rule(f'url = "{scheme}://127.0.0.1:{port}/"\ntimeout_seconds = 0.6\n{more}'), ALERT)
    assert time.monotonic() - began < 15
    if act is not garbage:
        assert "it has not answered within 0.6 s" in str(caught.value) or scheme in ("https", "smtps")


def test_an_endless_answer_is_not_read(hostile: Callable[[Act, int], int]) -> None:
    assert send(rule(f'url = "http://127.0.0.1:{hostile(endless, 65536)}/"'), ALERT) == "HTTP 200"
