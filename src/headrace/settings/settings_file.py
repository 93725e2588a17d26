"""What a user chose, from a TOML file, from flags and from what a state directory remembers, checked against the classes that use it.

Invariant: settings are kept in one plain form (`Plain`: what a TOML file says, checked), whichever way they came; `Chosen` is built from
that form alone. A key that no class knows, or a value that its field cannot have, is an error that names file, line, key and what is
allowed; nothing is skipped. No secret is a setting.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.registry import secret_in
from headrace.kafka.schema_repository import PASSWORD_VARIABLE, PROPERTIES_VARIABLE
from headrace.settings.dataclass_fields import Field, Unfit, fields_of, nearest, plain, read
from headrace.settings.foreign_names import ELSEWHERE
from headrace.settings.schema_policy import EVERY, ChangeKind, SchemaPolicy
from headrace.settings.toml_lines import find_lines, line_of, parse_key
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, Fields, TableOptions
from headrace.sinks.cql.options import ReplayOptions
from headrace.sinks.kafka.messages.options import KafkaOptions
from headrace.sources.debezium.events.options import DebeziumChoices
from headrace.sources.scylla.snapshot.options import ScyllaChoices
from headrace.transforms.options import TransformChoices, Transforms, check_salt, read_hash, read_mask

Plain: TypeAlias = dict[str, Any]
"""Sections, their keys and values: texts, numbers, lists and tables only."""
SINK, TABLES, SCHEMA_CHANGES, KAFKA, DEBEZIUM, SCYLLA = "sink", "tables", "schema_changes", "kafka", "debezium", "scylla"
REPLAY: Final = "replay"
TRANSFORMS: Final = "transforms"
PRODUCER: Final = "producer"
"""Whatever a producer of one's own is made with: its class knows what that may be."""
PLAIN_SECTIONS: Final[dict[str, type]] = {KAFKA: KafkaOptions, DEBEZIUM: DebeziumChoices, SCYLLA: ScyllaChoices, REPLAY: ReplayOptions}
"""Sections whose keys are the fields of one class."""
SECTIONS: Final = (SINK, SCHEMA_CHANGES, TRANSFORMS, PRODUCER, *PLAIN_SECTIONS)
_OF_SINK: Final = {name: one for name, one in fields_of(ClickHouseOptions).items() if name not in ("all_tables", "tables")}
_OF_TABLES: Final = fields_of(TableOptions)
_OF_TRANSFORMS: Final = fields_of(TransformChoices)
_KEY_WORDS: Final = ("primary", "materialize")


@dataclass(frozen=True, slots=True)
class Chosen:
    """All that was chosen."""

    plain: Plain = field(default_factory=dict)
    """In the words of a file."""

    @property
    def sink(self) -> ClickHouseOptions:
        written: Plain = self.plain.get(SINK, {})
        tables = tuple((glob, _fields(own)) for glob, own in written.get(TABLES, {}).items())
        own = {name: read(one.kind, written[name]) for name, one in _OF_SINK.items() if name in written}
        return ClickHouseOptions(all_tables=_fields(written), tables=tables, **own)

    @property
    def kafka(self) -> KafkaOptions:
        return KafkaOptions(**self._of(KAFKA))

    @property
    def debezium(self) -> DebeziumChoices:
        return DebeziumChoices(**self._of(DEBEZIUM))

    @property
    def scylla(self) -> ScyllaChoices:
        return ScyllaChoices(**self._of(SCYLLA))

    @property
    def replay(self) -> ReplayOptions:
        return ReplayOptions(**self._of(REPLAY))

    @property
    def producer(self) -> dict[str, Any]:
        return dict(self.plain.get(PRODUCER, {}))

    @property
    def transforms(self) -> Transforms:
        written: Plain = self.plain.get(TRANSFORMS, {})
        return Transforms(tuple((glob, _read_fields(_OF_TRANSFORMS, own)) for glob, own in written.items()))

    @property
    def schema_changes(self) -> SchemaPolicy:
        return SchemaPolicy.of_words(self.plain.get(SCHEMA_CHANGES, {}))

    def check_sections(self, unfit: Iterable[str], why: str) -> None:
        """Raise `DefiniteError` if something was chosen in a section that is about something else: it would be left out silently."""
        for section in unfit:
            if self.plain.get(section):
                names = ", ".join(self.plain[section])
                raise DefiniteError(f"{names}: {why}", place=f"[{section}]", hint="leave it out, or use another settings file")

    def _of(self, section: str) -> dict[str, Any]:
        written: Plain = self.plain.get(section, {})
        return {name: read(one.kind, written[name]) for name, one in fields_of(PLAIN_SECTIONS[section]).items() if name in written}

    def over(self, other: Chosen) -> Chosen:
        """These settings laid over others: a key that both have is as it is here."""
        return Chosen(_merged(other.plain, self.plain))


def read_settings(path: Path) -> Chosen:
    """The settings of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(f"the settings cannot be read: {error}", place=str(path), hint="give a TOML file with --settings") from error
    return parse_settings(text, str(path))


def parse_settings(text: str, file: str) -> Chosen:
    """The settings that a TOML text gives."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the settings are not TOML: {error}", place=file, hint='write KEY = "TEXT", KEY = 1 or [SECTION]') from error
    lines = find_lines(text)

    def place(path: tuple[str, ...]) -> str:
        line = line_of(lines, path)
        return f"{file}, {'.'.join(path)}" if line is None else f"{file}, line {line}, {'.'.join(path)}"

    return Chosen(checked(content, place))


def parse_set(text: str) -> Chosen:
    """One setting from `KEY=VALUE`: the key as in a file, within `[sink]` if it names no section; the value too, or a bare text."""
    for place in [place for place, character in enumerate(text) if character == "="]:
        path = parse_key(text[:place])
        if path is not None:
            return choose(path, text[place + 1 :], f"--set {text[:place]}")
    raise DefiniteError(f"{text!r} is no setting", place="--set", hint="write --set KEY=VALUE, such as --set engine=history")


def choose(path: tuple[str, ...], value: str, place: str) -> Chosen:
    """One setting from a flag's text."""
    whole = path if path[0] in SECTIONS else (SINK, *path)
    failure: DefiniteError | None = None
    # What reads as a number may be meant as a text: the field decides.
    for candidate in (*_as_toml(value), value):
        content: Any = candidate
        for name in reversed(whole):
            content = {name: content}
        try:
            return Chosen(checked(content, lambda _: place))
        except DefiniteError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def restored(stored: Plain, file: str) -> Chosen:
    """The settings that a state directory or a sink remembers."""
    return Chosen(checked(stored, lambda path: f"{file}, {'.'.join(path)}"))


def checked(content: Mapping[str, Any], place: Callable[[tuple[str, ...]], str]) -> Plain:
    """Settings as they are kept; `place` says where a key stands, for messages."""
    found: Plain = {}
    for section, written in content.items():
        if section not in SECTIONS:
            raise _unknown((section,), written, place, SECTIONS, "section")
        if not isinstance(written, dict):
            raise DefiniteError(f"{section!r} is a section", place=place((section,)), hint=f"write [{section}] and its keys below")
        if section == PRODUCER:
            found[section] = _free(written, place)
        elif section in PLAIN_SECTIONS:
            found[section] = _keys(fields_of(PLAIN_SECTIONS[section]), written, (section,), place)
            _check_no_secret(found[section], lambda name, section=section: place((section, name)))  # type: ignore[misc]
        elif section == TRANSFORMS:
            found[section] = _transforms(written, place)
        else:
            found[section] = _sink(written, place) if section == SINK else _policies(written, place)
    return found


def _free(written: Mapping[str, Any], place: Callable[[tuple[str, ...]], str]) -> Plain:
    """Settings of somebody else's class: of any name, but plain, and no secrets."""
    for name, value in written.items():
        if is_secret(name):
            hint = "give it in the address (class:MODULE:CLASS?NAME=VALUE), of which that is not kept, or have the class read it elsewhere"
            raise DefiniteError(f"{name} is a secret, and settings are kept", place=place((PRODUCER, name)), hint=hint)
        if not _is_plain(value):
            raise DefiniteError(
                f"{name} cannot be {value!r}", place=place((PRODUCER, name)), hint="write a text, a number, a list or a table"
            )
    return dict(written)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float)


def _transforms(written: Mapping[str, Any], place: Callable[[tuple[str, ...]], str]) -> Plain:
    found: Plain = {}
    for glob, own in written.items():
        path = (TRANSFORMS, glob)
        if not isinstance(own, dict) or "." not in glob:
            raise DefiniteError(
                "transforms need a glob over database.table", place=place(path), hint='write [transforms."shop.orders"], with the quotes'
            )
        found[glob] = check_transforms(own, lambda name, path=path: place((*path, *name)), path)  # type: ignore[misc]
    return found


def check_transforms(written: Mapping[str, Any], place: Callable[[tuple[str, ...]], str], around: tuple[str, ...] = (TRANSFORMS,)) -> Plain:
    """One table's transforms in plain form; `place` says where a key is, told by its path below the table."""
    found = _keys(_OF_TRANSFORMS, written, around, lambda path: place(path[len(around) :]))
    for name, text in found.get("mask", {}).items():
        read_mask(text, place(("mask", name)))
    for name, text in found.get("hash", {}).items():
        read_hash(text, place(("hash", name)))
    check_salt(found.get("hash_salt", ""), place(("hash_salt",)))
    expressions: dict[tuple[str, ...], str] = {("computed", name): text for name, text in found.get("computed", {}).items()}
    if found.get("filter"):
        expressions["filter",] = found["filter"]
    for path, text in expressions.items():
        # What reads them is imported by those who have some.
        from headrace.transforms.expressions import parse

        try:
            parse(text)
        except DefiniteError as error:
            raise DefiniteError(error.message, place=place(path), hint=error.hint) from error
    return found


def _check_no_secret(checked: Plain, place: Callable[[str], str]) -> None:
    """Settings are kept in the state and shown: what is secret belongs into an address, of which that is never kept."""
    for name, value in checked.items():
        secret = next((key for key in value if is_secret(key)), None) if isinstance(value, dict) else None
        if secret is not None:
            raise DefiniteError(f"{secret} is a secret, and settings are kept", place=place(name), hint="give it in the address")
        shown = secret_in(value) if isinstance(value, str) else None
        if shown is not None:
            raise DefiniteError(
                f"the address holds {shown}, and settings are kept",
                place=place(name),
                hint=f"give the password in {PASSWORD_VARIABLE}, other secrets in {PROPERTIES_VARIABLE} (NAME=VALUE&NAME=VALUE)",
            )


def _policies(written: Mapping[str, Any], place: Callable[[tuple[str, ...]], str]) -> Plain:
    kinds = (*ChangeKind, EVERY)
    for name, word in written.items():
        path = (SCHEMA_CHANGES, name)
        if name not in kinds:
            raise _unknown(path, word, place, kinds, "kind of schema change")
        try:
            SchemaPolicy.of_words({name: str(word)})
        except DefiniteError as error:
            raise DefiniteError(error.message, place=place(path), hint=error.hint) from None
    return dict(written)


def _sink(written: Mapping[str, Any], place: Callable[[tuple[str, ...]], str]) -> Plain:
    known = {**_OF_TABLES, **_OF_SINK}
    checked = _keys(known, {name: value for name, value in written.items() if name != TABLES}, (SINK,), place, extra=(TABLES,))
    tables = written.get(TABLES)
    if tables is None:
        return checked
    if not isinstance(tables, dict):
        raise _misplaced(place((SINK, TABLES)))
    checked[TABLES] = {}
    for glob, own in tables.items():
        path = (SINK, TABLES, glob)
        if not isinstance(own, dict) or "." not in glob:
            raise _misplaced(place(path))
        for_sink = next((name for name in own if name in _OF_SINK), None)
        if for_sink is not None:
            raise DefiniteError(f"{for_sink} is for all tables", place=place((*path, for_sink)), hint="write it under [sink]")
        checked[TABLES][glob] = _keys(_OF_TABLES, own, path, place)
    return checked


def _keys(
    known: Mapping[str, Field],
    written: Mapping[str, Any],
    around: tuple[str, ...],
    place: Callable[[tuple[str, ...]], str],
    extra: tuple[str, ...] = (),
) -> Plain:
    checked: Plain = {}
    for name, raw in written.items():
        path = (*around, name)
        one = known.get(name)
        if one is None:
            raise _unknown(path, raw, place, (*known, *extra), "setting")
        try:
            checked[name] = plain(one.kind, _normal(name, read(one.kind, raw)))
        except Unfit as unfit:
            raise DefiniteError(f"{name} must be {unfit}, not {raw!r}", place=place(path), hint=one.text) from None
    return checked


def _normal(name: str, value: Any) -> Any:
    """A sort key that is written as one text is a list of expressions."""
    if name != "sort_key" or not isinstance(value, str) or value in _KEY_WORDS:
        return value
    return split_list(value)


def split_list(text: str) -> tuple[str, ...]:
    """The expressions of a list, cut at commas that are outside of parentheses and quotes."""
    parts, depth, quote, current = [], 0, "", ""
    for character in text.removeprefix("(").removesuffix(")") if _is_one_tuple(text) else text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return tuple(part for part in (*parts, current.strip()) if part)


def _is_one_tuple(text: str) -> bool:
    """Whether the first parenthesis closes at the end."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return character == ")" and place == len(text) - 1
    return False


def _unknown(path: tuple[str, ...], raw: Any, place: Callable[[tuple[str, ...]], str], known: Iterable[str], what: str) -> DefiniteError:
    names = [".".join((path[-1], *rest)) for rest in _paths(raw)]
    elsewhere = next((name for name in names if name in ELSEWHERE), "")
    near = nearest(path[-1], known)
    if elsewhere:
        hint = ELSEWHERE[elsewhere]
    elif near:
        hint = f"did you mean {near}?"
    elif what == "section" and path[-1] in {**_OF_TABLES, **_OF_SINK}:
        hint = f"write it under [{SINK}]"
    else:
        hint = f"known: {', '.join(sorted(known))}"
    return DefiniteError(f"there is no {what} {elsewhere or path[-1]!r}", place=place(path), hint=hint)


def _paths(raw: Any) -> list[tuple[str, ...]]:
    """The dotted rests of a name that other tools write with dots, the longest first."""
    if not isinstance(raw, dict):
        return [()]
    return [(name, *rest) for name, inner in raw.items() for rest in _paths(inner)] + [()]


def _misplaced(place: str) -> DefiniteError:
    return DefiniteError(
        "settings for some tables need a glob over database.table", place=place, hint='write [sink.tables."shop.orders"], with the quotes'
    )


def _fields(written: Mapping[str, Any]) -> Fields:
    return _read_fields(_OF_TABLES, written)


def _read_fields(known: Mapping[str, Field], written: Mapping[str, Any]) -> Fields:
    return tuple((name, read(one.kind, written[name])) for name, one in known.items() if name in written)


def _merged(below: Plain, above: Plain) -> Plain:
    merged = dict(below)
    for name, value in above.items():
        there = merged.get(name)
        merged[name] = _merged(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _as_toml(value: str) -> list[Any]:
    try:
        return [tomllib.loads(f"value = {value}")["value"]]
    except tomllib.TOMLDecodeError:
        return []
