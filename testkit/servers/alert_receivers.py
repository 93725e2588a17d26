"""Receivers of alerts on loopback: a webhook and a mail server, with answers that a test sets."""

from __future__ import annotations

import base64
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testkit.servers.certificates import Pair


@dataclass(frozen=True)
class Posted:
    path: str
    headers: dict[str, str]
    body: Any
    at: float


@dataclass
class Webhook:
    """What a webhook received. `answers`: the statuses of the next requests; then 200."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of answers other than 200."""
    text: str = "ok"
    posted: list[Posted] = field(default_factory=list)
    hold: Callable[[], object] = lambda: None
    """Called before each answer."""

    @property
    def accepted(self) -> list[Posted]:
        return [one for one in self.posted if one.headers["answered"] == "200"]

    def kinds(self) -> list[str]:
        return [one.body["kind"] for one in self.accepted]


@contextmanager
def webhook(tls: Pair | None = None, port: int = 0) -> Iterator[Webhook]:
    found = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.hold()
            status = found.answers.pop(0) if found.answers else 200
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.posted.append(Posted(self.path, {**headers, "answered": str(status)}, json.loads(body), time.monotonic()))
            self.send_response(status)
            for name, value in (found.headers if status != 200 else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(found.text.encode())))
            self.end_headers()
            self.wfile.write(found.text.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Clients that give up are expected."""

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = _context(tls).wrap_socket(server.socket, server_side=True)
    found.port = server.server_address[1]
    with _serving(server):
        yield found


@dataclass
class MailServer:
    """What a mail server received."""

    port: int = 0
    messages: list[EmailMessage] = field(default_factory=list)
    envelopes: list[tuple[str, list[str]]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    """`user:password` of each login."""
    encrypted: list[bool] = field(default_factory=list)
    """Of each message: whether it came through TLS."""
    rejects: dict[str, str] = field(default_factory=dict)
    """Answers other than the usual ones, by command: `{"DATA": "451 later"}`; each is used once."""


@contextmanager
def mail_server(tls: Pair | None = None, *, implicit: bool = False) -> Iterator[MailServer]:
    found = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            self.is_encrypted = False
            if implicit and tls is not None:
                self.request, self.is_encrypted = _context(tls).wrap_socket(self.request, server_side=True), True
            super().setup()

        def handle(self) -> None:
            sender, to = "", list[str]()
            self.answer("220 ready")
            while line := self.rfile.readline():
                command, _, rest = line.decode().strip().partition(" ")
                command = command.upper()
                if command in found.rejects:
                    self.answer(found.rejects.pop(command))
                elif command == "EHLO":
                    offers = ["test", *(["STARTTLS"] if tls is not None and not self.is_encrypted else []), "AUTH PLAIN"]
                    self.answer("\r\n".join(f"250{'-' if place < len(offers) - 1 else ' '}{one}" for place, one in enumerate(offers)))
                elif command == "STARTTLS" and tls is not None:
                    self.answer("220 go")
                    self.request, self.is_encrypted = _context(tls).wrap_socket(self.request, server_side=True), True
                    super().setup()
                elif command == "AUTH":
                    _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                    found.logins.append(f"{user}:{password}")
                    self.answer("235 welcome")
                elif command == "MAIL":
                    sender, to = rest, []
                    self.answer("250 ok")
                elif command == "RCPT":
                    to.append(rest)
                    self.answer("250 ok")
                elif command == "DATA":
                    self.answer("354 go")
                    self.receive(sender, to)
                    self.answer("250 ok")
                else:
                    self.answer("221 bye" if command == "QUIT" else "250 ok")
                    if command == "QUIT":
                        return

        def finish(self) -> None:
            super().finish()
            # TLS has replaced the socket that the server closes.
            self.request.close()

        def receive(self, sender: str, to: Sequence[str]) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            message = message_from_bytes(b"".join(lines), policy=policy.default)
            assert isinstance(message, EmailMessage)
            found.envelopes.append((sender, list(to)))
            found.encrypted.append(self.is_encrypted)
            found.messages.append(message)

        def answer(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that give up are expected."""

    server = Server(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    with _serving(server):
        yield found


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _context(tls: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    return context
