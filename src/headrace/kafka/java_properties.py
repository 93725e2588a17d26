"""Client properties for Java's Kafka client, which Spark's source uses.

Addresses use librdkafka's names. Most are Java's too, but not those of certificates and keys, and Java ignores unknown names. Invariant:
both clients trust the same authorities and present the same certificate, or an error names the property that only one of them supports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError

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


def java_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return the same properties for Java's client, without credentials."""
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
    """The authorities."""
    text = given.get("ssl.ca.pem") or _content(given, "ssl.ca.location")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text} if text else {}


def _shown(given: Mapping[str, str]) -> dict[str, str]:
    """Return the client certificate's properties."""
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
