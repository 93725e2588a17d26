"""docs/configuration.md: every section and setting of `headrace.toml`, made from the classes alone, so it cannot be out of date."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from headrace.config.key_catalog import Section, list_sections
from headrace.settings.dataclass_fields import Field
from headrace.settings.reference_page import Row, row, table
from headrace.settings.schema_policy import ALL_KINDS, ChangeKind, Policy, SchemaPolicy, allowed_policies

_HEAD: Final = """\
# Settings of headrace.toml

<!-- made by scripts/write-settings-page from the code; do not edit by hand -->

Every section and every setting. How a file is put together is told in [pipes.md](pipes.md); `headrace config check` tells what is wrong in
one, `headrace config show --defaults` how it is understood, and [headrace.schema.json](headrace.schema.json) (`headrace config schema`)
lets editors complete and check it. ↻: may change when a pipe starts again; any other needs a new pipe.

- A name of a source, sink or pipe has letters, digits, `_` and `-`.
- `${NAME}` in a text is the environment variable (an error if it is not set or empty), `${NAME:-default}` with a default,
  `${file:PATH}` the content of a file without the newline at its end; `$${` stands for `${` itself. In an address they are quoted as
  needed: a password may have any character.
- Relative paths of `state`, `password_file`, `${file:…}`, `chdb:…`, `binlog:…`, `registry` and `kafka_jars` are seen from the file's
  directory; those inside of addresses (certificates) from where headrace is started.
- Sizes are numbers of bytes, or texts such as `"64M"` (K, M, G: powers of 1024).
- An unknown key, or one that the kind of source or sink has no use for, is an error.
"""
_SUBJECTS: Final = {
    "headrace": "The process.",
    "sources.NAME": "Where changes come from.",
    "sinks.NAME": "Where they go.",
    "pipes.NAME": "Which sources go to which sink.",
}


def configuration_page() -> str:
    """The whole page."""
    parts = [_HEAD, *_sections(), _policies()]
    return "\n".join(parts)


def _sections() -> Iterator[str]:
    told: set[str] = set()
    known: dict[str, dict[str, Field]] = {}
    for section in list_sections():
        if section.header not in told:
            told.add(section.header)
            yield f"## `[{section.header}]`\n"
            if section.header in _SUBJECTS:
                yield f"{_SUBJECTS[section.header]}\n"
        if section.subject:
            yield f"### Of {section.subject}\n"
        yield _rows(section, known.setdefault(section.header, {})) + "\n"


def _rows(section: Section, known: dict[str, Field]) -> str:
    """The settings of a section; of a kind that comes later, those that it shares with earlier ones are only named."""
    fields = [one for name, one in section.fields.items() if known.get(name) != one]
    shared = [name for name, one in section.fields.items() if known.get(name) == one]
    known.update(section.fields)
    before = f"As above: {', '.join(f'`{name}`' for name in shared)}.\n\n" if shared else ""
    return before + table(_named(section, one) for one in fields)


def _named(section: Section, one: Field) -> Row:
    name = next(name for name, field in section.fields.items() if field is one)
    return row(section.header, one, name in section.changeable)._replace(name=name)


def _policies() -> str:
    rows = [
        Row("", kind.value, ", ".join(f"`{policy}`" for policy in allowed_policies(kind)), json.dumps(SchemaPolicy().of(kind)), "", True)
        for kind in ChangeKind
    ]
    rows.append(Row("", ALL_KINDS, ", ".join(f"`{policy}`" for policy in Policy), "", "Every kind that may have this policy.", True))
    about = "What is done about each kind of schema change (see [clickhouse.md](clickhouse.md))."
    return f"## `[pipes.NAME.schema_changes]`\n\n{about}\n\n{table(rows)}\n"
