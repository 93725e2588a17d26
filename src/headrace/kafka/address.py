"""Addresses of Kafka clusters, with the client properties.

`kafka://user:password@host:9092,host2:9092/topic?security.protocol=SASL_SSL&…`: what follows the question mark are the properties of
Kafka's own clients, passed through as they are. An address never shows its password.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from headrace.errors import DefiniteError

PASSWORD_VARIABLE: Final = "HEADRACE_KAFKA_PASSWORD"
SECRETS_VARIABLE: Final = "HEADRACE_KAFKA_SECRETS"
"""The environment variable with secret client properties, in the form of a URL's query; used instead of the command line."""
SCHEME: Final = "kafka://"
UNPACKED: Final = (
    "the batch is damaged, or its zstd unpacks to more than receive.message.max.bytes (100 MB): "
    "if it may be so large, write ?receive.message.max.bytes=BYTES in the address"
)
"""Hint for a batch of records that librdkafka cannot decompress."""
_FORM: Final = "write kafka://host:port,host:port/topic?property=value"
_SECRETS: Final = ("password", "secret", "jaas", "token", "key.pem")
_PKCS8: Final = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
_TRANSLATED: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.pem",
    }
)


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A cluster with credentials, and the topic or topics (separated by commas), if any."""

    servers: str
    """host:port, separated by commas."""
    topic: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties of Kafka's clients, by librdkafka's names."""

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{SCHEME}{user}{self.servers}/{self.topic}"

    def client_settings(self) -> dict[str, str]:
        found = {"bootstrap.servers": self.servers, **dict(self.properties)}
        if self.user:
            found.setdefault("security.protocol", "SASL_SSL")
            found.setdefault("sasl.mechanism", "PLAIN")
            found.update({"sasl.username": self.user, "sasl.password": self.password})
        return found

    def spark_options(self) -> dict[str, str]:
        given = self.client_settings()
        found = java_properties(given)
        user = given.get("sasl.username", "")
        if user and "sasl.jaas.config" not in found:
            scram = found.get("sasl.mechanism", "").startswith("SCRAM")
            module = "org.apache.kafka.common.security." + ("scram.ScramLoginModule" if scram else "plain.PlainLoginModule")
            password = _escape(given.get("sasl.password", ""))
            found["sasl.jaas.config"] = f'{module} required username="{_escape(user)}" password="{password}";'
        return {f"kafka.{name}": value for name, value in found.items()}


def parse_kafka_url(url: str) -> KafkaAddress:
    """Parse `kafka://host:port,host:port/topic?property=value`; the password may come from the environment instead."""
    if not url.startswith(SCHEME):
        raise DefiniteError("the address of the Kafka cluster cannot be read", hint=_FORM)
    place, _, query = url.removeprefix(SCHEME).partition("?")
    where, _, topic = place.partition("/")
    account, at, servers = where.rpartition("@")
    user, colon, password = account.partition(":")
    named = [server for server in servers.split(",") if server]
    if not named or (at and not user) or not all(_is_server(server) for server in named):
        raise DefiniteError("the address of the Kafka cluster cannot be read", hint=_FORM)
    secret = unquote(password) if colon else os.environ.get(PASSWORD_VARIABLE, "")
    hidden = os.environ.get(SECRETS_VARIABLE, "")
    properties = _properties("&".join(filter(None, (query, hidden))))
    addresses = ",".join(server if ":" in server else f"{server}:9092" for server in named)
    return KafkaAddress(addresses, unquote(topic.strip("/")), unquote(user), secret, properties)


def without_secrets(url: str) -> tuple[str, str]:
    """Return the address without its secret properties, and those."""
    place, _, query = url.partition("?")
    parts = query.split("&") if query else []
    secrets = [part for part in parts if is_secret(unquote(part.partition("=")[0]))]
    shown = "&".join(part for part in parts if part not in secrets)
    return f"{place}?{shown}" if shown else place, "&".join(secrets)


def is_secret(name: str) -> bool:
    return any(word in name for word in _SECRETS)


def _properties(query: str) -> tuple[tuple[str, str], ...]:
    found = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in found]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise DefiniteError(f"the address of the Kafka cluster has the property {double!r} twice", hint="give it once")
    if query and not found:
        raise DefiniteError("the properties in the address of the Kafka cluster cannot be read", hint=_FORM)
    return tuple(found)


def _is_server(server: str) -> bool:
    host, colon, port = server.rpartition(":")
    return bool(server) if not colon else bool(host) and port.isdigit()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def java_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return the same properties for Java's client, which Spark's source uses, without credentials.

    Addresses use librdkafka's names. Most are Java's too, but not those of certificates and keys, and Java ignores unknown names.
    Invariant: both clients trust the same authorities and present the same certificate, or an error names the property that only one of
    them supports.
    """
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise DefiniteError(
            "Spark's Kafka source always verifies the brokers' certificates",
            place="enable.ssl.certificate.verification",
            hint="name the authority that signed them: ssl.ca.location=FILE",
        )
    found = {name: value for name, value in given.items() if name not in _TRANSLATED}
    if "sasl.mechanisms" in given:
        found["sasl.mechanism"] = given["sasl.mechanisms"]
    if "ssl.endpoint.identification.algorithm" in given:
        algorithm = given["ssl.endpoint.identification.algorithm"]
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if "ssl.keystore.location" in given:
        found.setdefault("ssl.keystore.type", "PKCS12")
    return found | _trusted(given) | _shown(given)


def _trusted(given: Mapping[str, str]) -> dict[str, str]:
    text = given.get("ssl.ca.pem") or _content(given, "ssl.ca.location")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text} if text else {}


def _shown(given: Mapping[str, str]) -> dict[str, str]:
    chain = given.get("ssl.certificate.pem") or _content(given, "ssl.certificate.location")
    key = given.get("ssl.key.pem") or _content(given, "ssl.key.location")
    if not chain or not key:
        return {}
    if not any(begin in key for begin in _PKCS8):
        raise DefiniteError(
            "Spark's Kafka source reads private keys in the form PKCS#8 only",
            place="ssl.key.location",
            hint="convert the key: openssl pkcs8 -topk8 -nocrypt -in KEY -out KEY.p8",
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _content(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        return ""
    try:
        return Path(given[name]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(
            f"the file {given[name]} cannot be read: {error}", place=name, hint="give a file of certificates (or a key) in PEM"
        ) from error
