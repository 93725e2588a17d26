"""Reads base tables by token ranges."""
