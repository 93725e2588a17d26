"""Encodes change blocks and inserts them, so that a replay does not change the result."""
