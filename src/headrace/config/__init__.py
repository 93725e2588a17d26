"""Reads `headrace.toml` (sources, sinks and pipes), and the configuration files of other tools."""

from headrace.config.load import DEFAULT_FILE, load

__all__ = ["DEFAULT_FILE", "load"]
