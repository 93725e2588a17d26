"""Parses the settings after the question mark of an address.

No error repeats a value: it may be a secret in the wrong place. `whose` names the peer in error messages ("the source").
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from headrace.errors import DefiniteError

_LONGEST_S: Final = 31_536_000.0
"""One year, the longest time that timers accept."""


def parse_settings(text: str, names: Sequence[str], whose: str) -> dict[str, str]:
    """Return the settings; refuse names that are not in `names`."""
    known = "known settings: " + ", ".join(names)
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in names:
            raise DefiniteError(f"{whose}'s address has an unknown setting {name!r}", hint=known)
        if name in found:
            raise DefiniteError(f"{whose}'s address has the setting {name!r} twice", hint="give it once")
        if not value:
            raise DefiniteError(f"{whose}'s address gives {name!r} no value", hint=f"write {name}=VALUE, or leave it out")
        found[name] = value
    if text and not found:
        raise DefiniteError(f"the settings in {whose}'s address cannot be read", hint=f"write ?name=value&name=value; {known}")
    return found


def parse_seconds(name: str, text: str | None, default: float, whose: str) -> float:
    """Return a setting that is a duration in seconds."""
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise DefiniteError(f"{name} in {whose}'s address is not a number of seconds", hint=f"write {name}=10 or {name}=0.5")
    return seconds


def is_loopback(host: str) -> bool:
    """Whether traffic to this host stays on the machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
