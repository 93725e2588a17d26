"""Kafka's errors as Headrace's: an error that may pass is transient, any other is definite and has a hint."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import DefiniteError, HeadraceError, TransientError

_ALLOW: Final = "allow it for this user (Write, Describe and Create on topics; IdempotentWrite on brokers before 3.0)"
_SIGN_IN: Final = "see the user, the password and the security properties of the address"
_TRUST: Final = (
    "name the authority that signed the brokers' certificates in the address (?ssl.ca.location=FILE), and check security.protocol; brokers "
    "that ask for a certificate need ssl.certificate.location and ssl.key.location, too"
)
_DEFINITE: Final[dict[int, str]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic (and message.max.bytes with kafka.properties)",
    KafkaError.INVALID_MSG_SIZE: "raise max.message.bytes of the topic (and message.max.bytes with kafka.properties)",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise max.message.bytes of the topic, or lower batch.size with kafka.properties",
    KafkaError.INVALID_RECORD: "the topic may be compacted, which takes no messages without a key: choose another for tables without a key",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _ALLOW,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _ALLOW,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "make the topic, or let it be made: kafka.create_topics = true",
    KafkaError._UNKNOWN_TOPIC: "make the topic, or let it be made: kafka.create_topics = true",
    KafkaError.TOPIC_EXCEPTION: "choose another pattern with kafka.topic",
    KafkaError.INVALID_PARTITIONS: "see kafka.partitions",
    KafkaError.INVALID_REPLICATION_FACTOR: "see kafka.replication: there must be as many brokers",
    KafkaError.INVALID_CONFIG: "see kafka.cleanup and the broker's settings",
    KafkaError.POLICY_VIOLATION: "see the broker's policy for new topics, kafka.partitions and kafka.replication",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format is too old for headers: raise it",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "choose another with kafka.compression",
    KafkaError._AUTHENTICATION: _SIGN_IN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _SIGN_IN,
    KafkaError._SSL: _TRUST,
    KafkaError._INVALID_ARG: "see kafka.properties, and the properties in the address",
}


def failure(error: KafkaError | KafkaException, doing: str, place: str = "") -> HeadraceError:
    """Translate an error of the client."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    hint = _DEFINITE.get(cause.code())
    message = f"{doing} failed: {cause.str()}"
    if hint is not None:
        return DefiniteError(message, place=place, hint=hint)
    return TransientError(message, place=place, hint="see whether the brokers are up and can be reached from here")


class Refusals:
    """Errors that concern the client as a whole, such as a wrong password.

    A single one may be chance: a broker that goes down also cuts logins off.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self._count = 0

    def note(self, error: KafkaError) -> None:
        """Librdkafka's `error_cb`."""
        if error.code() in _DEFINITE:
            self._last = error
            self._count += 1

    def forget(self) -> None:
        """Forget earlier errors: brokers have answered since."""
        self._last, self._count = None, 0

    @property
    def repeated_error(self) -> KafkaError | None:
        """Return an error that came more than once."""
        return self._last if self._count > 1 else None
