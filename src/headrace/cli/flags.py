"""Flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.argument_secrets import KAFKA, SINK, SOURCE
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import TEXT_LIST, Field, Size, merge_fields, setting_fields
from headrace.settings.pipe_keys import BinlogKeys
from headrace.sinks.clickhouse.server.options import TableOptions

if TYPE_CHECKING:
    from headrace.settings.settings_file import UserSettings

OK, DIFFERENT, FAILED, UNDECIDED = 0, 1, 2, 3
"""Exit codes: success, differences found, an explained error, a comparison that could not decide."""
CommandFunction = Callable[[argparse.Namespace], int]
Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
ZERO_DATES: Final = [value.value for value in setting_fields(BinlogKeys)["zero_dates"].kind]
_PLACEHOLDERS: Final = {Size: "N", int: "N", float: "S", TEXT_LIST: "GLOB"}
"""The placeholder of a flag's value, by the type of the setting."""


def add_command(subcommands: Subcommands, run: CommandFunction, name: str, text: str) -> argparse.ArgumentParser:
    """Add a command that calls `run`; `text` is its one-line help."""
    command = subcommands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(run=run)
    return command


def add_source(command: argparse.ArgumentParser, *, kafka: bool = False, scylla: bool = False, optional: bool = False) -> None:
    settings = "tls, ca, cert, key, socket, connect-timeout, read-timeout"
    text = f"mysql://user:password@host:port/db?SETTING=VALUE (password also from {SOURCE}; settings: {settings})"
    if kafka:
        text += f", binlog:DIR for log files, or kafka://user:password@host:port?PROPERTY=VALUE (password also from {KAFKA})"
    if scylla:
        text += ", or scylla://user:password@host,host:port/keyspace?SETTING=VALUE (settings: dc, consistency, tls, ca, cert, key)"
    _add_address(command, "source", text, optional)


def add_sink(command: argparse.ArgumentParser, *, kafka: bool = False, optional: bool = False) -> None:
    text = f"clickhouse://user:password@host:port/db (password also from {SINK}), or chdb:PATH for an embedded one"
    if kafka:
        text += f", or kafka://user:password@host:port,host:port?PROPERTY=VALUE (password also from {KAFKA})"
        text += ", or (from scylla://) cql://user:password@host,host:port/keyspace"
        text += (
            ", stdout: to print changes (stdout:?format=json|text|sql&colour=auto|always|never), or class:MODULE:CLASS, your own producer"
        )
    _add_address(command, "sink", text, optional)


def _add_address(command: argparse.ArgumentParser, name: str, text: str, optional: bool) -> None:
    if optional:
        command.add_argument(name, nargs="?", default="", metavar=name.upper(), help=text)
    else:
        command.add_argument(name, metavar=name.upper(), help=text)


def add_tables(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tables",
        action="append",
        default=[],
        metavar="GLOB",
        help="tables to replicate, such as 'shop.*' or 'order*'; may be repeated (all of db)",
    )
    command.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="tables to exclude, such as 'shop.tmp_*'; may be repeated"
    )


def add_setting_flags(command: argparse._ActionsContainer, *classes: type) -> None:
    for one in merge_fields(*classes).values():
        more: dict[str, Any] = {"default": one.default, "metavar": one.flag or _PLACEHOLDERS.get(one.kind)}
        if one.kind is bool:
            more = {"action": "store_true"}
        elif one.kind == TEXT_LIST:
            more |= {"action": "append", "default": []}
        elif isinstance(one.kind, type) and issubclass(one.kind, StrEnum):
            more |= {"choices": [value.value for value in one.kind], "default": one.default.value}
        elif one.kind is not str:
            more["type"] = parse_size if one.kind is Size else one.kind
        command.add_argument(flag_name(one.name), help=_help_text(one), **more)


def flag_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _help_text(one: Field, allowed: Iterable[str] = ()) -> str:
    """Return the description of a setting in the style of `--help`, with its default in parentheses."""
    text = one.text.replace("`", "").removesuffix(".")
    text = text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
    values = f": {', '.join(allowed)}" if allowed else ""
    repeated = "; may be repeated" if one.kind == TEXT_LIST else ""
    default = "" if one.default in ("", (), False) and one.kind is not int else f" ({_format_default(one)})"
    return f"{text}{values}{repeated}{default}".replace("%", "%%")


def _format_default(one: Field) -> str:
    if one.kind is Size:
        shift = next(shift for shift in (30, 20, 10, 0) if one.default % (1 << shift) == 0)
        return f"{one.default >> shift}{'KMG'[shift // 10 - 1] if shift else ''}"
    return str(one.default)


def add_verify_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", default="", metavar="DIR", help="the pipe's state directory, if the sink has no record of the pipe")
    command.add_argument(
        "--pipe",
        default="",
        metavar="NAME",
        help="the pipe to wait for, as headrace.positions names it (the only one); without SOURCE and SINK, a pipe of a running process",
    )
    command.add_argument(
        "--settings", default="", metavar="FILE", help="the settings file that the pipe was started with (the pipe's own settings)"
    )
    command.add_argument("--zero-dates", choices=ZERO_DATES, default="", help="as the pipe was started (the pipe's own setting)")
    command.add_argument("--repair", action="store_true", help="overwrite rows that differ with the source's values")
    command.add_argument("--sample", default="", metavar="PART", help="compare only this share (1%%) or number of rows per table")
    command.add_argument("--seed", type=int, default=None, metavar="N", help="the seed of the sample (a random one, which is printed)")
    command.add_argument("--wait", type=float, default=60.0, metavar="S", help="seconds to wait for the pipe to catch up (%(default)s)")
    command.add_argument("--chunk-rows", type=int, default=250_000, metavar="N", help="rows per region (%(default)s)")
    command.add_argument("--spark", choices=("auto", "always", "never"), default="auto", help="compare in Spark tasks (auto: large tables)")
    add_spark(command)
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def add_spark(command: argparse.ArgumentParser, usual: str = "local[2]") -> None:
    """Add the Spark flags; without `usual`, the pipe file provides the default."""
    instead = usual or "from the file, or local[2]"
    command.add_argument(
        "--master", default=usual, help=f"Spark master: local[N], spark://host:port, yarn or k8s://… ({instead}); see docs/scaling.md"
    )
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting, such as spark.executor.memory=2g; may be repeated",
    )


def parse_spark_settings(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if not pair.partition("=")[0].startswith("spark.") or "=" not in pair), None)
    if wrong is not None:
        # The value is not printed: it may be a secret.
        raise DefiniteError(f"--conf {wrong.partition('=')[0]!r} is no setting of Spark's", hint="write --conf spark.NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def add_target_settings(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("target tables", "The state stores them for restarts. See docs/clickhouse.md for all settings.")
    group.add_argument(
        "--settings", default="", metavar="FILE", help='settings from a TOML file: [sink], [sink.tables."db.table"], [kafka], [debezium]'
    )
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting of the file; may be repeated")
    for one in _sink_flags():
        allowed = [value.value for value in one.kind] if isinstance(one.kind, type) and issubclass(one.kind, StrEnum) else ()
        more: dict[str, Any] = {"action": "store_const", "const": "true"} if one.kind is bool else {"metavar": one.flag}
        group.add_argument(flag_name(one.name), help=_help_text(one, allowed), **more)
    group.add_argument(
        "--schema-changes",
        action="append",
        default=[],
        metavar="KIND=POLICY",
        help="apply, ignore, halt, keep or resync for a kind of schema change, such as drop_table=keep or all=halt (apply)",
    )


def _sink_flags() -> list[Field]:
    return [one for one in setting_fields(TableOptions).values() if one.flag]


def settings_from_flags(arguments: argparse.Namespace) -> list[UserSettings]:
    """Return the settings given by flags; later ones take precedence."""
    from headrace.settings.settings_file import parse_set_flag, parse_setting

    given = [(one.name, getattr(arguments, one.name)) for one in _sink_flags() if getattr(arguments, one.name) is not None]
    policies = [(kind.strip(), word.strip()) for kind, _, word in (pair.partition("=") for pair in arguments.schema_changes)]
    return [
        *(parse_setting((name,), value, flag_name(name)) for name, value in given),
        *(parse_setting(("schema_changes", kind), word, "--schema-changes") for kind, word in policies),
        *map(parse_set_flag, arguments.set),
    ]


def parse_size(text: str) -> int:
    """Parse a number of bytes: 64M, 1G, 500000."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


parse_size.__name__ = "size"  # argparse shows it in its errors
