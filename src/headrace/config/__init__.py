"""`headrace.toml`: sources, sinks and pipes in one file, and what other tools' files say in its words."""

from headrace.config.load import DEFAULT_FILE, load

__all__ = ["DEFAULT_FILE", "load"]
