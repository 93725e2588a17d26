"""The user's settings from a TOML file, flags or a state directory, validated against the classes that use them.

Invariant: settings have one plain form (`PlainSettings`: validated content of a TOML file), wherever they come from; `UserSettings` is
built from that form alone. An unknown key or an invalid value is an error that names file, line, key and the allowed values; nothing is
skipped. No secret is a setting.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret
from headrace.kafka.registry import secret_name_in
from headrace.kafka.schema_repository import PASSWORD_VARIABLE, PROPERTIES_VARIABLE
from headrace.settings.dataclass_fields import Field, InvalidValue, closest_match, parse_value, setting_fields, to_plain, value_hint
from headrace.settings.foreign_names import REPLACEMENTS
from headrace.settings.schema_policy import ALL_KINDS, ChangeKind, SchemaPolicy
from headrace.settings.toml_text import find_key_lines, nearest_line, parse_key
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, Fields, TableOptions
from headrace.sinks.kafka.options import KafkaOptions
from headrace.sinks.registry import SINK_CONNECTORS
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.transforms.options import TransformOptions, Transforms, check_salt, read_hash, read_mask

PlainSettings: TypeAlias = dict[str, Any]
"""Sections, keys and values: only texts, numbers, lists and tables."""
Locator: TypeAlias = Callable[[tuple[str, ...]], str]
"""Returns where a key stands, for messages."""
SINK, TABLES, SCHEMA_CHANGES, KAFKA, DEBEZIUM, SCYLLA = "sink", "tables", "schema_changes", "kafka", "debezium", "scylla"
REPLAY: Final = "replay"
TRANSFORMS: Final = "transforms"
PRODUCER: Final = "producer"
"""Settings of a custom producer; only its class knows their names."""
PLAIN_SECTIONS: Final[dict[str, type]] = {
    DEBEZIUM: DebeziumOptions,
    SCYLLA: ScyllaOptions,
    **{one.section: one.options for one in SINK_CONNECTORS if one.options is not None},
}
"""Sections whose keys are the fields of one class."""
SECTIONS: Final = (SINK, SCHEMA_CHANGES, TRANSFORMS, PRODUCER, *PLAIN_SECTIONS)
_SINK_FIELDS: Final = {name: one for name, one in setting_fields(ClickHouseOptions).items() if name not in ("all_tables", "tables")}
_TABLE_FIELDS: Final = setting_fields(TableOptions)
_TRANSFORM_FIELDS: Final = setting_fields(TransformOptions)
_SORT_KEY_KEYWORDS: Final = ("primary", "materialize")


@dataclass(frozen=True, slots=True)
class UserSettings:
    plain: PlainSettings = field(default_factory=dict)
    """As in a settings file."""

    @property
    def sink(self) -> ClickHouseOptions:
        written: PlainSettings = self.plain.get(SINK, {})
        tables = tuple((glob, _parse_fields(_TABLE_FIELDS, own)) for glob, own in written.get(TABLES, {}).items())
        own = {name: parse_value(one.kind, written[name]) for name, one in _SINK_FIELDS.items() if name in written}
        return ClickHouseOptions(all_tables=_parse_fields(_TABLE_FIELDS, written), tables=tables, **own)

    @property
    def kafka(self) -> KafkaOptions:
        return KafkaOptions(**self._of(KAFKA))

    @property
    def debezium(self) -> DebeziumOptions:
        return DebeziumOptions(**self._of(DEBEZIUM))

    @property
    def scylla(self) -> ScyllaOptions:
        return ScyllaOptions(**self._of(SCYLLA))

    @property
    def producer(self) -> dict[str, Any]:
        return dict(self.plain.get(PRODUCER, {}))

    @property
    def transforms(self) -> Transforms:
        written: PlainSettings = self.plain.get(TRANSFORMS, {})
        return Transforms(tuple((glob, _parse_fields(_TRANSFORM_FIELDS, own)) for glob, own in written.items()))

    @property
    def schema_changes(self) -> SchemaPolicy:
        return SchemaPolicy.from_dict(self.plain.get(SCHEMA_CHANGES, {}))

    def section_options(self, section: str) -> Any:
        """Return the options of a section by its name; None for no section."""
        match section:
            case "":
                return None
            case "sink":
                return self.sink
            case "producer":
                return self.producer
        return PLAIN_SECTIONS[section](**self._of(section))

    def check_sections(self, unfit: Iterable[str], why: str) -> None:
        """Raise `DefiniteError` if a section is used that does not apply: its settings would be ignored silently."""
        for section in unfit:
            if self.plain.get(section):
                names = ", ".join(self.plain[section])
                raise DefiniteError(f"{names}: {why}", place=f"[{section}]", hint="leave it out, or use another settings file")

    def _of(self, section: str) -> dict[str, Any]:
        written: PlainSettings = self.plain.get(section, {})
        return {
            name: parse_value(one.kind, written[name]) for name, one in setting_fields(PLAIN_SECTIONS[section]).items() if name in written
        }

    def over(self, other: UserSettings) -> UserSettings:
        """Merge with other settings; these take precedence."""
        return UserSettings(merge_tables(other.plain, self.plain))


def read_settings(path: Path) -> UserSettings:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(f"the settings cannot be read: {error}", place=str(path), hint="give a TOML file with --settings") from error
    return parse_settings(text, str(path))


def parse_settings(text: str, file: str) -> UserSettings:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the settings are not TOML: {error}", place=file, hint='write KEY = "TEXT", KEY = 1 or [SECTION]') from error
    lines = find_key_lines(text)

    def place(path: tuple[str, ...]) -> str:
        line = nearest_line(lines, path)
        return f"{file}, {'.'.join(path)}" if line is None else f"{file}, line {line}, {'.'.join(path)}"

    return UserSettings(validate(content, place))


def parse_set_flag(text: str) -> UserSettings:
    """Parse `KEY=VALUE`: a key as in a file, in `[sink]` unless it names a section; a TOML value or a bare text."""
    for place in [place for place, character in enumerate(text) if character == "="]:
        path = parse_key(text[:place])
        if path is not None:
            return parse_setting(path, text[place + 1 :], f"--set {text[:place]}")
    raise DefiniteError(f"{text!r} is no setting", place="--set", hint="write --set KEY=VALUE, such as --set engine=history")


def parse_setting(path: tuple[str, ...], value: str, place: str) -> UserSettings:
    """Parse the value of one setting from a flag."""
    whole = path if path[0] in SECTIONS else (SINK, *path)
    failure: DefiniteError | None = None
    # A value that looks like a number may be meant as text: the field decides.
    for candidate in (*_parse_toml_value(value), value):
        content: Any = candidate
        for name in reversed(whole):
            content = {name: content}
        try:
            return UserSettings(validate(content, lambda _: place))
        except DefiniteError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def load_stored(stored: PlainSettings, file: str) -> UserSettings:
    """Load the settings that a state directory or a sink has stored."""
    return UserSettings(validate(stored, lambda path: f"{file}, {'.'.join(path)}"))


def validate(content: Mapping[str, Any], place: Locator) -> PlainSettings:
    """Validate settings and return their plain form."""
    found: PlainSettings = {}
    for section, written in content.items():
        if section not in SECTIONS:
            raise _unknown_key((section,), written, place, SECTIONS, "section")
        if not isinstance(written, dict):
            raise DefiniteError(f"{section!r} is a section", place=place((section,)), hint=f"write [{section}] and its keys below")
        if section == PRODUCER:
            found[section] = _validate_producer(written, place)
        elif section in PLAIN_SECTIONS:
            found[section] = _validate_keys(setting_fields(PLAIN_SECTIONS[section]), written, (section,), place)
            _check_no_secret(found[section], lambda name, section=section: place((section, name)))  # type: ignore[misc]
        elif section == TRANSFORMS:
            found[section] = _validate_transforms(written, place)
        else:
            found[section] = _validate_sink(written, place) if section == SINK else _validate_policies(written, place)
    return found


def _validate_producer(written: Mapping[str, Any], place: Locator) -> PlainSettings:
    """Validate the settings of a custom class: any name, plain values, no secrets."""
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


def _validate_transforms(written: Mapping[str, Any], place: Locator) -> PlainSettings:
    found: PlainSettings = {}
    for glob, own in written.items():
        path = (TRANSFORMS, glob)
        if not isinstance(own, dict) or "." not in glob:
            raise DefiniteError(
                "transforms need a glob over database.table", place=place(path), hint='write [transforms."shop.orders"], with the quotes'
            )
        found[glob] = check_transforms(own, lambda name, path=path: place((*path, *name)), path)  # type: ignore[misc]
    return found


def check_transforms(written: Mapping[str, Any], place: Locator, around: tuple[str, ...] = (TRANSFORMS,)) -> PlainSettings:
    """Validate one table's transforms; `place` takes the path of a key below the table."""
    found = _validate_keys(_TRANSFORM_FIELDS, written, around, lambda path: place(path[len(around) :]))
    for name, text in found.get("mask", {}).items():
        read_mask(text, place(("mask", name)))
    for name, text in found.get("hash", {}).items():
        read_hash(text, place(("hash", name)))
    check_salt(found.get("hash_salt", ""), place(("hash_salt",)))
    expressions: dict[tuple[str, ...], str] = {("computed", name): text for name, text in found.get("computed", {}).items()}
    if found.get("filter"):
        expressions["filter",] = found["filter"]
    for path, text in expressions.items():
        # Imported only if needed: DuckDB is slow to load.
        from headrace.transforms.expressions import parse

        try:
            parse(text)
        except DefiniteError as error:
            raise DefiniteError(error.message, place=place(path), hint=error.hint) from error
    return found


def _check_no_secret(valid: PlainSettings, place: Callable[[str], str]) -> None:
    """Raise `DefiniteError` for a secret: settings are stored in the state and shown; secrets of addresses are not."""
    for name, value in valid.items():
        secret = next((key for key in value if is_secret(key)), None) if isinstance(value, dict) else None
        if secret is not None:
            raise DefiniteError(f"{secret} is a secret, and settings are kept", place=place(name), hint="give it in the address")
        shown = secret_name_in(value) if isinstance(value, str) else None
        if shown is not None:
            raise DefiniteError(
                f"the address holds {shown}, and settings are kept",
                place=place(name),
                hint=f"give the password in {PASSWORD_VARIABLE}, other secrets in {PROPERTIES_VARIABLE} (NAME=VALUE&NAME=VALUE)",
            )


def _validate_policies(written: Mapping[str, Any], place: Locator) -> PlainSettings:
    kinds = (*ChangeKind, ALL_KINDS)
    for name, word in written.items():
        path = (SCHEMA_CHANGES, name)
        if name not in kinds:
            raise _unknown_key(path, word, place, kinds, "kind of schema change")
        try:
            SchemaPolicy.from_dict({name: str(word)})
        except DefiniteError as error:
            raise DefiniteError(error.message, place=place(path), hint=error.hint) from None
    return dict(written)


def _validate_sink(written: Mapping[str, Any], place: Locator) -> PlainSettings:
    known = {**_TABLE_FIELDS, **_SINK_FIELDS}
    valid = _validate_keys(known, {name: value for name, value in written.items() if name != TABLES}, (SINK,), place, extra=(TABLES,))
    tables = written.get(TABLES)
    if tables is None:
        return valid
    if not isinstance(tables, dict):
        raise _invalid_glob(place((SINK, TABLES)))
    valid[TABLES] = {}
    for glob, own in tables.items():
        path = (SINK, TABLES, glob)
        if not isinstance(own, dict) or "." not in glob:
            raise _invalid_glob(place(path))
        for_sink = next((name for name in own if name in _SINK_FIELDS), None)
        if for_sink is not None:
            raise DefiniteError(f"{for_sink} is for all tables", place=place((*path, for_sink)), hint="write it under [sink]")
        valid[TABLES][glob] = _validate_keys(_TABLE_FIELDS, own, path, place)
    return valid


def _validate_keys(
    known: Mapping[str, Field], written: Mapping[str, Any], around: tuple[str, ...], place: Locator, extra: tuple[str, ...] = ()
) -> PlainSettings:
    valid: PlainSettings = {}
    for name, raw in written.items():
        path = (*around, name)
        one = known.get(name)
        if one is None:
            raise _unknown_key(path, raw, place, (*known, *extra), "setting")
        try:
            valid[name] = to_plain(one.kind, _normalize(name, parse_value(one.kind, raw)))
        except InvalidValue as unfit:
            raise DefiniteError(f"{name} must be {unfit}, not {raw!r}", place=place(path), hint=value_hint(one, raw)) from None
    return valid


def _normalize(name: str, value: Any) -> Any:
    """Split a sort key that is written as one text into its expressions."""
    if name != "sort_key" or not isinstance(value, str) or value in _SORT_KEY_KEYWORDS:
        return value
    return split_list(value)


def split_list(text: str) -> tuple[str, ...]:
    """Split a list of expressions at commas outside of parentheses and quotes."""
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
    """Return whether one pair of parentheses encloses the text."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return character == ")" and place == len(text) - 1
    return False


def _unknown_key(path: tuple[str, ...], raw: Any, place: Locator, known: Iterable[str], what: str) -> DefiniteError:
    names = [".".join((path[-1], *rest)) for rest in _dotted_suffixes(raw)]
    elsewhere = next((name for name in names if name in REPLACEMENTS), "")
    near = closest_match(path[-1], known)
    if elsewhere:
        hint = REPLACEMENTS[elsewhere]
    elif near:
        hint = f"did you mean {near}?"
    elif what == "section" and path[-1] in {**_TABLE_FIELDS, **_SINK_FIELDS}:
        hint = f"write it under [{SINK}]"
    else:
        hint = f"known: {', '.join(sorted(known))}"
    return DefiniteError(f"there is no {what} {elsewhere or path[-1]!r}", place=place(path), hint=hint)


def _dotted_suffixes(raw: Any) -> list[tuple[str, ...]]:
    """Return the dotted suffixes of a name that other tools write with dots, longest first."""
    if not isinstance(raw, dict):
        return [()]
    return [(name, *rest) for name, inner in raw.items() for rest in _dotted_suffixes(inner)] + [()]


def _invalid_glob(place: str) -> DefiniteError:
    return DefiniteError(
        "settings for some tables need a glob over database.table", place=place, hint='write [sink.tables."shop.orders"], with the quotes'
    )


def _parse_fields(known: Mapping[str, Field], written: Mapping[str, Any]) -> Fields:
    return tuple((name, parse_value(one.kind, written[name])) for name, one in known.items() if name in written)


def merge_tables(below: PlainSettings, above: PlainSettings) -> PlainSettings:
    """Merge nested tables; the values of `above` take precedence."""
    merged = dict(below)
    for name, value in above.items():
        there = merged.get(name)
        merged[name] = merge_tables(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _parse_toml_value(value: str) -> list[Any]:
    try:
        return [tomllib.loads(f"value = {value}")["value"]]
    except tomllib.TOMLDecodeError:
        return []
