"""Headrace's own tables in ClickHouse: positions, pipes, targets, applied statements."""
