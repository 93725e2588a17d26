"""A Confluent-compatible schema registry over HTTP, through confluent-kafka's client.

`https://user:password@host:8081/path?ssl.ca.location=…`: the query holds properties of that client. The password may come from the
environment instead, and is never displayed. An unreachable registry is retried with limits; a rejection is an error. Responses are bounded
in size and time, and compressed responses are rejected.
"""

from __future__ import annotations

import functools
import os
import queue
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import httpx2 as httpx
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.schema_repository import PASSWORD_VARIABLE, PROPERTIES_VARIABLE, RegisteredSchema, incompatible_schema_error
from headrace.retry import retrying

_AVRO: Final = "AVRO"
_DEADLINE_S: Final = 120.0
_TIMEOUT_S: Final = 20.0
"""Timeout of one connect, send or receive."""
_TIMEOUTS: Final = 3
"""Maximum duration of an answer, in timeouts."""
_ANSWER_BYTES: Final = 16 << 20
_MAX_REFERENCES: Final = 1000
_MAX_ERROR_CHARACTERS: Final = 2000
"""Maximum characters of an error's text."""
_NUMBERS: Final = ("timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
_TRANSIENT: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
_NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 404, 409, 422
_FORM: Final = "write http://user:password@host:8081/path?property=value"
_CHECK_ADDRESS: Final = "see whether a schema registry listens at this address"
_NEXT_ADDRESS: Final = re.compile(r",(?=https?://)")

T = TypeVar("T")


class HttpRepository:
    """A registry. Schemas are cached by id without limit, because they never change."""

    def __init__(self, address: str, *, deadline_s: float = _DEADLINE_S) -> None:
        settings, self._shown = client_settings(address)
        self._deadline_s = deadline_s
        self._schemas: dict[int, AvroSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}
        # The client's session is not for several threads.
        self._lock = threading.Lock()
        self._settings = settings
        self._connect()

    def _connect(self) -> None:
        try:
            self._client = SchemaRegistryClient(self._settings)
        except (ValueError, TypeError, OSError) as error:
            raise DefiniteError(f"the schema registry's address is invalid: {error}", place=self._shown, hint=_FORM) from error
        session = self._client._rest_client.session
        session.headers["accept-encoding"] = "identity"
        session.event_hooks = {"response": [functools.partial(_limit_body, self._shown)]}
        # Close the connection even if the caller forgets to.
        self.close = weakref.finalize(self, self._client.close)

    def __repr__(self) -> str:
        return f"HttpRepository({self._shown})"

    def register(self, subject: str, schema: AvroSchema) -> int:
        key = subject, schema.text
        if key not in self._ids:
            try:
                self._ids[key] = self._call(lambda: int(self._client.register_schema(subject, _to_client_schema(schema))), subject)
            except _RegistryError as error:
                if error.status == _CONFLICT:
                    raise incompatible_schema_error(subject, (error.message,)) from error
                raise
        return self._ids[key]

    def by_id(self, number: int) -> AvroSchema:
        if number not in self._schemas:
            found = self._call(lambda: self._client.get_schema(number), f"schema id {number}")
            self._schemas[number] = self._parsed(found, f"schema id {number}")
        return self._schemas[number]

    def latest(self, subject: str) -> RegisteredSchema | None:
        def request() -> Any:
            # Otherwise the client would cache the latest one without limit.
            self._client.clear_latest_caches()  # type: ignore[no-untyped-call]
            return self._client.get_latest_version(subject)

        try:
            found = self._call(request, subject)
        except _RegistryError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return RegisteredSchema(subject, int(found.schema_id), int(found.version), self._parsed(found.schema, subject))

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        try:
            fine = self._call(lambda: self._client.test_compatibility(subject, _to_client_schema(schema), verbose=True), subject)
        except _RegistryError as error:
            if error.status == _NOT_FOUND:
                return ()
            if error.status == _UNPROCESSABLE:
                return (error.message,)
            raise
        return () if fine else (f"the registry reports that it is not compatible with the last one of {subject}",)

    def _parsed(self, found: Any, place: str) -> AvroSchema:
        if found.schema_type not in (None, _AVRO):
            raise DefiniteError(f"the schema is of type {found.schema_type}, not Avro", place=f"{place} in {self._shown}")
        return parse_schema(self._text(found, place), strict=False, references=self._referenced_texts(found, place, 0, {}))

    def _text(self, found: Any, place: str) -> str:
        if not isinstance(found.schema_str, str) or not found.schema_str:
            raise DefiniteError("the registry gave no schema", place=f"{place} in {self._shown}", hint=_CHECK_ADDRESS)
        return found.schema_str

    def _referenced_texts(self, found: Any, place: str, depth: int, known: dict[tuple[str, int], tuple[str, ...]]) -> tuple[str, ...]:
        """Return the texts of all referenced schemas, dependencies first; `known` holds those already fetched."""
        if depth > 20:
            raise DefiniteError("schemas refer to each other in a circle", place=f"{place} in {self._shown}")
        texts: list[str] = []
        for reference in found.references or ():
            key = reference.subject, reference.version
            if key not in known:
                other = self._call(lambda one=reference: self._client.get_version(one.subject, one.version), reference.subject).schema  # type: ignore[misc]
                known[key] = *self._referenced_texts(other, place, depth + 1, known), self._text(other, place)
                if len(known) > _MAX_REFERENCES or sum(len(one[-1]) for one in known.values()) > _ANSWER_BYTES:
                    raise DefiniteError(
                        f"the schema refers to more than {_MAX_REFERENCES:,} others or {_ANSWER_BYTES:,} characters of them",
                        place=f"{place} in {self._shown}",
                        hint=_CHECK_ADDRESS,
                    )
            texts += known[key]
        return tuple(dict.fromkeys(texts))

    def _call(self, call: Callable[[], T], what: str) -> T:
        def once() -> T:
            try:
                with self._lock:
                    return self._call_with_timeout(call)
            except SchemaRegistryError as error:
                raise self._failure(error, what) from error
            except (httpx.TransportError, OAuthTokenError) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise DefiniteError(
                        f"the schema registry's certificate is not trusted: {error}", place=self._shown, hint="give ssl.ca.location"
                    ) from error
                raise TransientError(f"the schema registry does not answer: {error}", place=self._shown, hint="start it") from error
            # The client fails on documents that are not a registry's.
            except (httpx.InvalidURL, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DefiniteError(f"what answers is no schema registry: {error}", place=self._shown, hint=_FORM) from error

        return retrying(once, deadline_s=self._deadline_s)

    def _call_with_timeout(self, call: Callable[[], T]) -> T:
        """Call in a thread that is abandoned if the answer takes too long: the client's timeout covers a single read only."""
        ended: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put(call())
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
                ended.put(error)

        limit_s = _TIMEOUTS * float(self._settings["timeout"])
        threading.Thread(target=work, name="headrace-registry", daemon=True).start()
        try:
            found = ended.get(timeout=limit_s)
        except queue.Empty:
            # The thread ends with its session.
            self.close()
            self._connect()
            raise TransientError(
                f"the schema registry did not finish its answer within {limit_s:.0f} s", place=self._shown, hint=_CHECK_ADDRESS
            ) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _failure(self, error: SchemaRegistryError, what: str) -> Exception:
        status, reason = error.http_status_code, str(error.error_message or "").strip()[:_MAX_ERROR_CHARACTERS]
        place = f"{what} in {self._shown}"
        if status in _TRANSIENT:
            return TransientError(f"the schema registry cannot answer now: {reason} (HTTP {status})", place=place)
        if status in (401, 403):
            return DefiniteError(
                f"the schema registry denies access (HTTP {status})",
                place=place,
                hint=f"give user and password in its address, or the password in {PASSWORD_VARIABLE}",
            )
        hint = "register the schema, or give the registry that the messages were written with" if status == _NOT_FOUND else ""
        return _RegistryError(reason or f"HTTP {status}", status, place=place, hint=hint)


def _limit_body(shown: str, response: httpx.Response) -> None:
    coding = response.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise DefiniteError(
            f"the schema registry's answer is compressed ({coding!r}), which was not requested", place=shown, hint=_CHECK_ADDRESS
        )
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _BoundedBody(response.stream, shown)


class _BoundedBody(httpx.SyncByteStream):
    def __init__(self, body: httpx.SyncByteStream, shown: str) -> None:
        self._body, self._shown = body, shown

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._body:
            size += len(piece)
            if size > _ANSWER_BYTES:
                raise DefiniteError(
                    f"the schema registry's answer has more than {_ANSWER_BYTES:,} bytes", place=self._shown, hint=_CHECK_ADDRESS
                )
            yield piece

    def close(self) -> None:
        self._body.close()


class _RegistryError(DefiniteError):
    def __init__(self, message: str, status: int = 0, *, place: str = "", hint: str = "") -> None:
        super().__init__(message, place=place, hint=hint)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return DefiniteError(self.message, place=self.place, hint=self.hint).__reduce__()


def client_settings(address: str) -> tuple[dict[str, Any], str]:
    """Return the client's configuration, and the address without secrets."""
    place, _, query = address.partition("?")
    parts = [_split(one) for one in _NEXT_ADDRESS.split(place)]
    shown = ",".join(f"{one.scheme}://{one.netloc.rpartition('@')[2]}{one.path}" for one in parts)
    # Headrace's own limits apply; otherwise each of its attempts would wait for the client's retries.
    settings: dict[str, Any] = {"url": shown, "max.retries": 0, "timeout": _TIMEOUT_S}
    for name, value in parse_qsl(f"{query}&{os.environ.get(PROPERTIES_VARIABLE, '')}", keep_blank_values=True):
        try:
            settings[name] = float(value) if name in _NUMBERS else value
        except ValueError as error:
            raise DefiniteError(f"the schema registry's property {name} is a number", place=shown, hint=f"not {value!r}") from error
    account = next((one for one in parts if one.username), None)
    if account is not None:
        password = unquote(account.password) if account.password is not None else os.environ.get(PASSWORD_VARIABLE, "")
        settings["basic.auth.user.info"] = f"{unquote(account.username or '')}:{password}"
    return settings, shown


def _split(address: str) -> SplitResult:
    try:
        found = urlsplit(address)
        sound = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise DefiniteError("the address of the schema registry cannot be read", hint=_FORM)
    return found


def _to_client_schema(schema: AvroSchema) -> Schema:
    return Schema(schema.text, _AVRO)
