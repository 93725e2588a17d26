"""`[alerts.NAME]` in a file: mistakes have their lines, secrets are hidden, and `headrace alerts test` tries the receivers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace import cli
from headrace.alerts.alert import EVENTS, AlertKind
from headrace.alerts.rules import MailServer, RuleKeys, Webhook
from headrace.config.document import parse_document
from headrace.config.load import resolve
from testkit.servers.alert_receivers import mail_server, webhook

PIPES = """\
[sources.a]
url = "mysql://u:${SOURCE_PASSWORD}@h/d"
[sinks.b]
url = "chdb:x"
[pipes.shop]
source = "a"
sink = "b"
"""
GOOD = """\
[alerts.chat]
url = "https://hooks.slack.com/services/${SLACK_PATH}?key=${KEY}"
format = "slack"
events = ["failed", "lag"]
pipes = ["sh*"]
lag_seconds = 5
low_disk = "20G"
[alerts.mail]
url = "smtps://me%40there@mail.example.com"
password = "${KEY}"
sender = "Headrace <h@example.com>"
to = ["a@example.com"]
"""
SECRETS = {"SOURCE_PASSWORD": "sp", "SLACK_PATH": "T0/B0/slack-secret", "KEY": "key secret&é"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "headrace.toml"


def test_rules_of_a_file() -> None:
    chat, mail = resolve(parse_document(PIPES + GOOD, "headrace.toml", Path(), SECRETS)).alerts
    assert isinstance(chat.receiver, Webhook)
    # A value after the question mark is quoted.
    assert chat.receiver.path == "/services/T0/B0/slack-secret?key=key%20secret%26%C3%A9"
    assert (chat.receiver.host, chat.receiver.port, chat.receiver.tls) == ("hooks.slack.com", 443, True)
    assert (chat.events, chat.lag_s, chat.lag_for_s, chat.low_disk) == ({AlertKind.FAILED, AlertKind.LAG}, 5.0, 300.0, 20 << 30)
    assert chat.covers("shop")
    assert not chat.covers("crm")
    assert isinstance(mail.receiver, MailServer)
    assert (mail.receiver.user, mail.receiver.password, mail.receiver.port) == ("me@there", "key secret&é", 465)
    assert mail.receiver.implicit_tls
    assert mail.events == set(EVENTS)
    assert (chat.shown, mail.shown) == ("https://hooks.slack.com:443", "a@example.com by mail.example.com:465")
    for text in (repr(chat), repr(mail), chat.shown, mail.shown):
        assert "secret" not in text


def test_the_documented_events_are_all_of_them() -> None:
    assert RuleKeys().events == tuple(EVENTS)
    page = (Path(__file__).parents[2] / "docs/operations/alerts.md").read_text()
    for kind in EVENTS:
        assert f"`{kind}`" in page


@pytest.mark.parametrize(
    ("section", "line", "said", "remedy"),
    [
        ('url = "https://h/x"\nevents = ["faild"]', 10, "there is no event 'faild'", 'did you mean "failed"?'),
        ('url = "https://h/x"\nevents = []', 10, "nothing would be sent", "known: failed"),
        ('url = "https://h/x"\nevents = ["recovered"]', 10, "recovered has nothing to follow", "add failed"),
        ('url = "https://h/x"\npipes = ["shpo"]', 10, "no pipe matches 'shpo'", 'did you mean "shop"?'),
        ('url = "https://h/x"\nformat = "slak"', 10, "format must be one of", 'did you mean "slack"?'),
        ('url = "https://h/x"\nlow_disk = "5X"', 10, "low_disk must be a number of bytes", "less free space"),
        ('url = "https://h/x"\ntimeout_seconds = 0', 10, "timeout_seconds must be more than 0", "timeout_seconds = 10"),
        ('url = "https://h/x"\nca = "no-such-file"', 10, "the file of ca cannot be loaded", "PEM"),
        ('url = "https://h/x"\ntoken = "two\\nlines"', 10, "characters that no header can hold", "visible ASCII"),
        ('url = "https://h/x"\nto = ["a@b.c"]', 10, "there is no setting 'to'", "it is a setting of [alerts.NAME] of e-mail"),
        ('url = "https://u:secret@h/x"', 9, "the address of a webhook has no account", "token"),
        ('url = "http://h/secret"', 9, "unencrypted", "plaintext = true"),
        ('url = "https://h:port/secret"', 9, "the receiver's address cannot be read", "smtp://"),
        ('url = "slack://h/secret"', 9, "the receiver's address cannot be read", "https://host/path"),
        ('url = "https://${NO_SUCH}/secret"', 9, "the environment variable NO_SUCH is not set", "set it"),
        ("timeout_seconds = 3", 8, "[alerts.chat] needs a url", "https://host/path"),
        ('url = "smtp://h"\nto = ["a@b.c"]', 8, "the e-mail has no sender", "name@example.com"),
        ('url = "smtp://h"\nsender = "a@b.c"', 8, "the e-mail has no recipient", "to = "),
        ('url = "smtp://h"\nsender = "a@b.c"\nto = ["x\\nBcc: y@z"]', 11, "is no e-mail address", "name@example.com"),
        ('url = "smtp://u@h"\nsender = "a@b.c"\nto = ["a@b.c"]', 9, "the account has no password", "smtp://user@host:587"),
        ('url = "smtp://u:secret@h"\npassword = "secret"\nsender = "a@b.c"\nto = ["a@b.c"]', 10, "given twice", "one place"),
    ],
)
def test_a_mistake_is_one_error_with_its_line(
    section: str, line: int, said: str, remedy: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"{PIPES}[alerts.chat]\n{section}\n")
    assert cli.main(["config", "check"]) == cli.FAILED
    text = capsys.readouterr().err
    assert said in text
    assert f"headrace.toml, line {line}, alerts.chat" in text
    assert remedy in text
    assert text.count("remedy:") == 1
    assert "secret" not in text


def test_the_address_of_the_dashboard_is_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address, code in (
        ("https://headrace.example.com/x", cli.OK),
        ("headrace.example.com", cli.FAILED),
        ("http://h/#token=x", cli.FAILED),
    ):
        file.write_text(f'{PIPES}[headrace]\naddress = "{address}"\n')
        assert cli.main(["config", "check"]) == code
    assert "line 9, headrace.address" in capsys.readouterr().err


def test_show_hides_the_secrets(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PIPES + GOOD)
    for more in ([], ["--defaults"]):
        assert cli.main(["config", "show", *more]) == cli.OK
        text = capsys.readouterr().out
        assert 'url = "https://hooks.slack.com/***"' in text
        assert 'url = "smtps://mail.example.com/***"' in text
        assert 'password = "***"' in text
        assert "slack-secret" not in text
        assert "key secret" not in text
        assert ("away_seconds = 300" in text) is bool(more)


def test_receivers_are_tried_without_the_other_secrets(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.delenv("SOURCE_PASSWORD")
    with webhook() as receiver, mail_server() as server:
        receiver.answers = [404]
        file.write_text(
            f'{PIPES}[headrace]\naddress = "https://headrace.example.com"\n'
            f'[alerts.chat]\nurl = "http://127.0.0.1:{receiver.port}/services/${{SLACK_PATH}}"\nformat = "slack"\n'
            f'[alerts.mail]\nurl = "smtp://127.0.0.1:{server.port}"\nsender = "h@example.com"\nto = ["a@example.com"]\n'
        )
        assert cli.main(["alerts", "test"]) == cli.FAILED
        text = capsys.readouterr().out
        assert "chat: not sent: it answers 404 Not Found" in text
        assert "    remedy: check url of the section" in text
        assert f"mail: sent to a@example.com by 127.0.0.1:{server.port}: accepted, " in text
        assert cli.main(["alerts", "test", "chat", "--file", str(file)]) == cli.OK
        assert "chat: sent to http://127.0.0.1" in capsys.readouterr().out
    assert len(receiver.posted) == 2
    assert "Open the dashboard" in str(receiver.posted[1].body)
    [message] = server.messages
    assert "https://headrace.example.com/" in message.get_content()
    assert "slack-secret" not in text + caplog.text
    assert cli.main(["alerts", "test", "chta"]) == cli.FAILED
    assert "there is no section [alerts.chta]" in capsys.readouterr().err
    file.write_text(PIPES)
    assert cli.main(["alerts", "test"]) == cli.FAILED
    assert "the file has no alerts" in capsys.readouterr().err
