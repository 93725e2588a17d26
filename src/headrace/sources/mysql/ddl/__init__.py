"""Parses DDL statements of the log into schema changes: tokens, grammar, column types, and the effect on the known tables."""
