"""The Kafka sink: append-only (`headrace.sinks.base`), on one cluster.

A topic holds changes, not rows: nothing in it is replaced or deleted. A block that is written again appears again, with the same positions
in the headers of its messages, by which readers discard the repetition. The sink therefore requires the changes of each table in order,
after a snapshot of one position.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress, parse_kafka_url
from headrace.kafka.mypipe.values import ValueMapping
from headrace.model.alter_effects import Alteration
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import AppendOnlySink, TableRequirements
from headrace.sinks.kafka.debezium.envelope_encoder import DebeziumEncoder, Origin
from headrace.sinks.kafka.delivery import KafkaWriter, MessageEncoder
from headrace.sinks.kafka.mypipe.encoder import MypipeEncoder, MypipeLayouts, check_ids
from headrace.sinks.kafka.mypipe.layouts import GenericTableEncodings, SpecificTableEncodings, open_book
from headrace.sinks.kafka.options import Cleanup, KafkaOptions, MessageFormat, MutationSchemas, TextAs, Truncates, UnsignedBigintAs
from headrace.sinks.kafka.topics import KafkaClaims, ensure_topics
from headrace.sinks.schema_changes import DdlPlan, SchemaApplier, Step

log = logging.getLogger("headrace")


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
        return KafkaSchemaApplier(self)

    def claims(self) -> KafkaClaims:
        return KafkaClaims(self.address, self.choices)

    def target_of(self, name: TableName) -> str:
        return self.choices.topic_of(name)

    def with_source(self, connector: str, log: str) -> Self:
        """Return the sink with the source's name, which Debezium's events contain."""
        return replace(self, origin=Origin(connector, log))

    def writer(self) -> KafkaWriter[ChangeBlock]:
        return KafkaWriter(self.address, self.choices, self.encoder())

    def send_truncation(self, schema: TableSchema, version: int) -> None:
        writer = self.writer()
        try:
            writer.send([DebeziumEncoder(self.choices, self.origin).emptied(schema, version)])
        finally:
            writer.close()

    def encoder(self) -> MessageEncoder[ChangeBlock]:
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


@functools.cache
def _warn_truncate() -> None:
    log.warning(
        "a table was truncated, which its topic does not show: mypipe's messages cannot express it, and Debezium's events do only "
        "with kafka.truncates = send"
    )


@dataclass(frozen=True, slots=True)
class KafkaSchemaApplier(SchemaApplier):
    """Messages after a statement have the table's new definition, and topics are never altered.

    A table that was created, altered or renamed is prepared again (its topic, its schemas). A definition that readers of the earlier
    messages could not read is rejected when the statement is planned. DROP TABLE leaves the topic as it is. So does TRUNCATE, unless the
    user chose that Debezium's events report it (`kafka.truncates`): then the event is a step, which a crash may repeat with the same
    position.
    """

    sink: KafkaSink

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del version
        self._check(alteration.after)
        return DdlPlan(prepared=True)

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        if self.sink.choices.truncates is not Truncates.SEND:
            _warn_truncate()
            return DdlPlan()
        return DdlPlan((Step((json.dumps({"emptied": schema.to_json(), "version": version}),)),))

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """The topic may hold messages of an earlier table of that name."""
        self._check(schema)
        return DdlPlan()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """Later changes go to the topic of the new name."""
        for _, new in moves:
            self._check(new)
        return DdlPlan()

    def _check(self, schema: TableSchema) -> None:
        try:
            self.sink.check(schema)
        except DefiniteError as error:
            hint = f"{error.hint}; or let readers handle it: --set kafka.incompatible=new"
            raise DefiniteError(f"table {schema.name} was changed: {error.message}", place=error.place, hint=hint) from error

    def run_step(self, step: Step) -> None:
        is_sending = self.sink.choices.truncates is Truncates.SEND
        if not is_sending or not all(statement.startswith('{"emptied"') for statement in step.statements):
            raise DefiniteError("Kafka has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")
        for entry in map(json.loads, step.statements):
            self.sink.send_truncation(TableSchema.from_json(entry["emptied"]), entry["version"])
