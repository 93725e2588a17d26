"""Encodes rows of ScyllaDB's CDC log as JSON messages."""
