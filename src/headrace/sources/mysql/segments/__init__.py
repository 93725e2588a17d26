"""Reads a segment of the log: transaction groups, events, row counts."""
