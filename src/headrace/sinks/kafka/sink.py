"""The Kafka sink: append-only (`headrace.sinks.base`), on one cluster.

A topic holds changes, not rows: nothing in it is replaced or deleted. A block that is written again appears again, with the same positions
in the headers of its messages, by which readers discard the repetition. The sink therefore requires the changes of each table in order,
after a snapshot of one position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress, parse_kafka_url
from headrace.kafka.mypipe.values import ValueMapping
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.append_only import AppendOnlySink
from headrace.sinks.base import TableRequirements
from headrace.sinks.kafka.debezium.envelope_encoder import DebeziumEncoder, Origin
from headrace.sinks.kafka.messages.messages import MessageEncoder
from headrace.sinks.kafka.messages.options import Cleanup, KafkaOptions, MessageFormat, MutationSchemas, TextAs, Truncates, UnsignedBigintAs
from headrace.sinks.kafka.messages.topics import ensure_topics
from headrace.sinks.kafka.messages.writer import KafkaWriter
from headrace.sinks.kafka.mypipe.encoder import MypipeEncoder, MypipeLayouts, check_ids
from headrace.sinks.kafka.mypipe.generic import GenericTableEncodings
from headrace.sinks.kafka.mypipe.schema_registration import open_book
from headrace.sinks.kafka.mypipe.specific import SpecificTableEncodings
from headrace.sinks.kafka.schema_changes import KafkaSchemaApplier
from headrace.sinks.kafka.target_claims import KafkaClaims


@dataclass(frozen=True, slots=True)
class KafkaSink(AppendOnlySink):
    """A cluster. Picklable; its text never contains the password."""

    address: KafkaAddress
    choices: KafkaOptions = field(default_factory=KafkaOptions)
    origin: Origin = field(default_factory=Origin)
    """The source, for Debezium's events."""

    @classmethod
    def from_url(cls, url: str, choices: KafkaOptions | None = None) -> KafkaSink:
        """Parse `kafka://host:port/topic`; the optional topic is a pattern for the topics' names."""
        address = parse_kafka_url(url)
        chosen = choices or KafkaOptions()
        if address.topic:
            chosen = replace(chosen, topic=address.topic)
        return cls(replace(address, topic=""), chosen)

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create missing topics and register the schemas; raise `DefiniteError` if a table cannot be encoded."""
        wanted = tuple(schemas)
        self.check_target_conflicts(wanted)
        for schema in wanted:
            self.check(schema)
        ensure_topics(self.address, self.choices, (self.choices.topic_of(schema.name) for schema in wanted))
        forms = self._forms()
        if forms is not None:
            for schema in wanted:
                # Finds an id that does not fit here, not in a task.
                check_ids(forms.of(schema))

    def check(self, schema: TableSchema) -> None:
        """Raise `DefiniteError` if readers of the table's earlier messages could not read those of this definition."""
        forms = self._forms()
        if forms is not None:
            forms.check(schema)

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        """Raise `DefiniteError` if two tables have the same topic. Sends no request."""
        taken: dict[str, TableName] = {}
        for schema in schemas:
            topic = self.choices.topic_of(schema.name)
            other = taken.setdefault(topic, schema.name)
            if other == schema.name:
                continue
            both = f"the tables {other} and {schema.name} would both go to the topic {topic}"
            if self.choices.is_apart:
                raise DefiniteError(both, hint="choose another pattern with kafka.topic, or leave one of the tables out")
            if self.choices.cleanup is Cleanup.COMPACT:
                raise DefiniteError(
                    f"{both}, which keeps the last message of each key: rows of both that have the same key would replace each other",
                    hint="give each table a topic (kafka.topic with ${db} and ${table}), or leave out kafka.cleanup = compact",
                )

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        """Require ordered changes, before images, a snapshot of one position, and transactions."""
        return {schema.name: TableRequirements((), ordered=True, exact=True, keeps=True, transactions=True) for schema in schemas}

    def schema_applier(self) -> KafkaSchemaApplier:
        return KafkaSchemaApplier(self.check, self._tell_emptied if self.choices.truncates is Truncates.SEND else None)

    def claims(self) -> KafkaClaims:
        return KafkaClaims(self.address, self.choices)

    def target_of(self, name: TableName) -> str:
        return self.choices.topic_of(name)

    def with_source(self, connector: str, log: str) -> Self:
        """Return the sink with the source's name, which Debezium's events contain."""
        return replace(self, origin=Origin(connector, log))

    def writer(self) -> KafkaWriter[ChangeBlock]:
        return KafkaWriter(self.address, self.choices, self.encoder())

    def _tell_emptied(self, schema: TableSchema, version: int) -> None:
        writer = self.writer()
        try:
            writer.send([DebeziumEncoder(self.choices, self.origin).emptied(schema, version)])
        finally:
            writer.close()

    def encoder(self) -> MessageEncoder[ChangeBlock]:
        """Return the encoder of the chosen format."""
        forms = self._forms()
        if forms is None:
            return DebeziumEncoder(self.choices, self.origin)
        return MypipeEncoder(self.choices, forms)

    def _forms(self) -> MypipeLayouts | None:
        """Return the Avro schemas of the format; None: it has no schemas to register."""
        mapping = ValueMapping(
            self.choices.text is TextAs.BYTES,
            self.choices.bigint_unsigned is UnsignedBigintAs.LONG,
            self.choices.mutation_schemas is not MutationSchemas.OLDER,
        )
        match self.choices.format:
            case MessageFormat.GENERIC:
                return GenericTableEncodings(open_book(self.choices, must_be_shared=False), mapping)
            case MessageFormat.SPECIFIC:
                return SpecificTableEncodings(open_book(self.choices, must_be_shared=True), mapping)
        return None
