"""Translates mypipe's `application.conf`: consumers are sources, producers are sinks.

mypipe starts at the current end of the log, or at the position in its position file; the translated pipes do the same. All consumers of a
mypipe pipe write to the same topics, so the translated sources are merged. Every key of mypipe's reference and example files has a
translation, a reason why Headrace does not need it, or an error with the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headrace.config.document import PIPES, SINKS, SOURCES
from headrace.config.importers.hocon import Hocon, Keys, parse_hocon
from headrace.config.importers.translation import Translation, literal, name_of
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import closest_match

_GENERIC, _SPECIFIC, _STDOUT = "generic", "specific", "stdout"
_CLASSES: Final = {
    "mypipe.kafka.producer.stdout.StdoutProducer": _STDOUT,
    "mypipe.producer.stdout.StdoutProducer": _STDOUT,
    "mypipe.producer.StdoutProducer": _STDOUT,
    "mypipe.producer.KafkaMutationGenericAvroProducer": _GENERIC,
    "mypipe.kafka.producer.KafkaMutationGenericAvroProducer": _GENERIC,
    "mypipe.kafka.producer.KafkaGenericMutationAvroProducer": _GENERIC,
    "mypipe.producer.KafkaMutationSpecificAvroProducer": _SPECIFIC,
    "mypipe.kafka.producer.KafkaMutationSpecificAvroProducer": _SPECIFIC,
    "mypipe.kafka.producer.KafkaSpecificMutationAvroProducer": _SPECIFIC,
}
_UNNEEDED: Final = {
    "data-dir": "the state directory stores positions ([headrace] state)",
    "log-dir": "the log is written to the standard error",
    "shutdown-wait-time-seconds": "pipes stop after the current batch",
    "flush-interval-seconds": "a batch is committed when all of it is acknowledged (flush_seconds of a source limits its time)",
    "group-events-by-tx": "transactions are never split",
    "group-mutations-by-tx": "transactions are never split",
    "mysql-server-id-prefix": "Headrace chooses a free id",
    "schema-repo-client": "registry of the sink sets the place of Avro schemas",
    "test": "only mypipe's own tests read it",
}
_SECTIONS: Final = ("consumers", "producers", "pipes", "kafka", "error", "snapshotter", "include-event-condition")
"""Keys of `mypipe` that have code of their own."""
_ON_ERROR: Final = "an error halts the pipe; headrace skip skips one event"
_ERROR_KEYS: Final = (
    "quit-on-event-handler-failure",
    "quit-on-event-decode-failure",
    "quit-on-listener-failure",
    "quit-on-empty-mutation-commit-failure",
)
_ERROR_HANDLER: Final = "mypipe.mysql.ConfigBasedErrorHandler"
_LOG_CONSUMER: Final = "mypipe.mysql.MySQLBinaryLogConsumer"
_FILE_POSITIONS: Final = "mypipe.api.repo.ConfigurableFileBasedBinaryLogPositionRepository"
_TABLE_POSITIONS: Final = "mypipe.api.repo.ConfigurableMySQLBasedBinaryLogPositionRepository"
_POSITION_KEYS: Final = {_FILE_POSITIONS: ("file-prefix", "data-dir"), _TABLE_POSITIONS: ("source", "database", "table", "id")}
_SCHEMA_REPO: Final = "mypipe.avro.schema.SchemaRepo"
_ONLY_STDOUT: Final = "mypipe's stdout producer has no settings"
_REGISTRY: Final = "schemas"
_YES: Final = ("true", "yes", "on")
_DATA: Final = ("/tmp/mypipe/data", "/tmp/mypipe")
"""The default folder of position files, in mypipe's current master and before."""
log = logging.getLogger(__name__)


def translate_mypipe(text: str, file: str, environment: Mapping[str, str] | None = None) -> Translation:
    return _Mypipe(parse_hocon(text, file, environment), file).whole()


class _Mypipe:
    def __init__(self, hocon: Hocon, file: str) -> None:
        self._hocon, self._to = hocon, Translation(file)
        root = hocon.content.get("mypipe", {})
        self._root: Mapping[str, Any] = root if isinstance(root, dict) else {}
        self._tables: tuple[str, ...] = ("*.*",)
        self._excluded: tuple[str, ...] = ()
        self._sources: dict[str, list[str]] = {}
        self._sinks: dict[tuple[str, str], str] = {}

    def whole(self) -> Translation:
        if "snapshotter" in self._root:
            self._refuse(
                ("mypipe", "snapshotter"),
                "mypipe's snapshotter selects the rows of tables once; Headrace has no separate program for it",
                "move its consumers (without class), producers and pipes up to mypipe, remove the section, and remove start_at from the "
                "converted file: each pipe then begins with a snapshot",
            )
            self._to.problems.raise_any(self._to.file)
        if not self._root.get("pipes"):
            place, hint = self._to.file, "mypipe's files have mypipe { consumers, producers, pipes }"
            raise DefiniteError("there are no pipes of mypipe's in the file", place=place, hint=hint)
        for name in self._hocon.content:
            if name == "akka":
                self._to.drop(name, self._line((name,)), "there is no Akka here")
            elif name != "mypipe":
                self._refuse((name,), f"there is no section {name!r} in mypipe's files", "leave it out")
        for name, value in self._root.items():
            self._setting(name, value)
        for name, value in self._table(("mypipe", "consumers")).items():
            with self._to.problems.collect():
                self._consumer(name, value)
        for name, value in self._table(("mypipe", "pipes")).items():
            with self._to.problems.collect():
                self._pipe(name, value)
        return self._to

    def _setting(self, name: str, value: Any) -> None:
        path = ("mypipe", name)
        if name == "include-event-condition":
            with self._to.problems.collect():
                condition = parse_condition(str(value), self._place(path))
                self._tables, self._excluded = condition.include, condition.exclude
        elif name == "error":
            with self._to.problems.collect():
                self._errors(path, value)
        elif name in _UNNEEDED:
            self._to.drop(f"mypipe.{name}", self._line(path), _UNNEEDED[name])
        elif name not in _SECTIONS:
            self._unknown(path, (*_UNNEEDED, *_SECTIONS))

    def _errors(self, path: Keys, raw: Any) -> None:
        table = self._checked(path, raw, ("handler", *_ERROR_KEYS))
        default = self._checked((*path, "handler"), table.get("handler", {}), ("default",)).get("default", {})
        handler = self._checked((*path, "handler", "default"), default, ("class",)).get("class", _ERROR_HANDLER)
        if handler != _ERROR_HANDLER:
            where = (*path, "handler", "default", "class")
            self._refuse(where, f"Headrace cannot run the error handler {handler!r}", f"remove it: {_ON_ERROR}")
        for name in table:
            self._to.drop(f"mypipe.error.{name}", self._line((*path, name)), _ON_ERROR)

    def _consumer(self, name: str, raw: Any) -> None:
        path = ("mypipe", "consumers", name)
        table = self._checked(path, raw, ("source", "class"))
        kind = table.get("class", _LOG_CONSUMER)
        if kind != _LOG_CONSUMER:
            hint = f"remove it: sources read the binary log, as {_LOG_CONSUMER} does"
            raise self._error((*path, "class"), f"Headrace cannot run the consumer {kind!r}", hint)
        if "class" in table:
            self._to.drop(".".join((*path, "class")), self._line((*path, "class")), "sources read the binary log")
        given = table.get("source")
        several = given if isinstance(given, list) else [given]
        self._sources[name] = []
        for number, source in enumerate(several):
            section = name_of(name) if not number else f"{name_of(name)}-{number + 1}"
            if section in self._to.written.content.get(SOURCES, {}):
                raise self._error(path, f"another consumer would be called {section} here", "rename one of them")
            self._source(section, source, (*path, "source"))
            self._sources[name].append(section)

    def _source(self, section: str, source: Any, path: Keys) -> None:
        parts = source.split(":", 3) if isinstance(source, str) else []
        if len(parts) != 4 or not parts[0] or not parts[1].isdigit() or not parts[2]:
            raise self._error(path, "a source is host:port:user:password", 'write source = "host:3306:user:password"')
        host, port, user, password = parts
        line, here = self._line(path), (SOURCES, section)
        self._to.set((*here, "url"), f"mysql://{quote(user, safe='')}@{host}:{port}", line)
        if password:
            self._to.set_secret((*here, "password"), literal(password), line)
        self._to.set((*here, "tables"), list(self._tables), line)
        if self._excluded:
            self._to.set((*here, "exclude"), list(self._excluded), line)
        self._to.set((*here, "start_at"), "now", line)
        self._to.written.trailing[*here, "start_at"] = "as mypipe: changes from now on; remove it to copy the existing rows first"

    def _pipe(self, name: str, raw: Any) -> None:
        path = ("mypipe", "pipes", name)
        table = self._checked(path, raw, ("enabled", "consumers", "producer", "binlog-position-repo"))
        consumers, producers = table.get("consumers"), table.get("producer")
        if not isinstance(consumers, list) or not consumers:
            raise self._error(path, "the pipe names no consumers", 'write consumers = ["NAME"]')
        if not isinstance(producers, dict) or len(producers) != 1:
            raise self._error((*path, "producer"), "the pipe names no producer, or several", "name one")
        ((producer, settings),) = producers.items()
        here, line = (PIPES, name_of(name)), self._line(path)
        if name_of(name) in self._to.written.content.get(PIPES, {}):
            raise self._error(path, f"another pipe would be called {name_of(name)} here", "rename one of them")
        sources = [source for consumer in consumers for source in self._consumers_sources(consumer, (*path, "consumers"))]
        if not sources:
            # The error of the consumer is collected already.
            return
        if "binlog-position-repo" in table:
            self._check_positions((*path, "binlog-position-repo"), table["binlog-position-repo"])
        sources = [self._from_position(name, source, table, path) for source in sources]
        kind = self._kind(producer, (*path, "producer", producer))
        sink = self._sink(name, producer, kind, settings, (*path, "producer", producer))
        self._to.set((*here, "sources" if len(sources) > 1 else "source"), sources if len(sources) > 1 else sources[0], line)
        self._to.set((*here, "sink"), sink, line)
        if "enabled" in table:
            enabled = table["enabled"]
            self._to.set((*here, "enabled"), enabled if isinstance(enabled, bool) else enabled in _YES, self._line((*path, "enabled")))
        if len(sources) > 1 and kind != _STDOUT:
            self._to.set((*here, "merge"), True, line)
            self._to.written.trailing[*here, "merge"] = "as mypipe: all write to the same topics"

    def _check_positions(self, path: Keys, raw: Any) -> None:
        table = self._checked(path, raw, ("class", "config"))
        kind = table.get("class", _FILE_POSITIONS)
        if kind not in _POSITION_KEYS:
            hint = 'remove it; to resume, write start_at = "FILE:POSITION" to the source in the converted file'
            raise self._error((*path, "class"), f"Headrace cannot read the positions of {kind!r}", hint)
        config = self._checked((*path, "config"), table.get("config", {}), _POSITION_KEYS[kind])
        reason = "the state directory stores positions ([headrace] state)"
        if kind == _TABLE_POSITIONS:
            name, row = f"{config.get('database')}.{config.get('table')}", str(config.get("id")).replace("'", "''")
            query = f"SELECT CONCAT(filename, ':', position) FROM {name} WHERE id = '{row}'"
            reason += f"; the pipe begins now; to resume, write the result of {query} as start_at of the source"
            log.warning("%s: the position in this table is not read: %s", self._place(path), reason)
        self._to.drop(".".join(path), self._line(path), reason)

    def _consumers_sources(self, consumer: Any, path: Keys) -> list[str]:
        if consumer not in self._sources:
            near = closest_match(str(consumer), self._sources)
            hint = f"did you mean {near}?" if near else f"consumers: {', '.join(self._sources) or 'none'}"
            raise self._error(path, f"there is no consumer {consumer!r}", hint)
        return self._sources[consumer]

    def _from_position(self, pipe: str, source: str, table: Mapping[str, Any], path: Keys) -> str:
        """Return the source, or a copy of it that starts at the position in mypipe's position file."""
        section = self._to.written.content[SOURCES][source]
        host, _, port = section["url"].rpartition("@")[2].rpartition(":")
        repository = table.get("binlog-position-repo", {})
        if isinstance(repository, dict) and repository.get("class") == _TABLE_POSITIONS:
            return source
        config = repository.get("config", {}) if isinstance(repository, dict) else {}
        chosen = config.get("data-dir") or self._root.get("data-dir")
        prefix = config.get("file-prefix") or pipe
        files = [Path(str(directory)) / f"{prefix}-{host}-{port}.pos" for directory in ((chosen,) if chosen else _DATA)]
        file = next((one for one in files if one.is_file()), None)
        if file is None:
            return source
        try:
            name, _, offset = file.read_text(encoding="utf-8").strip().rpartition(":")
        except OSError:
            name, offset = "", ""
        if not name or not offset.isdigit():
            raise self._error(path, f"the position file {file} cannot be read", "it has FILE:POSITION; or remove it")
        own = f"{source}-{name_of(pipe)}"
        for key, value in section.items():
            self._to.set((SOURCES, own, key), value, self._to.lines.get((SOURCES, source, key), 0))
        if (SOURCES, source, "password") in self._to.secrets:
            self._to.secrets[SOURCES, own, "password"] = self._to.secrets[SOURCES, source, "password"]
        self._to.set((SOURCES, own, "start_at"), f"{name}:{offset}")
        self._to.written.trailing[SOURCES, own, "start_at"] = f"from {file}"
        return own

    def _kind(self, producer: str, path: Keys) -> str:
        declared = self._table(("mypipe", "producers")).get(producer)
        if not isinstance(declared, dict):
            known = self._table(("mypipe", "producers"))
            raise self._error(path, f"there is no producer {producer!r}", f"producers: {', '.join(known) or 'none'}")
        where = ("mypipe", "producers", producer)
        name = self._checked(where, declared, ("class",)).get("class", "")
        if name not in _CLASSES:
            hint = "producers of your own are Python classes here (docs/producers.md); mypipe's own are " + ", ".join(
                sorted({one.rpartition(".")[2] for one in _CLASSES})
            )
            raise self._error((*where, "class"), f"the producer's class {name!r} is not known", hint)
        return _CLASSES[name]

    def _sink(self, pipe: str, producer: str, kind: str, settings: Any, path: Keys) -> str:
        """Return the section of the pipe's sink; pipes with equal settings of a producer share one."""
        table = settings if isinstance(settings, dict) else {}
        if kind == _STDOUT:
            if table:
                self._unknown((*path, next(iter(table))), (), _ONLY_STDOUT)
            content: dict[str, Any] = {"url": "stdout:"}
        else:
            self._checked(path, table, ("metadata-brokers", "zk-connect", "schema-repo-client"))
            self._check_schema_repository((*path, "schema-repo-client"), kind, table)
            brokers = str(table.get("metadata-brokers", "")).replace(" ", "")
            if not brokers:
                raise self._error(path, "metadata-brokers is missing", 'write metadata-brokers = "host:9092"')
            content = {"url": f"kafka://{brokers}", "format": kind, **self._kafka_settings(kind)}
            if "zk-connect" in table:
                self._to.drop(".".join((*path, "zk-connect")), self._line((*path, "zk-connect")), "Headrace does not use ZooKeeper")
        same = (producer, repr(content))
        if same not in self._sinks:
            name = name_of(producer)
            self._sinks[same] = name if name not in self._sinks.values() else f"{name}-{name_of(pipe)}"
            for key, value in content.items():
                self._to.set((SINKS, self._sinks[same], key), value, self._line(path))
            if "key_changes" in content:
                self._to.written.trailing[SINKS, self._sinks[same], "key_changes"] = "as mypipe: one update, under the new key"
            if "registry" in content:
                note = "a folder of .avsc files, or the http address of a registry (mypipe: -Davro.repo.server-url)"
                self._to.written.trailing[SINKS, self._sinks[same], "registry"] = note
        return self._sinks[same]

    def _check_schema_repository(self, path: Keys, kind: str, table: Mapping[str, Any]) -> None:
        client = table.get("schema-repo-client", _SCHEMA_REPO)
        if kind == _SPECIFIC and client != _SCHEMA_REPO:
            hint = f"remove it: registry of the sink, here the folder {_REGISTRY}, sets the place of Avro schemas"
            raise self._error(path, f"Headrace cannot run the schema repository client {client!r}", hint)
        if "schema-repo-client" in table:
            reason = _UNNEEDED["schema-repo-client"] if kind == _SPECIFIC else "the schemas of generic messages are built in"
            self._to.drop(".".join(path), self._line(path), reason)

    def _kafka_settings(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {"key_changes": "update"}
        for path in (("mypipe", "kafka"), ("mypipe", "kafka", f"{kind}-producer")):
            known = ("generic-producer", "specific-producer") if len(path) == 2 else ("topic-format",)
            self._checked(path, self._table(path), known)
        topic = self._table(("mypipe", "kafka", f"{kind}-producer")).get("topic-format", "")
        if topic:
            for theirs, ours in (("${database}", "${db}"), ("$database", "${db}"), ("$db", "${db}"), ("$table", "${table}")):
                topic = topic.replace(theirs, ours)
            found["topic"] = topic
        if kind == _SPECIFIC:
            found["registry"] = _REGISTRY
        return found

    def _table(self, path: Keys) -> Mapping[str, Any]:
        found: Any = self._hocon.content
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}

    def _checked(self, path: Keys, raw: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(raw, dict):
            raise self._error(path, f"{path[-1]} is an object", f"write {path[-1]} {{ … }}")
        for name in raw:
            if name not in known:
                self._unknown((*path, name), known)
        return raw

    def _unknown(self, path: Keys, known: tuple[str, ...], hint: str = "") -> None:
        near = closest_match(path[-1], known)
        allowed = f"known: {', '.join(known)}" if known else "leave it out"
        self._refuse(path, f"{'.'.join(path)} is no setting that is known", hint or (f"did you mean {near}?" if near else allowed))

    def _refuse(self, path: Keys, message: str, hint: str) -> None:
        self._to.refuse(".".join(path), self._line(path), message, hint)

    def _error(self, path: Keys, message: str, hint: str) -> DefiniteError:
        return DefiniteError(message, place=self._place(path), hint=hint)

    def _line(self, path: Keys) -> int:
        return next((self._hocon.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._hocon.lines), 0)

    def _place(self, path: Keys) -> str:
        return f"{self._to.file}, line {self._line(path)}, {'.'.join(path)}"


_TOKEN: Final = re.compile(r'\s*(?:(&&|\|\||==|!=|\(|\))|(db|table)\b|"([^"]*)")')
_ALL: Final = ("*.*",)
_CHOOSE: Final = "leave it out, and choose the tables by tables and exclude of the source in the converted file"


@dataclass(frozen=True, slots=True)
class TableCondition:
    """The tables that a condition selects."""

    include: tuple[str, ...] = _ALL
    exclude: tuple[str, ...] = ()


def parse_condition(text: str, place: str) -> TableCondition:
    """Return the globs of the tables that a condition selects; an empty condition selects all."""
    if not text.strip():
        return TableCondition()
    found = _ConditionParser(text, place).whole()
    if not found:
        raise DefiniteError("the condition lets no table through", place=place, hint="correct it, or leave it out")
    excluded = {choice.unequal for choice in found}
    if len(excluded) > 1:
        raise DefiniteError("alternatives of the condition exclude different tables", place=place, hint=_CHOOSE)
    (unequal,) = excluded
    include = tuple(dict.fromkeys(_glob(dict(choice.equal)) for choice in found))
    return TableCondition(include, tuple(sorted(_glob(dict([pair])) for pair in unequal)))


def _glob(names: dict[str, str]) -> str:
    return f"{names.get('db', '*')}.{names.get('table', '*')}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Comparisons that must all be true: pairs of `db` or `table` and a name."""

    equal: frozenset[tuple[str, str]] = frozenset()
    unequal: frozenset[tuple[str, str]] = frozenset()


class _ConditionParser:
    def __init__(self, text: str, place: str) -> None:
        self._place, self._text = place, text
        self._tokens = self._split()

    def whole(self) -> list[_Choice]:
        found = self._either()
        if self._tokens:
            raise self._wrong()
        return found

    def _either(self) -> list[_Choice]:
        found = self._both()
        while self._tokens[:1] == ["||"]:
            self._tokens.pop(0)
            found = found + self._both()
        return found

    def _both(self) -> list[_Choice]:
        found = self._one()
        while self._tokens[:1] == ["&&"]:
            self._tokens.pop(0)
            other = self._one()
            found = [joined for one in found for more in other if (joined := _joined(one, more)) is not None]
        return found

    def _one(self) -> list[_Choice]:
        if self._tokens[:1] == ["("]:
            self._tokens.pop(0)
            found = self._either()
            if self._tokens[:1] != [")"]:
                raise self._wrong()
            self._tokens.pop(0)
            return found
        name, operator, value = [*self._tokens[:3], "", "", ""][:3]
        if name not in ("db", "table") or operator not in ("==", "!=") or value[:1] != '"':
            raise self._wrong()
        del self._tokens[:3]
        pair = frozenset({(name, value[1:])})
        return [_Choice(equal=pair) if operator == "==" else _Choice(unequal=pair)]

    def _split(self) -> list[str]:
        tokens, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong()
            tokens.append(found[1] or found[2] or f'"{found[3]}')
            at = found.end()
        return tokens

    def _wrong(self) -> DefiniteError:
        return DefiniteError("the condition is more than comparisons of db and table", place=self._place, hint=_CHOOSE)


def _joined(one: _Choice, other: _Choice) -> _Choice | None:
    """Return both conditions as one; None if they contradict each other."""
    equal, unequal = one.equal | other.equal, one.unequal | other.unequal
    if len({name for name, _ in equal}) < len(equal) or equal & unequal:
        return None
    # A comparison with another name follows from an equality of the same side.
    fixed = {name for name, _ in equal}
    return _Choice(equal, frozenset(pair for pair in unequal if pair[0] not in fixed))
