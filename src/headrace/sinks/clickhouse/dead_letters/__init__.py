"""Rows and events that are not in their tables: `headrace.errors`."""
