"""`headrace.toml`: sources, sinks and pipes in one file, and what other tools' files say in its words."""
