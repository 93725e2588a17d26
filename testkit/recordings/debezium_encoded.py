"""The log that the recorded connectors read, as Headrace decodes it and writes it as Debezium's events."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName
from headrace.model.version import OFFSET_BITS
from headrace.sinks.kafka.debezium.envelope_encoder import DebeziumEncoder, Origin
from headrace.sinks.kafka.delivery import Messages
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables
from testkit.oracles.chain import Chain
from testkit.recordings.debezium_recordings import KafkaRecord, load_log

SERVER_ID = 7
"""The connectors of the recorded servers."""


def blocks_since_snapshot(flavour: str, scratch: Path) -> list[ChangeBlock]:
    """Return the log from the position at which Debezium's connectors followed it."""
    log = load_log(flavour)
    schemas = {schema.name: schema for schema in log.schemas}
    keys: dict[TableName, tuple[str, ...]] = {schema.name: () for schema in log.schemas}
    catalog = ReadCatalog(plan_tables(schemas, keys), lambda name: name in schemas, ReadOptions(every_before=True, transactions=True))
    blocks = Chain(scratch, log.file, mariadb=flavour == "mariadb").read(log.data, catalog, checksum=log.checksum)
    return [part for block in blocks for part in _since(block, log.start)]


def encoded(flavour: str, scratch: Path, *, schemas: bool, prefix: str = "") -> list[Messages]:
    """Encode that log as events, with the prefix of the recording with (or without) schemas."""
    choices = KafkaOptions(format=MessageFormat.DEBEZIUM, prefix=prefix or ("schema" if schemas else "plain"), schemas=schemas)
    # A pipe does not know the server id of MySQL; MariaDB's is in its GTIDs.
    encoder = DebeziumEncoder(choices, Origin(flavour, "binlog", SERVER_ID if flavour == "mysql" else 0))
    return [messages for block in blocks_since_snapshot(flavour, scratch) for messages in encoder.encode(block)]


def as_records(sent: Iterable[Messages]) -> list[KafkaRecord]:
    """Return messages as records of topics with one partition."""
    records: list[KafkaRecord] = []
    for one in sent:
        headers = one.headers or ((),) * len(one.value)
        for key, value, header in zip(one.key.to_pylist(), one.value.to_pylist(), headers, strict=True):
            records.append(KafkaRecord(one.topic, 0, len(records), 1_700_000_000_000, key, value, header))
    return records


def _since(block: ChangeBlock, start: int) -> list[ChangeBlock]:
    kept = np.flatnonzero((block.version.to_numpy() & np.uint64((1 << OFFSET_BITS) - 1)) > start)
    if not kept.size:
        return []
    first, rest = int(kept[0]), int(block.rows - kept[0])
    cut = {name: getattr(block, name) for name in ("images", "op", "version", "commit_ts", "transaction", "order")}
    return [ChangeBlock(block.schema, **{name: array.slice(first, rest) for name, array in cut.items()})]
