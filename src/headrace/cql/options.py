"""The CDC options of a table: `WITH cdc = {...}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """ScyllaDB's options of a base table, with its defaults."""

    enabled: bool = False
    preimage: str = "false"
    """`false`, `true` (the columns that a write touches) or `full`."""
    postimage: bool = False
    delta: str = "full"
    """`full`, or `keys`: delta rows contain keys only."""
    ttl: int = 86400
    """TTL of log rows in seconds; 0: none."""

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> CdcOptions:
        """Parse the map of a CREATE or ALTER statement, with ScyllaDB's rules and messages."""
        found = cls()
        for name, value in words.items():
            found = found._with(name.lower(), value.lower(), value)
        return found

    def _with(self, name: str, value: str, spelled: str) -> CdcOptions:
        flag = {"true": True, "1": True, "false": False, "0": False}.get(value)
        if name == "enabled" and flag is not None:
            return replace(self, enabled=flag)
        if name == "preimage" and (flag is not None or value == "full"):
            return replace(self, preimage="full" if flag is None else str(flag).lower())
        if name == "postimage" and flag is not None:
            return replace(self, postimage=flag)
        if name == "delta" and value in {"keys", "full"}:
            return replace(self, delta=value)
        if name == "ttl" and value.isdigit():
            return replace(self, ttl=int(value))
        if name in {"enabled", "preimage", "postimage", "delta", "ttl"}:
            raise DefiniteError(f'Invalid value for CDC option "{name}": {spelled}', hint="see ScyllaDB's page on CDC for what it may be")
        raise DefiniteError(f"Invalid CDC option: {name}", hint="CDC's options are enabled, preimage, postimage, delta and ttl")

    def __str__(self) -> str:
        words = {
            "delta": self.delta,
            "enabled": str(self.enabled).lower(),
            "postimage": str(self.postimage).lower(),
            "preimage": self.preimage,
            "ttl": str(self.ttl),
        }
        return "{" + ", ".join(f"'{name}': '{value}'" for name, value in words.items()) + "}"

    @property
    def images(self) -> bool:
        """Whether a write must read the previous values."""
        return self.postimage or self.preimage != "false"
