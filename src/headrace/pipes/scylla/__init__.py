"""Pipes from ScyllaDB's CDC log."""
