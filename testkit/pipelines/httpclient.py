"""A plain HTTP client of ClickHouse, for tests of the wire format."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from testkit.pipelines.embedded_access import basic


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.headers.get("X-ClickHouse-Exception-Code", "0"))


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        """`headers` go with every request; by default those of the tests' account."""
        self._headers = basic() if headers is None else headers
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(
        self, query: str = "", body: object = None, method: str = "", headers: Mapping[str, str] | None = None, **fields: str
    ) -> Answer:
        params = {**({"query": query} if query else {}), **fields}
        self.connection.request(method or "POST", f"/?{urlencode(params)}", body=body, headers={**self._headers, **(headers or {})})  # type: ignore[arg-type]
        response = self.connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())

    def run(self, query: str, body: object = None, **fields: str) -> bytes:
        answer = self.ask(query, body, **fields)
        assert answer.status == 200, answer.body
        return answer.body
