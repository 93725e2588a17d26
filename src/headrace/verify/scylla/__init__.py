"""Compares ScyllaDB tables with a sink."""
