"""Creates missing topics. Existing topics are never changed or deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.retry import effective_deadline
from headrace.sinks.kafka.messages.delivery import client_log
from headrace.sinks.kafka.messages.errors import Refusals, failure
from headrace.sinks.kafka.messages.options import Cleanup, KafkaOptions

_WAIT_S: Final = 30.0
_TRY_S: Final = 3.0
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


def ensure_topics(address: KafkaAddress, choices: KafkaOptions, names: Iterable[str]) -> None:
    """Create missing topics; raise `DefiniteError` if one is missing and may not be created. Always sends a request."""
    wanted = sorted(set(names))
    admin, refusals = _admin(address, choices)
    existing = _existing(admin, refusals, address)
    missing = [name for name in wanted if name not in existing]
    if missing and not choices.create_topics:
        raise DefiniteError(
            f"the topic {missing[0]} does not exist", place=str(address), hint="make it, or let it be made: kafka.create_topics = true"
        )
    if missing:
        for name, made in admin.create_topics([_new_topic(name, choices) for name in missing], request_timeout=_WAIT_S).items():
            _await(name, made, address)


def existing_topics(address: KafkaAddress, choices: KafkaOptions) -> set[str]:
    """Return the topics of the cluster."""
    return _existing(*_admin(address, choices), address)


def create_compacted(address: KafkaAddress, choices: KafkaOptions, name: str) -> None:
    """Create a topic of one partition that keeps the last record of each key, unless it exists."""
    admin, refusals = _admin(address, choices)
    if name in _existing(admin, refusals, address):
        return
    topic = NewTopic(name, 1, choices.replication or _AS_THE_BROKER_SAYS, config={"cleanup.policy": Cleanup.COMPACT.value})
    for created in admin.create_topics([topic], request_timeout=_WAIT_S).values():
        _await(name, created, address)


def _admin(address: KafkaAddress, choices: KafkaOptions) -> tuple[AdminClient, Refusals]:
    refusals = Refusals()
    heard: dict[str, Any] = {"error_cb": refusals.note}
    try:
        return AdminClient({**client_properties(address, choices), **heard}, logger=client_log), refusals
    except KafkaException as error:
        raise failure(error, "making a client of Kafka's", str(address)) from error


def client_properties(address: KafkaAddress, choices: KafkaOptions) -> dict[str, Any]:
    """Return the client settings without those of producers."""
    shared = {name: value for name, value in choices.properties if not name.startswith(_PRODUCER_ONLY)}
    own = {name: value for name, value in address.client_settings().items() if not name.startswith(_PRODUCER_ONLY)}
    return {**own, **shared}


def _existing(admin: AdminClient, refusals: Refusals, address: KafkaAddress) -> set[str]:
    """Return the cluster's topics. Retries for a while, but not if the brokers refuse the client."""
    deadline = time.monotonic() + effective_deadline(_WAIT_S)
    while True:
        try:
            return set(admin.list_topics(timeout=_TRY_S).topics)
        except KafkaException as error:
            admin.poll(0)
            if refusals.repeated_error is not None or time.monotonic() > deadline:
                raise failure(refusals.repeated_error or error, "asking for the topics", str(address)) from error


def _new_topic(name: str, choices: KafkaOptions) -> NewTopic:
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
