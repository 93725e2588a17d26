"""Reads connectors' YAML files: keys with texts, and Strimzi's `KafkaConnector` resource, whose keys are below `spec.config`.

Invariant: texts are read as YAML defines them (plain, quoted, and block scalars, on one or several lines); other content is an error with
its line. The final line breaks of a block scalar are not part of the text: no value of a connector ends with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headrace.errors import DefiniteError

_KEY: Final = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s#'"{\[&*!|>%@`-][^:#]*?|-[^\s:#][^:#]*?))\s*:(?:\s+|$)""")
_RESOURCE: Final = re.compile(r"""^kind:\s*["']?KafkaConnector["']?\s*(#.*)?$""", re.MULTILINE)
_RESOURCE_KEYS: Final[Mapping[str, str]] = {"metadata.name": "name", "spec.class": "connector.class", "spec.tasksMax": "tasks.max"}
_CONFIG: Final = "spec.config."
_UNUSED: Final = re.compile(r"(apiVersion|kind|metadata\..*|spec\.autoRestart(\..*)?)")
_BLOCK: Final = re.compile(r"([|>])(?:([+-])?([1-9])?|([1-9])([+-]))\s*(#.*)?")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")


class YamlText(NamedTuple):
    key: str
    text: str
    line: int


def read_yaml(text: str, file: str) -> Iterator[YamlText]:
    """Return the keys of a connector's file."""
    is_resource = _RESOURCE.search(text) is not None
    for one in _Reader(text.splitlines(), file, nested=is_resource).mapping(0, ""):
        if not is_resource:
            yield one
        elif one.key.startswith(_CONFIG):
            yield one._replace(key=one.key.removeprefix(_CONFIG))
        elif one.key in _RESOURCE_KEYS:
            yield one._replace(key=_RESOURCE_KEYS[one.key])
        elif not _UNUSED.fullmatch(one.key):
            raise DefiniteError(
                f"{one.key} of a KafkaConnector is not known",
                place=f"{file}, line {one.line}",
                hint="leave it out; a connector has spec.class, spec.tasksMax and spec.config",
            )


class _Reader:
    def __init__(self, lines: list[str], file: str, *, nested: bool) -> None:
        """`nested`: whether a key may have keys below it."""
        self._lines, self._file, self._nested = lines, file, nested
        self._next = 0

    def mapping(self, indent: int, prefix: str) -> Iterator[YamlText]:
        """Parse the keys at one indentation."""
        while (line := self._peek()) is not None:
            self._next = self._content_at()
            depth = _indent_of(line)
            if depth < indent:
                return
            found = _KEY.match(line, depth) if depth == indent else None
            if found is None:
                raise self._error("the line is not KEY: VALUE", self._next + 1, "write all keys at the left edge, each with a text")
            self._next += 1
            key = (found[1] or found[2] or found[3] or "").strip()
            if not key:
                raise self._error("the key is empty", self._next, "write KEY: VALUE")
            yield from self._value(prefix + key, line[found.end() :], indent)

    def _value(self, key: str, rest: str, indent: int) -> Iterator[YamlText]:
        first = self._next
        plain = _without_comment(rest)
        if not plain and self._starts_below(indent):
            # A quoted or block text may begin on a line below its key.
            self._next = self._content_at()
            rest = self._lines[self._next].lstrip(" ")
            self._next += 1
        if rest[:1] in ('"', "'"):
            yield YamlText(key, self._quoted(rest, self._next), first)
            return
        if rest[:1] in ("|", ">"):
            yield YamlText(key, self._block(rest, indent, self._next), first)
            return
        following = "" if plain else self._peek() or ""
        depth = _indent_of(following)
        has_children = depth > indent and _KEY.match(following, depth) is not None
        if has_children and self._nested:
            yield from self.mapping(depth, f"{key}.")
            return
        is_list = depth >= indent and following.lstrip().startswith("- ")
        start = plain or (following.lstrip() if depth > indent else "")
        if start[:1] in ("[", "{", "&", "*", "!") or has_children or is_list:
            raise self._error(f"{key} is no plain text", first, 'write KEY: "TEXT"')
        yield YamlText(key, self._plain(plain, rest, indent), first)

    def _starts_below(self, indent: int) -> bool:
        """Whether the next line with content starts a quoted or block text, not a key."""
        following = self._peek() or ""
        depth = _indent_of(following)
        return depth > indent and following[depth] in "\"'|>" and _KEY.match(following, depth) is None

    def _plain(self, plain: str, rest: str, indent: int) -> str:
        """Return a plain text with its continuation lines, which are indented more than the key."""
        parts = [plain]
        while (plain == rest.strip() or not parts[-1]) and self._next < len(self._lines):
            line = self._lines[self._next]
            if not line.strip():
                if (following := self._peek()) is None or _indent_of(following) <= indent:
                    break
            elif _indent_of(line) <= indent or line.lstrip().startswith("#"):
                break
            elif re.search(r":(\s|$)", _without_comment(line)):
                raise self._error("the line is not KEY: VALUE", self._next + 1, "write all keys at the left edge, each with a text")
            rest = line
            plain = _without_comment(line)
            parts.append(plain)
            self._next += 1
        return _folded(parts).strip()

    def _quoted(self, rest: str, first: int) -> str:
        quote = rest[0]
        while not (end := _end_of_quote(rest, quote)):
            if self._next == len(self._lines):
                raise self._error(f"{quote} is never closed", first, "close it")
            rest += "\n" + self._lines[self._next]
            self._next += 1
        if _without_comment(rest[end + 1 :]):
            raise self._error(f"{rest[end + 1 :].strip()} follows the closing {quote}", self._next, "leave it out")
        inside = rest[1:end]
        if quote == "'":
            return _folded(_trimmed(inside)).replace("''", "'")
        inside = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*", r"\1", inside)
        # An escaped blank before a line break is part of the text, unlike other blanks there.
        inside = re.sub(r"(?<!\\)((?:\\\\)*)\\([ \t])(?=[ \t]*\n)", lambda found: f"{found[1]}\\x{ord(found[2]):02x}", inside)
        return _ESCAPE.sub(_unescaped, _folded(_trimmed(inside)))

    def _block(self, rest: str, indent: int, first: int) -> str:
        header = _BLOCK.fullmatch(rest.strip())
        if header is None:
            raise self._error(f"{rest.strip()} begins no block of text", first, "write | or >, and the text on the next lines")
        lines: list[str] = []
        while self._next < len(self._lines) and (not self._lines[self._next].strip() or _indent_of(self._lines[self._next]) > indent):
            lines.append(self._lines[self._next])
            self._next += 1
        digit = header[3] or header[4]
        written = [line for line in lines if line.strip()]
        depth = indent + int(digit) if digit else _indent_of(written[0]) if written else 0
        short = next((at for at, line in enumerate(lines) if line.strip() and _indent_of(line) < depth), None)
        if short is not None:
            raise self._error("the line is indented less than the block of text", first + short + 1, "indent the block's lines alike")
        texts = [line[depth:] if written else "" for line in lines]
        return (_folded_block(texts) if header[1] == ">" else "\n".join(texts)).rstrip("\n")

    def _peek(self) -> str | None:
        """Return the next line with content."""
        at = self._content_at()
        return self._lines[at] if at < len(self._lines) else None

    def _content_at(self) -> int:
        for at in range(self._next, len(self._lines)):
            line = self._lines[at].strip()
            if line and not line.startswith("#") and self._lines[at].rstrip() not in ("---", "..."):
                return at
        return len(self._lines)

    def _error(self, message: str, line: int, hint: str) -> DefiniteError:
        return DefiniteError(message, place=f"{self._file}, line {line}", hint=hint)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _without_comment(text: str) -> str:
    return re.split(r"\s+#|^#", text, maxsplit=1)[0].strip()


def _end_of_quote(text: str, quote: str) -> int:
    """Return the position of the closing quote; 0 if there is none."""
    at = 1
    while at < len(text):
        if (quote == '"' and text[at] == "\\") or (quote == "'" and text.startswith("''", at)):
            at += 2
        elif text[at] == quote:
            return at
        else:
            at += 1
    return 0


def _trimmed(text: str) -> list[str]:
    """Return the lines of a quoted text without the blanks around its line breaks."""
    lines = text.split("\n")
    last = len(lines) - 1
    return [_trim(line, start=at > 0, end=at < last) for at, line in enumerate(lines)]


def _trim(line: str, *, start: bool, end: bool) -> str:
    line = line.lstrip(" \t") if start else line
    return line.rstrip(" \t") if end else line


def _folded(lines: list[str]) -> str:
    """Join lines: one line break becomes a space, and each empty line a line break."""
    text, empty = lines[0], 0
    for at, line in enumerate(lines[1:], 1):
        if not line and at < len(lines) - 1:
            empty += 1
            continue
        text += ("\n" * empty or " ") + line
        empty = 0
    return text


def _folded_block(lines: list[str]) -> str:
    """Fold a block of text; lines that are indented more than the block keep their line breaks."""
    text, written = "", ""
    for at, line in enumerate(lines):
        keeps = line[:1] in (" ", "\t") or written[:1] in (" ", "\t")
        if at and line and lines[at - 1]:
            text += "\n" if keeps else " "
        elif at and (keeps or not line or not written):
            text += "\n"
        text += line
        written = line or written
    return text


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, found[0])
