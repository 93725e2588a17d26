"""Transforms of change blocks between source and sink: filters, and computed, renamed, dropped, masked or hashed columns."""
