"""Applies referential actions of foreign keys to child tables, inside ClickHouse."""
