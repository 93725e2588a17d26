"""Topics: made where they are missing, never changed or taken away."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.sinks.kafka.choices import Cleanup, KafkaChoices
from headrace.sinks.kafka.failures import failure
from headrace.sinks.kafka.producer import client_log

_WAIT_S: Final = 30.0
_AS_THE_BROKER_SAYS: Final = -1
_PRODUCER_ONLY: Final = (
    "acks",
    "enable.idempotence",
    "partitioner",
    "compression",
    "linger.ms",
    "batch.",
    "queue.",
    "message.",
    "delivery.",
)


def ensure_topics(address: KafkaAddress, choices: KafkaChoices, names: Iterable[str]) -> None:
    """Make the topics that are missing; raise `DefiniteError` if one is missing and may not be made."""
    wanted = sorted(set(names))
    if not wanted:
        return
    try:
        admin = AdminClient(_admin_settings(address, choices), logger=client_log)
    except KafkaException as error:
        raise failure(error, "making a client of Kafka's", str(address)) from error
    missing = [name for name in wanted if name not in _existing(admin, address)]
    if missing and not choices.create_topics:
        raise DefiniteError(
            f"the topic {missing[0]} does not exist", place=str(address), hint="make it, or let it be made: kafka.create_topics = true"
        )
    if missing:
        for name, made in admin.create_topics([_new_topic(name, choices) for name in missing], request_timeout=_WAIT_S).items():
            _await(name, made, address)


def _admin_settings(address: KafkaAddress, choices: KafkaChoices) -> dict[str, str | int | float | bool]:
    shared = {name: value for name, value in choices.properties if not name.startswith(_PRODUCER_ONLY)}
    own = {name: value for name, value in address.client_settings().items() if not name.startswith(_PRODUCER_ONLY)}
    return {**own, **shared}


def _existing(admin: AdminClient, address: KafkaAddress) -> set[str]:
    try:
        return set(admin.list_topics(timeout=_WAIT_S).topics)
    except KafkaException as error:
        raise failure(error, "asking for the topics", str(address)) from error


def _new_topic(name: str, choices: KafkaChoices) -> NewTopic:
    config = {} if choices.cleanup is Cleanup.BROKER else {"cleanup.policy": choices.cleanup.value}
    return NewTopic(name, choices.partitions or _AS_THE_BROKER_SAYS, choices.replication or _AS_THE_BROKER_SAYS, config=config)


def _await(name: str, made: Future[None], address: KafkaAddress) -> None:
    try:
        made.result(timeout=_WAIT_S)
    except KafkaException as error:
        # Another pipe may have made it in the meantime.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise failure(error, f"making the topic {name}", str(address)) from error
    except TimeoutError as error:
        raise TransientError(
            f"making the topic {name} takes too long", place=str(address), hint="see whether the brokers are up"
        ) from error
