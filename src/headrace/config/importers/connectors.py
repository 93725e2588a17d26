"""Translates files of connectors: Altinity's sink connector alone (MySQL to ClickHouse) or with Kafka (topics to ClickHouse), and Debezium
(MySQL to topics).

Invariant: see `translation`. A value that would silently make Headrace behave differently from the connector is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import quote

from headrace.config.document import PIPES, SINKS, SOURCES
from headrace.config.importers.connector_keys import REASONS, TRANSLATED, reason_for
from headrace.config.importers.flat_files import Entry, list_of_globs, read_entries, split_list
from headrace.config.importers.translation import Translation, name_of
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import closest_match
from headrace.settings.toml_text import Keys

_MYSQL: Final = ("io.debezium.connector.mysql.MySqlConnector", "io.debezium.connector.mariadb.MariaDbConnector")
_SINK: Final = "com.altinity.clickhouse.sink.connector.ClickHouseSinkConnector"
_BROKERS: Final = ("bootstrap.servers", "schema.history.internal.kafka.bootstrap.servers", "database.history.kafka.bootstrap.servers")
_SERVER: Final = ("debezium.source.", "debezium.sink.kafka.producer.")
"""The prefixes of Debezium Server for keys of the connector and its producer."""
_HARMLESS: Final = frozenset(("analyze", "optimize", "repair", "check", "partition", "table", "i", "flush", "cache", "index"))
_START: Final = {"no_data": "now", "schema_only": "now", "never": "oldest"}
_AVRO: Final = {"io.confluent.connect.avro.AvroConverter": 4, "io.apicurio.registry.utils.converter.AvroConverter": 8}
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_TRANSFORMS: Final = "say what it does by tables of the pipe (docs/transforms.md)"
_ACCESS: Final = re.compile(r"(consumer|producer)\.(override\.)?(security|sasl|ssl)\..*")
_FLAT: Final = "io.debezium.transforms.ExtractNewRecordState"


def translate_connector(text: str, file: str) -> Translation:
    return _Connector(read_entries(text, file), file).whole()


class _Connector:
    def __init__(self, entries: list[Entry], file: str) -> None:
        self._to = Translation(file)
        self._given: dict[str, Entry] = {}
        for one in entries:
            self._give(_without_server(one.key), one._replace(value=_reference(one.value)))
        self._left = dict(self._given)
        """Keys that are not translated yet."""
        self._name = name_of(self._text("name") or self._text("topic.prefix") or self._text("database.server.name") or "pipe")
        self._from_topics = self._text("connector.class") == _SINK or ("topics" in self._given or "topics.regex" in self._given)
        self._to_clickhouse = self._text("connector.class") == _SINK or any(key.startswith("clickhouse.server.") for key in self._given)

    def whole(self) -> Translation:
        self._take("name")
        if not self._has_known_class():
            # Its other keys belong to a connector whose keys are not translated.
            return self._to
        with self._to.problems.collect():
            if self._from_topics:
                self._topics()
            else:
                self._server()
        with self._to.problems.collect():
            if self._to_clickhouse:
                self._clickhouse()
            else:
                self._kafka()
        here = (PIPES, self._name)
        self._to.set((*here, "source"), "source")
        self._to.set((*here, "sink"), "sink")
        with self._to.problems.collect():
            self._pipe(here)
        for key, one in self._left.items():
            self._rest(key, one)
        return self._to

    def _give(self, key: str, one: Entry) -> None:
        if key in self._given:
            before = self._given[key]
            self._refuse(one, f"{one.key} says again what {before.key} on line {before.line} says", "leave one out")
        self._given[key] = one

    # The source.

    def _has_known_class(self) -> bool:
        one = self._take("connector.class")
        if one is None or one.value == _SINK or one.value in _MYSQL:
            return True
        hint = "changes of other databases are read from the topics that Debezium fills: give the sink connector's file"
        hint += "" if self._to_clickhouse else ", or read them with headrace (docs/kafka.md)"
        self._refuse(one, f"{one.value} is read by Debezium only", hint)
        return False

    def _server(self) -> None:
        here = (SOURCES, "source")
        host, port, user = (self._take(f"database.{name}") for name in ("hostname", "port", "user"))
        if host is None:
            hint = "give the file that names the server: the connector's built-in config.properties has defaults only"
            raise DefiniteError("database.hostname is missing", place=self._to.file, hint=hint)
        account = f"{_quoted(user.value)}@" if user is not None else ""
        mode = self._take("database.ssl.mode") or self._take("database.sslmode")
        tls = f"?tls={mode.value.lower().replace('_', '-')}" if mode is not None else ""
        self._to.set((*here, "url"), f"mysql://{account}{host.value}:{port.value if port else 3306}{tls}", host.line)
        self._password(here, "database.password")
        self._tables(here)
        for key, ours in (("column.include.list", "columns"), ("column.exclude.list", "exclude_columns")):
            line, found = self._line(key), self._list(key)
            if found:
                self._to.set((*here, ours), found, line)
        self._check_columns(here)
        self._start(here)

    def _check_columns(self, here: tuple[str, str]) -> None:
        """Report tables without a listed column: the connector captures none of their columns, Headrace all."""
        section = self._to.written.content[here[0]][here[1]]
        named = [glob.rpartition(".")[0] for glob in section.get("columns", ())]
        whole = [glob for glob in section["tables"] if named and not any(fnmatchcase(glob, one) for one in named)]
        if whole:
            why = f"it names no columns of {whole[0]}, of which the connector would capture none, and Headrace all"
            hint = "name just the tables whose columns are listed in table.include.list"
            self._to.refuse("column.include.list", self._line("column.include.list"), why, hint)

    def _tables(self, here: tuple[str, str]) -> None:
        databases = self._list("database.include.list", "database.whitelist")
        tables = self._list("table.include.list", "table.whitelist")
        line = self._line("table.include.list") or self._line("database.include.list")
        if tables and databases:
            # Only tables in both lists are captured. The text of a glob matches a wider glob.
            outside = [glob for glob in tables if not any(fnmatchcase(glob.partition(".")[0], one) for one in databases)]
            if outside:
                why = f"{outside[0]} is not, or not only, in databases of database.include.list"
                self._to.refuse("table.include.list", line, why, "name its database, or leave one of the lists out")
        self._to.set((*here, "tables"), tables or [f"{one}.*" for one in databases] or ["*.*"], line)
        left_out = [f"{one}.*" for one in self._list("database.exclude.list", "database.blacklist")]
        left_out += self._list("table.exclude.list", "table.blacklist")
        if left_out:
            self._to.set((*here, "exclude"), left_out, self._line("table.exclude.list") or self._line("database.exclude.list"))

    def _start(self, here: tuple[str, str]) -> None:
        one = self._take("snapshot.mode")
        if one is None or one.value in ("initial", "when_needed"):
            return
        if one.value in _START:
            self._to.set((*here, "start_at"), _START[one.value], one.line)
        else:
            self._refuse(one, f"there is no {one.value!r} here", f"write one of initial, when_needed, {', '.join(_START)}")

    def _topics(self) -> None:
        here = (SOURCES, "source")
        brokers = self._first(*_BROKERS)
        if brokers is None:
            # The file of a sink connector has no Kafka address: the Connect worker has it.
            self._to.set((*here, "url"), "kafka://${KAFKA_BROKERS}")
            self._to.written.trailing[*here, "url"] = "set KAFKA_BROKERS to host:port,host:port: Kafka Connect's bootstrap.servers"
        else:
            self._to.set((*here, "url"), f"kafka://{brokers.value.replace(' ', '')}", brokers.line)
        self._move("topics", (*here, "topics"), split_list)
        self._move("topics.regex", (*here, "topic_pattern"), lambda value: "|".join(one.strip() for one in value.split(",") if one.strip()))
        self._converter(here)
        self._flattened()

    def _converter(self, here: tuple[str, str]) -> None:
        one = self._take("value.converter")
        if one is not None and one.value in _AVRO:
            self._to.set((*here, "format"), "avro", one.line)
            registry = self._take("value.converter.schema.registry.url") or self._take("value.converter.apicurio.registry.url")
            if registry is None:
                self._refuse(one, "the schema registry's address is missing", "give value.converter.schema.registry.url")
                return
            address = registry.value
            if "apicurio" in one.value:
                # Apicurio also provides Confluent's interface.
                address = re.sub(r"/apis/registry/v\d+/?$", "/apis/ccompat/v7", address)
                self._to.set((*here, "schema_id_bytes"), _AVRO[one.value], one.line)
            self._to.set((*here, "registry"), self._with_account(address, here), registry.line)
        elif one is not None and one.value != _JSON:
            self._refuse(one, f"records of {one.value} cannot be read", f"set value.converter to {_JSON} or {next(iter(_AVRO))}")

    def _with_account(self, registry: str, here: tuple[str, str]) -> str:
        """Return the registry's address with the user name; the password has its own variable."""
        keys = ("value.converter.basic.auth.user.info", "value.converter.schema.registry.basic.auth.user.info")
        one = self._first(*keys)
        self._unneeded("value.converter.basic.auth.credentials.source", "the account is in the registry's address")
        if one is None:
            return registry
        user, _, _ = one.value.partition(":")
        self._to.written.trailing[*here, "registry"] = f"set HEADRACE_REGISTRY_PASSWORD to the password on line {one.line} of the file"
        scheme, _, rest = registry.partition("://")
        return f"{scheme}://{_quoted(user)}@{rest}"

    def _flattened(self) -> None:
        """Accept the one supported transform, which removes the envelope."""
        one = self._take("transforms")
        for name in split_list(one.value) if one is not None else ():
            kind = self._take(f"transforms.{name}.type")
            if kind is None or kind.value != _FLAT:
                at = kind or one
                assert at is not None
                self._refuse(at, f"the transform {name} is not known", _TRANSFORMS)
            for key in [key for key in self._left if key.startswith(f"transforms.{name}.")]:
                self._unneeded(key, "rows without their envelope are recognised by themselves")

    # The sink.

    def _clickhouse(self) -> None:
        here = (SINKS, "sink")
        server, port, user = (self._take(f"clickhouse.server.{name}") for name in ("url", "port", "user"))
        if server is None:
            raise DefiniteError("clickhouse.server.url is missing", place=self._to.file, hint="name the host")
        scheme, _, host = server.value.rpartition("://")
        host = host.rstrip("/")
        if "/" in host or "?" in host:
            hint = "name the host; clickhouse.server.database names the database"
            self._refuse(server, f"{server.value} is more than a host", hint)
            return
        secure = scheme.endswith("https") or (port is not None and port.value in ("8443", "443"))
        address = host if port is None or re.search(r":\d+$", host) else f"{host}:{port.value}"
        database = self._take("clickhouse.server.database")
        account = f"{_quoted(user.value)}@" if user is not None and user.value else ""
        path = _quoted(database.value) if database is not None else ""
        self._to.set((*here, "url"), f"clickhouse{'s' if secure else ''}://{account}{address}/{path}", server.line)
        self._password(here, "clickhouse.server.password", "clickhouse.server.pass")
        zone = self._take("clickhouse.datetime.timezone")
        if zone is not None and zone.value:
            self._to.set((*here, "zone"), zone.value, zone.line)
        column = self._take("replacingmergetree.delete.column")
        if column is not None and column.value not in ("", "_sign"):
            self._to.set((*here, "delete_column"), column.value, column.line)
            if column.value.endswith("sign"):
                # Queries of a sign compare it with -1.
                self._to.set((*here, "delete_type"), "int8", column.line)
                self._to.new_pipes_only.add((*here, "delete_type"))
        if self._flag("ignore_delete", "ignore.delete"):
            self._to.set((*here, "deletes"), "ignore")
        self._decimals(here)
        created = self._take("auto.create.tables")
        if created is not None:
            only_missing = "existing tables are used as they are; Headrace creates a table only if it is missing"
            self._drop(created, only_missing if created.value.lower() == "false" else reason_for(created.key))
        self._deduplication()
        self._must_be("auto.create.tables.replicated", "false", 'write cluster = "NAME" of the sink, then convert without this key')
        history = 'raw events are not stored: leave it out, and write engine = "history" of the sink to keep every change'
        self._must_be("store.raw.data", "false", history)
        self._must_be("binary.handling.mode", "bytes", "bytes are stored as they are; encode them in queries: base64Encode(column)")

    def _deduplication(self) -> None:
        one = self._take("deduplication.policy")
        if one is None:
            return
        if one.value.lower() in ("off", "new", ""):
            self._drop(one, "the latest change of a key is kept, by its version")
        else:
            why = f"{one.key} cannot be {one.value!r}: it would keep the first change of a key and drop later ones"
            self._refuse(one, why, "write off or new")

    def _decimals(self, here: tuple[str, str]) -> None:
        one = self._take("decimal.handling.mode")
        if one is None or one.value == "precise":
            return
        if self._from_topics:
            self._to.set((SOURCES, "source", "decimals"), one.value, one.line)
        elif one.value == "string":
            self._to.set((*here, "decimal"), "string", one.line)
        else:
            self._to.set((*here, "types"), {"kind:decimal": "Float64"}, one.line)

    def _kafka(self) -> None:
        here = (SINKS, "sink")
        brokers = self._first(*_BROKERS)
        address = f"kafka://{brokers.value.replace(' ', '')}" if brokers is not None else "kafka://${KAFKA_BROKERS}"
        self._to.set((*here, "url"), address, brokers.line if brokers is not None else 0)
        self._to.set((*here, "format"), "debezium")
        prefix = self._take("topic.prefix") or self._take("database.server.name")
        if prefix is not None:
            self._to.set((*here, "prefix"), prefix.value, prefix.line)
        self._take("database.server.name")
        self._move("tombstones.on.delete", (*here, "tombstones"), lambda value: "on" if value.lower() == "true" else "off")
        converter = self._take("value.converter")
        if converter is not None and converter.value != _JSON:
            topics = "keep Debezium and read its topics with a source of kafka://host:port (docs/kafka/debezium-source.md)"
            self._refuse(converter, "Debezium's events are written in JSON here", f"set value.converter to {_JSON}, or {topics}")
        self._move("value.converter.schemas.enable", (*here, "schemas"), lambda value: value.lower() == "true")
        self._number(here, "topic.creation.default.partitions", "partitions")
        self._number(here, "topic.creation.default.replication.factor", "replication")
        self._must_be("decimal.handling.mode", "precise")
        self._must_be("binary.handling.mode", "bytes")
        self._must_be("time.precision.mode", "adaptive_time_microseconds", "leave it out: times are written as by default")
        self._must_be("bigint.unsigned.handling.mode", "long", "leave it out")
        self._must_be("transforms", "", _TRANSFORMS)

    # The pipe.

    def _pipe(self, here: tuple[str, str]) -> None:
        if self._flag("skip_replica_start"):
            self._to.set((*here, "enabled"), False)
        policies: dict[str, str] = {}
        if self._flag("disable.ddl"):
            # A change that cannot be ignored halts.
            policies |= {"all": "ignore", "rename_table": "halt", "rename_column": "halt", "change_key": "halt"}
        if self._flag("disable.drop.truncate"):
            policies |= {"drop_table": "ignore", "truncate_table": "ignore"}
        evolution = self._take("schema.evolution")
        if evolution is not None and evolution.value.lower() == "false":
            policies |= {"add_column": "ignore", "drop_column": "ignore", "modify_column": "ignore"}
        elif evolution is not None:
            self._drop(evolution, reason_for(evolution.key))
        self._skipped(policies)
        if policies:
            self._to.set((*here, "schema_changes"), policies)
        self._maps(here)
        self._ignored_statements()
        for kind in ("event.processing.failure", "event.deserialization.failure", "inconsistent.schema"):
            self._must_be(f"{kind}.handling.mode", "fail", "nothing is passed over here; headrace skip leaves one event out")

    def _skipped(self, policies: dict[str, str]) -> None:
        one = self._take("skipped.operations")
        for operation in split_list(one.value) if one is not None else ():
            if operation == "t":
                if self._to_clickhouse:
                    policies["truncate_table"] = "ignore"
            elif operation == "d" and self._to_clickhouse:
                self._to.set((SINKS, "sink", "deletes"), "ignore", one.line if one else 0)
            elif operation != "none":
                assert one is not None
                self._refuse(one, f"changes of kind {operation!r} cannot be left out", "leave it out")

    def _maps(self, here: tuple[str, str]) -> None:
        databases = self._take("clickhouse.database.override.map")
        for theirs, ours in self._pairs(databases):
            self._to.set((*here, "tables", f"{theirs}.*", "database"), ours, databases.line if databases else 0)
        topics = self._take("clickhouse.topic2table.map")
        for topic, table in self._pairs(topics):
            source = ".".join(topic.split(".")[-2:])
            if "." not in source and topics is not None:
                self._map_plain_topic(topic, table, topics)
                continue
            self._to.set((*here, "tables", source, "target"), table, topics.line if topics else 0)

    def _map_plain_topic(self, topic: str, table: str, one: Entry) -> None:
        """Map a topic whose name has no database: `clickhouse.server.database` names it."""
        database = self._text("clickhouse.server.database")
        if self._from_topics and database:
            self._to.set((SOURCES, "source", "topic_tables", topic), f"{database}.{table}", one.line)
            return
        why = f"the topic {topic} does not say which table it is of"
        hint = "give topics as SERVER.DATABASE.TABLE"
        hint += ", or the tables' database: clickhouse.server.database" if self._from_topics else ""
        self._refuse(one, why, hint)

    def _ignored_statements(self) -> None:
        one = self._take("ignore.ddl.regex")
        if one is None or not one.value:
            return
        words = {word.lower() for word in re.findall(r"[A-Za-z]+", one.value)}
        if words <= _HARMLESS:
            self._drop(one, "statements that leave rows and definitions as they are are passed over by themselves")
        else:
            self._refuse(one, "statements cannot be left out by their text", "choose by kind: schema_changes of a pipe")

    # Access to keys.

    def _rest(self, key: str, one: Entry) -> None:
        if key in TRANSLATED and self._to.problems.errors:
            # An earlier error ended the translation before this key.
            return
        if _ACCESS.fullmatch(key):
            hint = "leave it out here, and put it into the address: kafka://user@host:9092?security.protocol=… (docs/kafka.md)"
            self._refuse(one, f"{one.key} says how Kafka is reached, which is not translated", hint)
            return
        reason = reason_for(key)
        if reason:
            self._drop(one, reason)
            return
        if key in TRANSLATED:
            self._refuse(one, f"{one.key} is no key of this kind of connector", "leave it out")
            return
        near = closest_match(key, (*REASONS, *TRANSLATED))
        hint = f"did you mean {near}?" if near else "leave it out, if Headrace need not know it"
        self._refuse(one, f"{one.key} is not known", hint)

    def _refuse(self, one: Entry, message: str, hint: str) -> None:
        self._to.refuse(one.key, one.line, message, hint)

    def _drop(self, one: Entry, reason: str) -> None:
        self._to.drop(one.key, one.line, reason)

    def _first(self, *keys: str) -> Entry | None:
        return next((found for key in keys if (found := self._take(key)) is not None), None)

    def _take(self, key: str) -> Entry | None:
        return self._left.pop(key, None)

    def _text(self, key: str) -> str:
        return self._given[key].value if key in self._given else ""

    def _line(self, key: str) -> int:
        return self._given[key].line if key in self._given else 0

    def _unneeded(self, key: str, reason: str) -> None:
        one = self._take(key)
        if one is not None:
            self._drop(one, reason)

    def _flag(self, *keys: str) -> bool:
        found = [one for key in keys if (one := self._take(key)) is not None]
        return any(one.value.lower() == "true" for one in found)

    def _must_be(self, key: str, usual: str, hint: str = "leave it out") -> None:
        """Accept only the value of a key that matches Headrace's behaviour."""
        one = self._take(key)
        if one is not None and one.value.lower() == usual:
            self._drop(one, f"{usual} is what is done here" if usual else "it is empty")
        elif one is not None:
            self._refuse(one, f"{one.key} cannot be {one.value!r}", hint)

    def _move(self, key: str, path: Keys, convert: Callable[[str], Any]) -> None:
        """Write the converted value of a key, if it is given."""
        one = self._take(key)
        if one is not None:
            self._to.set(path, convert(one.value), one.line)

    def _number(self, here: tuple[str, str], key: str, ours: str) -> None:
        one = self._given.get(key)
        try:
            self._move(key, (*here, ours), lambda value: int(float(value)))
        except ValueError:
            assert one is not None
            self._refuse(one, f"{one.value!r} is no number", "write a number")

    def _password(self, here: tuple[str, str], *keys: str) -> None:
        for key in keys:
            one = self._take(key)
            if one is not None and one.value:
                self._to.set_secret((*here, "password"), one.value, one.line)

    def _list(self, *keys: str) -> list[str]:
        found: list[str] = []
        for key in keys:
            one = self._take(key)
            if one is not None:
                found += list_of_globs(one.value, one.key, f"{self._to.file}, line {one.line}, {one.key}")
        return found

    def _pairs(self, one: Entry | None) -> list[tuple[str, str]]:
        found = []
        for pair in split_list(one.value) if one is not None else ():
            name, colon, value = pair.rpartition(":")
            if not colon or not name or not value:
                assert one is not None
                hint = "write a:b,c:d" + (", in place of the variable" if "${" in pair else "")
                raise DefiniteError(f"{pair!r} is not NAME:NAME", place=f"{self._to.file}, line {one.line}, {one.key}", hint=hint)
            found.append((name.strip(), value.strip()))
        return found


def _without_server(key: str) -> str:
    return next((key.removeprefix(prefix) for prefix in _SERVER if key.startswith(prefix)), key)


def _reference(value: str) -> str:
    """Convert Kafka Connect's `${env:NAME}` to `${NAME}`."""
    return re.sub(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", r"${\1}", value)


def _quoted(text: str) -> str:
    """Quote a text for an address; references are quoted when they are expanded."""
    return text if "${" in text else quote(text, safe="")
