"""Applies schema changes to ClickHouse tables."""
