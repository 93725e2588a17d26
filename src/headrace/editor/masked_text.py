"""The text of a pipe file for the browser: without passwords, other secrets, and addresses of alert receivers.

Invariant: a value in the position of a secret never leaves the process, also inside comments. References (`${NAME}`) stay: they name the
place of a secret.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import tomlkit

from headrace.alerts.rules import MAIL_SCHEMES, redact_receiver
from headrace.config.document import ALERTS, is_secret_name
from headrace.config.show import MASK
from headrace.editor.accounts import is_only_references, mask_address
from headrace.errors import DefiniteError
from headrace.service.log_formats import mask_secrets
from headrace.settings.toml_text import Keys

_COMMENT: Final = re.compile(r"#[^\n]*")


def mask_text(text: str) -> str:
    document = tomlkit.parse(text)
    _mask_table(document, ())
    masked = _COMMENT.sub(lambda found: mask_secrets(found[0]), tomlkit.dumps(document))
    _check_masked(tomllib.loads(masked), ())
    return masked


def mask_receiver(url: str) -> str:
    """Return the address of a receiver of alerts without user, path and query, each of which may be a secret; references stay."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme in MAIL_SCHEMES and host:
        return f"{parts.scheme}://{f'{MASK}@' if '@' in parts.netloc else ''}{host}"
    is_place = "@" not in parts.netloc and is_only_references(url.partition("://")[2].partition("/")[2])
    return url if is_only_references(url) or is_place else redact_receiver(url, MASK)


def describe_change(before: str, after: str, name: str) -> str:
    """Return the difference of two texts as a unified diff, without secrets; empty if none is visible."""
    lines = difflib.unified_diff(mask_text(before).splitlines(), mask_text(after).splitlines(), name, f"{name} (new)", lineterm="")
    return "\n".join(lines)


def _mask_table(table: Any, path: Keys) -> None:
    for name, value in list(table.items()):
        if isinstance(value, Mapping):
            _mask_table(value, (*path, name))
        elif isinstance(value, str):
            masked = _mask((*path, name), value)
            if masked != value:
                table[name] = masked
        elif is_secret_name(name) and not isinstance(value, bool):
            table[name] = MASK


def _check_masked(table: Mapping[str, Any], path: Keys) -> None:
    """Raise `DefiniteError` if a secret is left: better no text than one with a password."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            _check_masked(value, (*path, name))
        elif isinstance(value, str) and _mask((*path, name), value) != value:
            raise DefiniteError(
                "the file cannot be shown without its secrets", place=".".join((*path, name)), hint="change the file by hand"
            )


def _mask(path: Keys, value: str) -> str:
    if path[-1] == "url":
        return mask_receiver(value) if path[0] == ALERTS else mask_address(value)
    is_secret = any(map(is_secret_name, path[2:])) and path[-1] not in ("password_file", "hash_salt")
    return MASK if is_secret and value and not is_only_references(value) else value
